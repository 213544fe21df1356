"""
Whether a long run stays as it was: resident memory and seconds of a step over 2,000 steps.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_soak

A tiny model, 4 prompts, 32 rollouts sampled and 4 trained of each, with the completions table and a checkpoint every
100 steps of which two are kept. The run is cut into tenths: memory is what the process holds at the end of each, time
is the median of its steps. The first tenth is left out of what is compared: it fills caches.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from datasets import Dataset
from transformers import TrainerCallback

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

from .environment import ON_CPU, megabytes, report, save_model

TENTHS = 10


class Watch(TrainerCallback):
    """Takes memory and time at the end of each step."""

    def __init__(self):
        self.megabytes: list[float] = []
        self.seconds: list[float] = []
        self._started = 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self._started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds.append(time.perf_counter() - self._started)
        self.megabytes.append(megabytes("VmRSS"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    own = parser.parse_args()
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = PODSGRPOTrainer(
            model=save_model(Path(folder) / "model", hidden_size=32, num_layers=2),
            reward_funcs=lambda completions, **kwargs: [float(len(set(c.split()))) for c in completions],
            args=PODSGRPOConfig(
                output_dir=str(Path(folder) / "run"),
                num_rollouts=32,
                num_generations=4,
                per_device_train_batch_size=16,
                max_completion_length=8,
                max_steps=own.steps,
                save_steps=100,
                save_total_limit=2,
                logging_steps=10,
                log_completions=True,
                num_completions_to_print=0,
                learning_rate=1e-5,
                **ON_CPU,
            ),
            train_dataset=Dataset.from_dict({"prompt": [f"w{i} w{i + 1}" for i in range(64)]}),
            callbacks=[watch],
        )
        trainer.train()
    size = own.steps // TENTHS
    parts = [slice(i * size, (i + 1) * size) for i in range(TENTHS)]
    held = [watch.megabytes[part][-1] for part in parts]
    medians = [statistics.median(watch.seconds[part]) for part in parts]
    report(
        "soak",
        {
            "steps": own.steps,
            "megabytes": [round(value, 1) for value in held],
            "seconds_per_step": [round(value, 4) for value in medians],
            "growth_in_megabytes": round(held[-1] - held[1], 1),
            "last_over_second_tenth_in_seconds": round(medians[-1] / medians[1], 3),
        },
    )


if __name__ == "__main__":
    main()
