"""What the tests of sharded training share: the cases, training one, and what its processes have written."""

import json
from pathlib import Path

import tiny
import torch
from distributed_worker import deterministic_rollouts, labelled_reward, recording
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

DOWN_SAMPLED = ["two_groups", "one_group", "generated", "skipped"]
EXACT = ["grpo", "n_equal_m"]

# 8 trained rows per generation batch over both processes. With m = 4 there are P = 2 prompts, with m = 8 only one.
CASES = {
    "two_groups": {"num_generations": 4, "num_rollouts": 8},
    "one_group": {"num_generations": 8, "num_rollouts": 16, "beta": 0.1, "advantage_statistics": "all"},
    "skipped": {"num_generations": 4, "num_rollouts": 8},
    "generated": {"num_generations": 4, "num_rollouts": 8, "beta": 0.1},
    "grpo": {"num_generations": 4, "beta": 0.1, "num_iterations": 2, "steps_per_generation": 2},
    "n_equal_m": {
        "num_generations": 4,
        "num_rollouts": 4,
        "beta": 0.1,
        "num_iterations": 2,
        "steps_per_generation": 2,
    },
}


def often_equal(target, **kwargs) -> list[float]:
    """A reward that is equal for the rollouts of every other prompt."""
    rewards = labelled_reward(target=target, **kwargs)
    return [reward if number % 2 else 1.0 for reward, number in zip(rewards, target, strict=True)]


REWARDS = {"two_groups": labelled_reward, "one_group": labelled_reward, "skipped": often_equal}


def train(model_path: str, output_dir: Path, case: str, arguments: dict, adapt=lambda trainer_class: trainer_class):
    """Train a case with what shards it: arguments, and a change of the trainer's class."""
    is_grpo = case == "grpo"
    config = (GRPOConfig if is_grpo else PODSGRPOConfig)(
        **tiny.default_arguments(
            output_dir,
            per_device_train_batch_size=4 // arguments.get("steps_per_generation", 1),
            max_steps=4,
            learning_rate=1e-2,
            ddp_timeout=60,
            # Adam would divide by gradients that are zero but for rounding, and so show the rounding.
            optim="adamw_torch" if case in EXACT else "sgd",
            **arguments,
        )
    )
    trainer = adapt(recording(GRPOTrainer if is_grpo else PODSGRPOTrainer))(
        model=model_path,
        reward_funcs=REWARDS.get(case, tiny.distinct_characters),
        args=config,
        train_dataset=tiny.make_dataset(),
        rollout_func=deterministic_rollouts if case in REWARDS else None,
    )
    trainer.train()
    return trainer


def save(trainer, output_dir: Path, name: str, sharding: dict, parameters: dict) -> None:
    """Write what each process kept and holds, and the parameters."""
    rank = trainer.accelerator.process_index
    (output_dir / f"{name}.{rank}.json").write_text(json.dumps({"kept": trainer.kept, **sharding}))
    if rank == 0:
        torch.save(parameters, output_dir / f"{name}.pt")


def load(results: Path, sharding: str, case: str) -> tuple[list[dict], dict]:
    """What each process has written of a case, and the parameters."""
    ranks = [json.loads((results / f"{sharding}.{case}.{rank}.json").read_text()) for rank in range(2)]
    return ranks, torch.load(results / f"{sharding}.{case}.pt")


def assert_trained_alike(results: Path, sharding: str, case: str) -> list[dict]:
    """The same kept rows and, but for rounding, the same parameters as under DDP, of whose processes it tells."""
    not_sharded, expected = load(results, "ddp", case)
    ranks, found = load(results, sharding, case)
    assert [rank["kept"] for rank in ranks] == [rank["kept"] for rank in not_sharded]
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-6, msg=name)
    rows = [len(batch) for batch in ranks[0]["kept"]]
    assert (min(rows) < 4) == (case == "skipped"), "prompts were skipped, or none was"
    return not_sharded


def assert_n_equal_m_is_grpo(results: Path, sharding: str) -> None:
    grpo, expected = load(results, sharding, "grpo")
    pods, found = load(results, sharding, "n_equal_m")
    assert [rank["kept"] for rank in pods] == [rank["kept"] for rank in grpo]
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
