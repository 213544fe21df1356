"""The trainer in front of other trainers, overrides in subclasses, and trainers that were never built."""

import json
from pathlib import Path
from types import SimpleNamespace

import commands
import pytest
import tiny
import torch
from overrides_worker import overridden
from recording import make_trainer
from torch.utils.data import DataLoader
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer


class PODSGMPOTrainer(PODSGRPOTrainer, GMPOTrainer):
    pass


def build(kind, model_path, output_dir, **arguments):
    args = PODSGRPOConfig(**tiny.default_arguments(output_dir, num_rollouts=8, **arguments))
    return kind(model=model_path, reward_funcs=tiny.distinct_characters, args=args, train_dataset=tiny.make_dataset())


def test_in_front_of_another_trainer_it_down_samples_for_that_one(model_path, tmp_path):
    losses = {}
    for kind in (PODSGMPOTrainer, PODSGRPOTrainer):
        trainer = build(kind, model_path, tmp_path / kind.__name__, num_iterations=2, learning_rate=1e-2)
        trainer.train()
        losses[kind] = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        assert "pods/kept_reward" in trainer.state.log_history[0]
    assert losses[PODSGMPOTrainer] != losses[PODSGRPOTrainer]


def test_positional_arguments_are_those_of_grpo_trainer(model_path, tmp_path):
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset(), None, None)
    assert trainer.args is args
    with pytest.raises(TypeError, match="model"):
        PODSGRPOTrainer()


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_94_an_override_of_the_rewards_sees_all_rollouts_and_decides(num_rollouts, patched, model_path, tmp_path):
    seen = []

    def negated(calculate):
        def call(inputs, prompts, completions, completion_ids_list):
            seen.append(len(completions))
            return -calculate(inputs, prompts, completions, completion_ids_list)

        return call

    class Negated(PODSGRPOTrainer):
        def _calculate_rewards(self, *args):
            return negated(super()._calculate_rewards)(*args)

    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=num_rollouts))
    kind = PODSGRPOTrainer if patched else Negated
    trainer = kind(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    if patched:
        trainer._calculate_rewards = negated(trainer._calculate_rewards)
    trainer.train()
    prompts = args.generation_batch_size // args.num_generations
    assert seen == [prompts * num_rollouts] * 2
    assert trainer.state.log_history[0]["reward"] < 0
    if num_rollouts > args.num_generations:
        assert trainer.state.log_history[0]["pods/kept_reward"] < 0


METHODS = ("_generate", "_generate_single_turn", "_calculate_rewards", "_compute_loss")


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_case_94_overrides_take_part_as_in_trl(name, patched, model_path, tmp_path):
    found = overridden(PODSGRPOTrainer, name, patched, model_path, tmp_path / "pods", num_rollouts=4)
    expected = overridden(GRPOTrainer, name, patched, model_path, tmp_path / "grpo")
    plain = overridden(GRPOTrainer, "", patched, model_path, tmp_path / "plain")
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert any((expected[key] != plain[key]).any() for key in plain)


@pytest.mark.long
def test_case_94_they_do_on_two_processes(model_path, tmp_path):
    commands.torchrun(Path(__file__).with_name("overrides_worker.py"), model_path, tmp_path, *METHODS)
    for name in METHODS:
        found, expected = (torch.load(tmp_path / f"{kind}.{name}.pt") for kind in ("PODSGRPOTrainer", "GRPOTrainer"))
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        # Both prompts' rollouts: each process sees its own, and rewards are those of all.
        assert json.loads((tmp_path / f"{name}.json").read_text()) == ([8, 8] if name != "_compute_loss" else [4, 4])


def test_case_94_a_trainer_that_replaces_what_the_selection_stands_in_is_refused():
    class Replacing(GRPOTrainer):
        @torch.no_grad()
        def _generate_and_score_completions(self, inputs):
            return {}

    class Calling(GRPOTrainer):
        @torch.no_grad()
        def _generate_and_score_completions(self, inputs):
            return next(super()._generate_and_score_completions(rows) for rows in [inputs])

    type("Both", (PODSGRPOTrainer, Calling), {})
    with pytest.raises(TypeError, match=r"`Both` cannot down-sample: `Replacing\._generate_and_score_completions`"):
        type("Both", (PODSGRPOTrainer, Replacing), {})
    with pytest.raises(TypeError, match=r"`Mine` cannot down-sample: `Mine\._generate_and_score_completions`"):
        type("Mine", (PODSGRPOTrainer,), {"_generate_and_score_completions": lambda self, inputs: {}})


def test_case_94_a_dataloader_of_other_sizes_is_refused(model_path, tmp_path):
    class Custom(PODSGRPOTrainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_size=8, collate_fn=list)

    with pytest.raises(ValueError, match=r"gave 8 rows, but a generation batch takes 16: 2 prompts, each `num_rollo"):
        build(Custom, model_path, tmp_path).train()


def test_an_override_of_the_sampler_sees_the_sizes_of_what_is_sampled(model_path, tmp_path):
    class Reversed(PODSGRPOTrainer):
        def _get_train_sampler(self, dataset=None):
            prompts = self.args.generation_batch_size // self.num_generations
            order = range(len(self.train_dataset))[::-1]
            return [row for row in order for _ in range(self.num_generations)][: 4 * prompts * self.num_generations]

    seen = []

    def reward(completions, target, **kwargs):
        seen.append(target)
        return tiny.distinct_characters(completions)

    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8))
    Reversed(model_path, reward, args, tiny.make_dataset()).train()
    assert seen == [[15] * 8 + [14] * 8, [13] * 8 + [12] * 8]


def test_an_override_of_generation_is_what_rewards_see(model_path, tmp_path):
    class Edited(PODSGRPOTrainer):
        def _generate(self, prompts):
            generated = list(super()._generate(prompts))
            generated[3] = ["edited" for _ in generated[3]]
            return tuple(generated)

    seen = []

    def reward(completions, **kwargs):
        seen.extend(completions)
        return [float(i) for i in range(len(completions))]

    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8))
    Edited(model_path, reward, args, tiny.make_dataset()).train()
    assert set(seen) == {"edited"}


def test_an_instance_is_as_it_was_after_an_error(model_path, tmp_path):
    def broken(completions, **kwargs):
        raise ValueError("no judge")

    trainer = make_trainer(model_path, broken, tmp_path, num_rollouts=8)
    trainer._calculate_rewards = patched = trainer._calculate_rewards
    with pytest.raises(ValueError, match="no judge"):
        trainer.train()
    assert vars(trainer)["_calculate_rewards"] is patched and "_generate" not in vars(trainer)


def test_a_trainer_that_was_never_built_generates_as_grpo_trainer_does():
    """TRL's own tests of `rollout_func` build one with `object.__new__` and what `_generate` reads."""

    def generated(kind):
        trainer = object.__new__(kind)
        trainer.accelerator = SimpleNamespace(device=torch.device("cpu"), is_main_process=True, gather=lambda x: x)
        trainer.args = SimpleNamespace(report_to=[])
        trainer.model = SimpleNamespace(training=True)
        trainer.state = SimpleNamespace(global_step=2, num_input_tokens_seen=0)
        trainer._last_loaded_step = 1
        trainer.use_vllm = False
        trainer.tools = trainer.environments = trainer.environment_factories = None
        trainer.eos_token_ids, trainer._tokenizer = [2], SimpleNamespace(pad_token_id=0)
        trainer.eos_token_id = trainer.pad_token_id = 2  # of TRL 1.10
        trainer._metrics = {"train": {name: [] for name in METRICS}}
        trainer.processing_class = SimpleNamespace(batch_decode=lambda ids, **kwargs: [str(x) for x in ids])
        trainer.rollout_func = lambda prompts, trainer: {
            "prompt_ids": [[1], [1]],
            "completion_ids": [[3, 2], [4]],
            "logprobs": None,
        }
        return trainer._generate(["a", "b"])

    assert generated(PODSGRPOTrainer) == generated(GRPOTrainer)


METRICS = [
    *(f"completions/{kind}_length" for kind in ("mean", "min", "max")),
    *(f"completions/{kind}_terminated_length" for kind in ("mean", "min", "max")),
    "completions/clipped_ratio",
]
