"""
How time and memory grow with the rollouts, up to 4,096 for each of 256 prompts.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_scale

A `rollout_func` makes two tokens for each rollout, so that what is left is the work on rows: TRL's and ours. Of each
prompt 2 rollouts are trained. Each size runs in a process of its own: seconds of a step and of selecting in it, medians
of all steps but the first, and the memory that the training added at its peak. Growth is given as the exponent between
the two largest sizes of a column: 1 is linear, 2 would be quadratic.
"""

import math
import multiprocessing
import random
import resource
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from datasets import Dataset

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

from .environment import ON_CPU, report, save_model

BY_ROLLOUTS = [(4, n) for n in (64, 256, 1024, 4096)]
BY_PROMPTS = [(P, 16) for P in (4, 16, 64, 256)]
LARGEST = (256, 4096)
NUM_STEPS = 6


def rollouts(prompts, trainer):
    rng = random.Random(0)
    return {
        "prompt_ids": [[2]] * len(prompts),
        "completion_ids": [[rng.randrange(2, 250), 1] for _ in prompts],
        "logprobs": None,
    }


def measure(sizes: tuple[int, int]) -> dict[str, float]:
    """Seconds of a step, and megabytes."""
    num_prompts, num_rollouts = sizes
    with tempfile.TemporaryDirectory() as folder:
        trainer = PODSGRPOTrainer(
            model=save_model(Path(folder) / "model", hidden_size=32, num_layers=1),
            reward_funcs=lambda completion_ids, **kwargs: [float(ids[0] % 7) for ids in completion_ids],
            rollout_func=rollouts,
            args=PODSGRPOConfig(
                output_dir=folder,
                num_rollouts=num_rollouts,
                num_generations=2,
                per_device_train_batch_size=2 * num_prompts,
                max_steps=NUM_STEPS,
                logging_steps=1,
                save_strategy="no",
                **ON_CPU,
            ),
            train_dataset=Dataset.from_dict({"prompt": [f"w{i % 250}" for i in range(num_prompts)]}),
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trainer.train()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = [log for log in trainer.state.log_history if "reward" in log][1:]
    return {
        "prompts": num_prompts,
        "rollouts": num_rollouts,
        "step_seconds": round(statistics.median(log["step_time"] for log in steps), 3),
        "select_seconds": round(statistics.median(log["pods/time/select"] for log in steps), 4),
        "peak_megabytes": round((after - before) / 1024, 1),
    }


def exponent(larger: dict[str, float], smaller: dict[str, float], what: str) -> float | None:
    """Of the growth from one size to another."""
    rows = [size["prompts"] * size["rollouts"] for size in (larger, smaller)]
    if smaller[what] <= 0:
        return None
    return round(math.log(larger[what] / smaller[what]) / math.log(rows[0] / rows[1]), 2)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        by_rollouts, by_prompts = (list(pool.map(measure, sizes)) for sizes in (BY_ROLLOUTS, BY_PROMPTS))
        largest = pool.submit(measure, LARGEST).result()
    measured = ("step_seconds", "select_seconds", "peak_megabytes")
    report(
        "scale",
        {
            "sizes": [*by_rollouts, *by_prompts, largest],
            "exponents": {
                name: {what: exponent(*pair, what) for what in measured}
                for name, pair in (
                    ("rollouts", (by_rollouts[-1], by_rollouts[-2])),
                    ("prompts", (by_prompts[-1], by_prompts[-2])),
                    ("both", (largest, by_rollouts[-1])),
                )
            },
        },
    )


if __name__ == "__main__":
    main()
