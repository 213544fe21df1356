"""Warnings of a training that cannot learn, and none where it can."""

import math

import pytest
import tiny
from recording import make_trainer

from trl_pods import PODSGRPOConfig
from trl_pods.checks.learning_signal import PATIENCE, LearningSignal


def batch(zero_std=0.5, kept_zero_std=None, clipped=0.0, reward=0.25):
    metrics = {"frac_reward_zero_std": zero_std, "completions/clipped_ratio": clipped, "reward": reward}
    return metrics | ({} if kept_zero_std is None else {"pods/kept_frac_zero_std": kept_zero_std})


def warnings_of(batches, caplog, tmp_path, **arguments):
    signal = LearningSignal(PODSGRPOConfig(**tiny.default_arguments(tmp_path, **arguments)))
    metrics: dict[str, list[float]] = {}
    for values in batches:
        for name, value in values.items():
            metrics.setdefault(name, []).append(value)
        signal.see(metrics)
        if len(metrics["reward"]) == 3:  # TRL clears them when it logs
            metrics = {name: [] for name in metrics}
    assert all(record.name == "trl_pods.checks.learning_signal" for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        (batch(zero_std=1.0), {}, "equal rewards (mean reward 0.25)"),
        (batch(zero_std=1.0, kept_zero_std=1.0), {}, "equal rewards (mean reward 0.25)"),
        (batch(zero_std=1.0, reward=math.nan), {}, "no reward function scored a rollout"),
        (batch(kept_zero_std=1.0), {"down_sampling": "max_reward"}, "`down_sampling='max_reward'` kept"),
        (batch(clipped=0.96), {}, "`max_completion_length` (6 tokens)"),
    ],
)
def test_trouble_that_lasts_is_warned_of_once(values, arguments, message, caplog, tmp_path):
    assert not warnings_of([values] * (PATIENCE - 1), caplog, tmp_path, **arguments)
    [warning] = warnings_of([values] * 3 * PATIENCE, caplog, tmp_path, **arguments)
    assert message in warning
    assert f"{PATIENCE} generation batches in a row" in warning


@pytest.mark.parametrize("trouble", [{"zero_std": 1.0}, {"kept_zero_std": 1.0}, {"clipped": 1.0}])
def test_trouble_that_comes_and_goes_is_not(trouble, caplog, tmp_path):
    batches = ([batch(**trouble)] * (PATIENCE - 1) + [batch(kept_zero_std=0.9)]) * 3
    assert not warnings_of(batches, caplog, tmp_path)


def test_equal_kept_rewards_teach_with_statistics_over_all(caplog, tmp_path):
    batches = [batch(kept_zero_std=1.0)] * 2 * PATIENCE
    assert not warnings_of(batches, caplog, tmp_path, advantage_statistics="all")


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_a_training_that_learns_is_not_warned_of(num_rollouts, model_path, tmp_path, caplog):
    # Most of these completions are cut, but not nearly all.
    arguments = {"num_rollouts": num_rollouts, "max_completion_length": 48, "max_steps": PATIENCE + 1}
    trainer = make_trainer(model_path, tiny.distinct_characters, tmp_path, **arguments)
    trainer.train()
    assert min(trainer.logged("completions/clipped_ratio")) < 0.95
    assert not [record for record in caplog.records if record.name.startswith("trl_pods")]


def test_batches_that_are_trained_several_times_count_once(model_path, tmp_path, caplog):
    def constant(completions, **kwargs):
        return [0.5] * len(completions)

    arguments = {"num_iterations": 2, "max_steps": 2 * PATIENCE - 2}
    make_trainer(model_path, constant, tmp_path / "fewer", **arguments).train()
    assert not caplog.records
    make_trainer(model_path, constant, tmp_path / "enough", **arguments | {"max_steps": 2 * PATIENCE}).train()
    assert any("No learning signal" in record.getMessage() for record in caplog.records)
