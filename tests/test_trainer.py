"""The trainer as its user meets it: construction, metrics, resuming and the one log line."""

import gc
import inspect
import itertools
import logging
import math
import re
from pathlib import Path

import pytest
import tiny
import torch
from datasets import IterableDataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.downsampling.selection import Selection
from trl_pods.timing import PHASES


def make_trainer(
    model_path, output_dir, trainer_class=PODSGRPOTrainer, *, reward_funcs=None, dataset=None, **arguments
):
    config_class = PODSGRPOConfig if issubclass(trainer_class, PODSGRPOTrainer) else GRPOConfig
    return trainer_class(
        model=model_path,
        reward_funcs=reward_funcs or tiny.distinct_characters,
        args=config_class(**tiny.default_arguments(output_dir, **arguments)),
        train_dataset=dataset or tiny.make_dataset(),
    )


def test_it_takes_the_arguments_of_grpo_trainer():
    assert inspect.signature(PODSGRPOTrainer) == inspect.signature(GRPOTrainer)


def test_a_plain_grpo_config_gets_the_defaults_and_is_left_alone(model_path, tmp_path):
    args = GRPOConfig(**tiny.default_arguments(tmp_path))
    before = dict(vars(args))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    assert isinstance(trainer.args, PODSGRPOConfig)
    assert (trainer.num_rollouts, trainer.num_generations, trainer.args.down_sampling) == (16, 4, "max_variance")
    assert vars(args) == before


def test_a_config_class_of_the_user_s_own_stays_what_it_is(model_path, tmp_path):
    class OwnConfig(GRPOConfig):
        pass

    args = OwnConfig(**tiny.default_arguments(tmp_path))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    assert type(trainer.args) is OwnConfig
    assert trainer.args.num_rollouts == 16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TRL's default, bfloat16, is refused without `use_cpu`")
def test_no_config_gives_the_defaults(model_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, train_dataset=tiny.make_dataset())
    assert trainer.args.output_dir.endswith("-PODS-GRPO")
    assert (trainer.num_rollouts, trainer.num_generations) == (32, 8)


def test_case_02_the_user_s_sizes_stay_as_they_are(model_path, tmp_path):
    arguments = {"num_rollouts": 10, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, **arguments))
    before = dict(vars(args))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    changed = {name for name, value in vars(trainer.args).items() if before[name] != value}
    assert not changed
    assert trainer.num_generations == trainer.num_generations_eval == 4
    trainer.train()
    assert not {name for name, value in vars(trainer.args).items() if before[name] != value}


@pytest.mark.parametrize("iterable", [False, True])
def test_case_12_every_prompt_comes_n_times_in_batches_of_p_prompts(iterable, model_path, tmp_path):
    data = tiny.make_dataset(8)
    trainer = make_trainer(
        model_path,
        tmp_path,
        dataset=IterableDataset.from_generator(lambda: iter(data)) if iterable else data,
        num_rollouts=6,
        per_device_train_batch_size=4,
        steps_per_generation=2,
        num_iterations=2,
        shuffle_dataset=False,
    )
    batches = [[row["target"] for row in batch] for batch in trainer.get_train_dataloader()]
    # P = 2 prompts, 6 rollouts each; every generation batch is drawn once per steps_per_generation and iteration.
    assert batches == [[p] * 6 + [p + 1] * 6 for p in range(0, 8, 2) for _ in range(2 * 2)]


def best_subset(rewards, num_kept):
    """The columns of largest variance, by trying all."""
    subsets = itertools.combinations(range(len(rewards)), num_kept)
    return max(subsets, key=lambda columns: rewards[list(columns)].double().var().item())


def test_case_47_metrics_describe_all_rollouts_and_what_was_kept(model_path, tmp_path):
    seen = []

    def reward(completions, **kwargs):
        seen.append([float("a" in text) + 0.1 * i for i, text in enumerate(completions)])
        return seen[-1]

    trainer = make_trainer(model_path, tmp_path, reward_funcs=reward, num_rollouts=8, max_steps=3)
    trainer.train()
    logs = trainer.state.log_history[:-1]
    assert len(logs) == len(seen) == 3
    for log, values in zip(logs, seen, strict=True):
        rewards = torch.tensor(values).view(2, 8)
        assert log["reward"] == pytest.approx(rewards.mean().item(), rel=1e-5)
        assert log["reward_std"] == pytest.approx(rewards.std().item(), rel=1e-5)
        assert log["rewards/reward/mean"] == log["reward"]
        assert log["rewards/reward/std"] == log["reward_std"]
        assert log["frac_reward_zero_std"] == 0
        kept = torch.stack([rewards[p][list(best_subset(rewards[p], 4))] for p in range(2)])
        assert log["pods/kept_reward"] == pytest.approx(kept.mean().item(), rel=1e-5)
        assert log["pods/kept_reward_std"] == pytest.approx(kept.std().item(), rel=1e-5)
        assert log["pods/dropped_reward"] == pytest.approx(2 * rewards.mean().item() - kept.mean().item(), rel=1e-5)
        assert log["pods/kept_frac_zero_std"] == 0
        gain = kept.var(dim=1, correction=0).mean() / rewards.var(dim=1, correction=0).mean()
        assert log["pods/variance_gain"] == pytest.approx(gain.item(), rel=1e-5)
        assert 0 < log["pods/kept_token_fraction"] < 1
        assert all(math.isfinite(value) for name, value in log.items() if name.startswith("pods/"))
        times = [log[f"pods/time/{phase}"] for phase in PHASES]
        assert min(times) >= 0
        assert sum(times) < 1.5 * log["step_time"]


def test_case_37_frac_reward_zero_std_is_per_prompt_whatever_the_scaling(model_path, tmp_path):
    def half_constant(completions, target, **kwargs):
        return [1.0 if value % 2 else float(i) for i, value in enumerate(target)]

    for scale_rewards in ("group", "batch", "none"):
        trainer = make_trainer(
            model_path,
            tmp_path / scale_rewards,
            reward_funcs=half_constant,
            num_rollouts=8,
            scale_rewards=scale_rewards,
            shuffle_dataset=False,
        )
        trainer.train()
        assert [log["frac_reward_zero_std"] for log in trainer.state.log_history[:-1]] == [0.5, 0.5]
        assert [log["pods/kept_frac_zero_std"] for log in trainer.state.log_history[:-1]] == [0.5, 0.5]


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_advantages_over_all_are_those_of_grpo_with_n(aggregation, scale_rewards, model_path, tmp_path):
    """Plain GRPO with a group of n as the oracle: the same rollouts, rewards and advantages."""

    def sometimes(completions, **kwargs):
        return [None if "a" in text else float(len(set(text))) for text in completions]

    def capturing(trainer_class):
        class Capturing(trainer_class):
            def _generate_and_score_completions(self, inputs):
                output = super()._generate_and_score_completions(inputs)
                rows = zip(output["completion_ids"].tolist(), output["advantages"].tolist(), strict=True)
                self.advantages = {tuple(ids): advantage for ids, advantage in rows}
                return output

        return Capturing

    common = {
        "reward_funcs": [tiny.distinct_characters, sometimes],
        "reward_weights": [1.0, 0.5],
        "scale_rewards": scale_rewards,
        "multi_objective_aggregation": aggregation,
        "max_steps": 1,
    }
    pods = make_trainer(
        model_path,
        tmp_path / "pods",
        capturing(PODSGRPOTrainer),
        num_rollouts=16,
        rollout_batch_size=32,  # all at once, as GRPO samples them
        advantage_statistics="all",
        **common,
    )
    pods.train()
    grpo = make_trainer(
        model_path,
        tmp_path / "grpo",
        capturing(GRPOTrainer),
        num_generations=16,
        per_device_train_batch_size=32,
        **{**common, "reward_funcs": [tiny.distinct_characters, sometimes]},
    )
    grpo.train()
    assert len(pods.advantages) == 8
    for ids, advantage in pods.advantages.items():
        assert advantage == pytest.approx(grpo.advantages[ids], abs=1e-5)


class _SaveAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = state.global_step == self.step


@pytest.mark.feature("resuming")
@pytest.mark.parametrize("rule", ["max_variance", "random"])
@pytest.mark.parametrize(("steps_per_generation", "num_iterations", "accumulation"), [(1, 1, 1), (2, 2, 1), (1, 1, 2)])
def test_resuming_at_a_generation_boundary_is_bit_identical(
    rule, steps_per_generation, num_iterations, accumulation, model_path, tmp_path
):
    arguments = {
        "num_rollouts": 8,
        "down_sampling": rule,
        "per_device_train_batch_size": 4,
        "steps_per_generation": steps_per_generation,
        "num_iterations": num_iterations,
        "gradient_accumulation_steps": accumulation,
        "max_steps": 8,
    }
    whole = make_trainer(model_path, tmp_path / "whole", **arguments)
    whole.add_callback(_SaveAt(4))
    whole.train()
    expected = tiny.trained_parameters(whole)
    resumed = make_trainer(model_path, tmp_path / "whole", **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    found = tiny.trained_parameters(resumed)
    for name in expected:
        assert torch.equal(found[name], expected[name]), name

    def rewards(trainer):
        return [(log["step"], log["reward"], log["num_tokens"]) for log in trainer.state.log_history if "reward" in log]

    assert rewards(resumed) == rewards(whole)


def kept_rows(trainer):
    """For each prompt of the last generation batch, the columns that were kept."""
    flags = torch.tensor(list(trainer._logs["extra"]["kept"])).view(-1, trainer.num_rollouts)
    return [row.nonzero().flatten().tolist() for row in flags]


def test_selection_reward_selects_on_one_function_and_trains_on_the_sum(model_path, tmp_path):
    def place(completions, **kwargs):
        return [float(i % 8) for i in range(len(completions))]

    def opposite(completions, **kwargs):
        return [-100.0 * (i % 8) for i in range(len(completions))]

    for name, expected in [(None, [0, 1, 2, 3]), ("place", [4, 5, 6, 7]), ("opposite", [0, 1, 2, 3])]:
        trainer = make_trainer(
            model_path,
            tmp_path / str(name),
            reward_funcs=[place, opposite],
            num_rollouts=8,
            down_sampling="max_reward",
            selection_reward=name,
            log_completions=True,
            num_completions_to_print=0,
        )
        trainer.train()
        assert kept_rows(trainer) == [expected] * 2
        # The highest sum of the kept rows is that of the lowest place: it has the largest advantage.
        advantages = torch.tensor(list(trainer._logs["advantages"])).view(2, 8)
        assert advantages.nan_to_num(-9.0).argmax(dim=1).tolist() == [expected[0]] * 2
        assert trainer.state.log_history[0]["reward"] == pytest.approx(-99 * 3.5)


@pytest.mark.parametrize("option", ["exclude_truncated", "mask_truncated_completions"])
@pytest.mark.parametrize(("num_complete", "expected"), [(5, [1, 2, 3, 4]), (4, [0, 1, 2, 3]), (2, [0, 1, 2, 3])])
def test_cut_rollouts_are_kept_only_where_complete_ones_lack(num_complete, expected, option, model_path, tmp_path):
    """Of 8 rollouts the first `num_complete` end; reward rises with the place, so the cut ones have the highest."""

    def rollouts(prompts, trainer):
        tokenizer = trainer.processing_class
        end = [[tokenizer.eos_token_id] if i % 8 < num_complete else [6] for i in range(len(prompts))]
        return {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [[5, 5, *last] for last in end],
            "logprobs": [[0.0] * 3 for _ in prompts],
        }

    trainer = PODSGRPOTrainer(
        model_path,
        lambda completions, **kwargs: [float(i % 8) for i in range(len(completions))],
        PODSGRPOConfig(
            **tiny.default_arguments(
                tmp_path,
                num_rollouts=8,
                down_sampling="max_reward",
                log_completions=True,
                num_completions_to_print=0,
                **{option: True},
            )
        ),
        tiny.make_dataset(),
        rollout_func=rollouts,
    )
    trainer.train()
    assert kept_rows(trainer) == [expected] * 2


def test_tokens_per_second_and_peak_memory_are_those_of_the_run(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path, num_iterations=2, beta=0.1, max_steps=4)
    trained = []
    compute_loss = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (
        trained.append(inputs["completion_mask"].sum().item()) or compute_loss(model, inputs)
    )
    trainer.train()
    logs = trainer.state.log_history[:4]
    for log, tokens in zip(logs, trained, strict=True):
        seconds = log["pods/time/logps"] + log["pods/time/update"]
        assert log["pods/trained_tokens_per_second"] == pytest.approx(tokens / seconds, rel=1e-3)
    for log in logs[::2]:
        sampled = log["completions/mean_length"] * trainer.num_rollouts * 2
        expected = sampled / log["pods/time/generate"]
        assert log["pods/sampled_tokens_per_second"] == pytest.approx(expected, rel=1e-3)
    assert not any("pods/sampled_tokens_per_second" in log for log in logs[1::2])
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 2**20
    assert logs[0]["pods/peak_memory"] <= logs[-1]["pods/peak_memory"] == pytest.approx(peak, rel=0.05)


def test_one_line_says_what_is_sampled_and_trained(model_path, tmp_path, caplog):
    trainer = make_trainer(
        model_path,
        tmp_path,
        num_rollouts=12,
        per_device_train_batch_size=2,
        steps_per_generation=8,
        gradient_accumulation_steps=2,
        max_steps=1,
    )
    with caplog.at_level(logging.INFO, logger="trl_pods"):
        trainer.train()
    [line] = [record.message for record in caplog.records if record.name.startswith("trl_pods")]
    assert line == (
        "Each generation batch: 4 prompts, 48 rollouts sampled (12 per prompt), 16 rows trained (4 per prompt), "
        "2 rows per micro-batch and process, 4 optimizer steps. An epoch: 16 optimizer steps. "
        "The rows of prompts whose rewards are equal are skipped."
    )


def test_the_model_card_is_about_pods(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path, num_rollouts=8)
    trainer.create_model_card(model_name="mine")
    card = (tmp_path / "README.md").read_text()
    assert "2504.13818" in card
    assert "pods" in card
    assert "PODS-GRPO" in card


def test_memory_of_a_generation_batch_is_released(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path, num_rollouts=8, max_steps=1)
    trainer.train()
    assert not {"_generate", "_calculate_rewards"} & vars(trainer).keys()
    assert not [thing for thing in gc.get_objects() if type(thing) is Selection]
