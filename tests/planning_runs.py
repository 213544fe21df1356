"""Folders of finished runs, written by hand: times and pass rates are known."""

import json

import numpy as np
import pandas as pd

from trl_pods.planning.cost import CostModel
from trl_pods.runs.record import RunRecord

COST = CostModel(0.5, 0.02, 0.3, 0.05, selecting=0.01)


def write_run(folder, n, m, *, cost=COST, rewards=None, steps=6, log=None, tables=True, **record):
    """A run of 4 prompts per generation batch; `rewards(step)` gives those of its rollouts, of shape (4, n)."""
    values = {
        "num_prompts": 4,
        "num_rollouts": n,
        "num_generations": m,
        "down_sampling": "max_variance",
        "per_device_train_batch_size": 4 * m,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "num_iterations": 1,
        "num_processes": 1,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "seed": 0,
        "reward_names": ["right"],
        "reward_weights": [1.0],
        "model": "start",
        "device": "cpu",
        "versions": {},
    }
    RunRecord(**values | record).write(folder)
    rewards = rewards or half_right(n)
    entries = [log_entry(step, n, m, cost, rewards(step)) for step in range(1, steps + 1)] if log is None else log
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": entries}))
    if tables:
        (folder / "completions").mkdir(exist_ok=True)
        for step in range(1, steps + 1):
            write_table(folder, step, rewards(step), m)
    return folder


def half_right(n):
    return lambda step: (np.random.default_rng(step).random((4, n)) < 0.5).astype(float)


def log_entry(step, n, m, cost, rewards):
    slow = 10 if step == 1 else 1  # compiling
    seconds = {
        "generate": slow * (cost.per_batch_sampled + 0.75 * cost.per_rollout * n),
        "reward": 0.25 * cost.per_rollout * n,
        "select": cost.selecting,
        "logps": cost.per_batch_trained,
        "update": 0.5 * cost.per_kept * m,
    }
    in_a_phase = sum(seconds.values())
    return {f"pods/time/{phase}": value for phase, value in seconds.items()} | {
        "step": step,
        "step_time": in_a_phase + 0.5 * cost.per_kept * m,
        "rewards/right/mean": rewards.mean(),
        "rewards/right/std": rewards.std(),
        "frac_reward_zero_std": float((rewards.std(axis=1) == 0).mean()),
    }


def write_table(folder, step, rewards, m):
    kept = np.zeros(rewards.shape, dtype=bool)
    kept[:, :m] = True
    table = pd.DataFrame({"step": step, "prompt": "?", "right": rewards.flatten(), "kept": kept.flatten()})
    table.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")
