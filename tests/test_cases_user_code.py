"""What user code does to the values that it is given or that the trainer goes on with; one test for each case."""

import gc
import re
import weakref

import commands
import pytest
import tiny
import torch
from peft import LoraConfig
from recording import Judge, make_trainer
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.checks.errors import SetupError

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


def first(reward, k):
    return torch.arange(k).repeat(len(reward), 1)


def of_another_dtype(reward, k):
    return first(reward, k).float()


def broken(reward, k):
    return first(reward, k)[len(reward)]


def test_case_122_parameters_of_a_strategy_may_have_other_names(model_path, tmp_path):
    trainer = make_trainer(
        model_path, tiny.distinct_characters, tmp_path, down_sampling=f"{__name__}.first", log_completions=True
    )
    trainer.train()
    assert list(trainer._logs["extra"]["kept"]) == [*[True] * 4, *[False] * 4] * 2


@pytest.mark.parametrize("strategy", [of_another_dtype, broken])
def test_case_122_errors_of_a_strategy_name_its_file_and_line(strategy, model_path, tmp_path):
    line = strategy.__code__.co_firstlineno + (strategy is broken)
    trainer = make_trainer(
        model_path, tiny.distinct_characters, tmp_path, down_sampling=f"{__name__}.{strategy.__name__}"
    )
    with pytest.raises((SetupError, RuntimeError), match=re.escape(f"{__file__}:{line}")) as raised:
        trainer.train()
    assert strategy is broken or "check_strategy" in str(raised.value)


def rollouts(prompts, trainer):
    """Of the same lengths, with log-probs that vLLM could not give."""
    encode = trainer.processing_class
    return {
        "prompt_ids": [encode(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": [[5 + i % 9, 6 + i % 5, encode.eos_token_id] for i in range(len(prompts))],
        "logprobs": [[-1.0, None, -2.0] for _ in prompts],
    }


def by_first_token(completion_ids, **kwargs):
    return [float(ids[0] % 4) for ids in completion_ids]


ON_EMBEDDINGS = [{"target_modules": ["embed_tokens", "q_proj"]}, {"trainable_token_indices": [5, 6]}]


@pytest.mark.parametrize("lora", ON_EMBEDDINGS, ids=["target_modules", "trainable_token_indices"])
@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_99_rollouts_of_ones_own_train_adapters_of_the_embeddings(num_rollouts, lora, model_path, tmp_path):
    ends = {}
    for kind, config, own in (
        (GRPOTrainer, GRPOConfig, {}),
        (PODSGRPOTrainer, PODSGRPOConfig, {"num_rollouts": num_rollouts, "zero_variance": "train"}),
    ):
        args = config(**tiny.default_arguments(tmp_path, **own))
        peft_config = LoraConfig(r=4, **{"target_modules": ["q_proj"]} | lora)
        torch.manual_seed(0)
        trainer = kind(
            *(model_path, by_first_token, args, tiny.make_dataset()),
            rollout_func=rollouts,
            peft_config=peft_config,
        )
        start = tiny.trained_parameters(trainer)
        trainer.train()
        end = ends[kind] = tiny.trained_parameters(trainer)
        assert any(("embed" in name or "token" in name) and not torch.equal(start[name], end[name]) for name in start)
    assert num_rollouts == 8 or same(*ends.values())


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_100_a_log_prob_may_be_none(num_rollouts, model_path, tmp_path):
    arguments = {"num_rollouts": num_rollouts, "zero_variance": "train", "off_policy_mask_threshold": 1.0}
    trainer = make_trainer(model_path, by_first_token, tmp_path, rollout_func=rollouts, **arguments)
    trainer.train()
    for inputs in trainer.trained:
        assert inputs["sampling_per_token_logps"].isnan().sum(dim=1).tolist() == [1] * 8
    if num_rollouts == 4:
        config = GRPOConfig(**tiny.default_arguments(tmp_path, off_policy_mask_threshold=1.0))
        plain = GRPOTrainer(model_path, by_first_token, config, tiny.make_dataset(), rollout_func=rollouts)
        plain.train()
        assert same(tiny.trained_parameters(trainer), tiny.trained_parameters(plain))
    assert all(torch.isfinite(values).all() for values in tiny.trained_parameters(trainer).values())


SPLIT_BATCHES = """
import sys
import tiny
from trl import GRPOConfig, GRPOTrainer
from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.cli.launch import end_process_group

usual = {"accelerator_config": {"split_batches": True}, "ddp_backend": "gloo", "ddp_timeout": 60}
for name, kind, config, own in (
    ("grpo", GRPOTrainer, GRPOConfig, {}),
    ("4", PODSGRPOTrainer, PODSGRPOConfig, {"num_rollouts": 4, "zero_variance": "train"}),
    ("8", PODSGRPOTrainer, PODSGRPOConfig, {"num_rollouts": 8}),
):
    args = config(**tiny.default_arguments(sys.argv[2], **usual, **own))
    trainer = kind(sys.argv[1], tiny.distinct_characters, args, tiny.make_dataset())
    trainer.train()
    trainer.save_model(f"{sys.argv[2]}/{name}")
    del trainer
end_process_group()
"""


@pytest.mark.long
def test_case_103_batches_may_be_split_among_processes(model_path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SPLIT_BATCHES)
    commands.torchrun(script, model_path, tmp_path)
    ends = {name: load_file(tmp_path / name / "model.safetensors") for name in ("grpo", "4", "8")}
    assert same(ends["4"], ends["grpo"]) and not same(ends["8"], load_file(f"{model_path}/model.safetensors"))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("num_rollouts", [None, 4, 8])
def test_case_123_a_trainer_is_freed_with_its_last_name(num_rollouts, trained, model_path, tmp_path):
    """Without the garbage collector, which may come late; of TRL's own (`None`), too."""
    reward_model = AutoModelForSequenceClassification.from_pretrained(model_path, num_labels=1)
    usual = tiny.default_arguments(tmp_path, log_completions=True, num_completions_to_print=0)
    own = {} if num_rollouts is None else {"num_rollouts": num_rollouts}
    config, kind = (GRPOConfig, GRPOTrainer) if num_rollouts is None else (PODSGRPOConfig, PODSGRPOTrainer)
    rewards = [tiny.distinct_characters, reward_model]
    trainer = kind(model_path, rewards, config(**usual, **own), tiny.make_dataset())
    gc.disable()
    try:
        if trained:
            trainer.train()
        reference = weakref.ref(trainer)
        del trainer
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.long
def test_case_93_nor_is_it_on_two_processes(model_path, tmp_path):
    """With groups that straddle them."""
    script = tmp_path / "script.py"
    script.write_text(SPOILING)
    commands.torchrun(script, model_path, tmp_path)
    assert same(*(load_file(tmp_path / name / "model.safetensors") for name in ("clean", "spoiling")))
