"""What user code does to the values that it is given or that the trainer goes on with; one test for each case."""

import commands
import pytest
import tiny
import torch
from recording import Judge, make_trainer
from safetensors.torch import load_file
from trl import GRPOConfig, GRPOTrainer

SPOILING = """
import sys
import tiny
from recording import make_trainer
from trl_pods.cli.launch import end_process_group

def spoiling(prompts, completions, completion_ids, **kwargs):
    rewards = tiny.distinct_characters(completions)
    for values in completion_ids:
        values.clear()
    completions[:] = ["nothing"] * len(completions)
    return rewards

for name, reward in (("clean", tiny.distinct_characters), ("spoiling", spoiling)):
    arguments = {"num_rollouts": 6, "ddp_backend": "gloo", "ddp_timeout": 60}
    trainer = make_trainer(sys.argv[1], reward, sys.argv[2], **arguments)
    trainer.train()
    trainer.save_model(f"{sys.argv[2]}/{name}")
    del trainer
end_process_group()
"""


def same(first: dict, second: dict) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("num_rollouts", [4, 8])
@pytest.mark.parametrize("conversational", [False, True])
def test_case_93_what_a_reward_function_changes_is_not_trained(num_rollouts, conversational, model_path, tmp_path):
    def spoiling(prompts, completions, completion_ids, target, **kwargs):
        rewards = [float(len(set(str(completion)))) for completion in completions]
        for messages in (*prompts, *completions) if conversational else ():
            messages[-1]["content"] = "nothing"
        for ids in completion_ids:
            ids.clear()
        for values in (prompts, completions, target):  # TRL counts them afterwards
            values[:] = ["nothing"] * len(values)
        return rewards

    def clean(completions, **kwargs):
        return [float(len(set(str(completion)))) for completion in completions]

    arguments = {"num_rollouts": num_rollouts, "zero_variance": "train"}
    data = tiny.make_dataset(conversational=conversational)
    trained = []
    for reward in (clean, spoiling):
        trainer = make_trainer(model_path, reward, tmp_path / reward.__name__, train_dataset=data, **arguments)
        trainer.train()
        trained.append(trainer.model.state_dict())
    assert same(*trained)
    if num_rollouts == 4:
        plain = GRPOTrainer(
            model=model_path,
            reward_funcs=spoiling,
            args=GRPOConfig(**tiny.default_arguments(tmp_path / "grpo")),
            train_dataset=data,
            processing_class=tiny.make_tokenizer(),
        )
        plain.train()
        assert same(plain.model.state_dict(), trained[1])


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_113_a_second_training_does_not_go_on_with_the_batch_of_the_first(num_rollouts, model_path, tmp_path):
    judge = Judge()
    arguments = {"num_rollouts": num_rollouts, "steps_per_generation": 4, "max_steps": 2, "logging_steps": 1}
    trainer = make_trainer(model_path, judge, tmp_path, **arguments)
    for i in range(2):
        trainer.trained.clear()
        trainer.train()
        rows = [row for inputs in trainer.trained for row in trainer.rows(inputs)]
        assert len(judge.calls) == i + 1 and all((row["number"], row["completion"]) in judge.calls[i] for row in rows)
        assert trainer.state.log_history[0]["reward"] > 0


@pytest.mark.long
@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_116_a_judge_is_told_how_many_completions_a_prompt_has(num_rollouts, model_path, tmp_path):
    seen = []

    def ranks(prompts, completions, trainer_state, **kwargs):
        size = trainer_state.num_rollouts
        groups = [prompts[i : i + size] for i in range(0, len(prompts), size)]
        assert all(len(set(group)) == 1 for group in groups) and len({group[0] for group in groups}) == len(groups)
        seen.append(size)
        return [float(i % size) for i in range(len(completions))]

    arguments = {"num_rollouts": num_rollouts, "num_generations_eval": 2, "eval_strategy": "steps", "eval_steps": 1}
    trainer = make_trainer(model_path, ranks, tmp_path, **arguments, eval_dataset=tiny.make_dataset(4))
    trainer.train()
    trainer.save_state()
    assert seen == [num_rollouts, 2, num_rollouts, 2]
    assert "num_rollouts" not in (tmp_path / "trainer_state.json").read_text()


def test_case_93_nor_is_it_on_two_processes(model_path, tmp_path):
    """With groups that straddle them."""
    script = tmp_path / "script.py"
    script.write_text(SPOILING)
    commands.torchrun(script, model_path, tmp_path)
    assert same(*(load_file(tmp_path / name / "model.safetensors") for name in ("clean", "spoiling")))
