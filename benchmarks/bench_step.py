"""
What a step costs, as ratios from one run.

1. Overhead: `PODSGRPOTrainer` with n = m against `GRPOTrainer`, which trains the very same rows.
2. Sum of phases: PODS with n > m against what plain GRPO pays for the same parts, that is generation and rewards of a
   GRPO step with groups of n, and all the rest of a GRPO step with groups of m.

    python benchmarks/bench_step.py

Runs of the trainers take turns, so that what else the machine does falls on all alike; every ratio is taken within one
turn. All completions have the same length. Times are the process's CPU seconds in one thread, because the machines that
this runs on are shared; wall-clock ratios stand beside them.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import environment
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

NUM_PROMPTS, N, M, COMPLETION_LENGTH = 8, 64, 16, 16
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


def timed(trainer_class):
    """The trainer, with the seconds of each optimizer step and of its generation and rewards, by both clocks."""

    class Timed(trainer_class):
        def _generate(self, prompts):
            return self._add("sampling", super()._generate, prompts)

        def _calculate_rewards(self, *args):
            return self._add("sampling", super()._calculate_rewards, *args)

        def training_step(self, *args):
            self.seconds = [*getattr(self, "seconds", []), {}]
            self.starts = [*getattr(self, "starts", []), {name: clock() for name, clock in CLOCKS.items()}]
            return super().training_step(*args)

        def _add(self, part, function, *args):
            before = {name: clock() for name, clock in CLOCKS.items()}
            result = function(*args)
            for name, clock in CLOCKS.items():
                key = (part, name)
                self.seconds[-1][key] = self.seconds[-1].get(key, 0.0) + clock() - before[name]
            return result

    return Timed


def reward(completions, **kwargs):
    return [float(len(set(completion.split()))) for completion in completions]


def run(model_path, output_dir, trainer_class, num_generations, steps, **arguments):
    """Median over steps of the seconds of a step and of its sampling, by both clocks. The first step is left out."""
    config_class = PODSGRPOConfig if trainer_class is PODSGRPOTrainer else GRPOConfig
    trainer = timed(trainer_class)(
        model=model_path,
        reward_funcs=reward,
        args=config_class(
            output_dir=output_dir,
            num_generations=num_generations,
            per_device_train_batch_size=NUM_PROMPTS * num_generations,
            max_completion_length=COMPLETION_LENGTH,
            generation_kwargs={"min_new_tokens": COMPLETION_LENGTH},
            max_steps=steps + 2,
            logging_steps=1000,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            **arguments,
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in range(200)]}),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    measured = {}
    for name in CLOCKS:
        starts = [start[name] for start in trainer.starts]  # from one step's start to the next: the optimizer included
        measured[name, "step"] = statistics.median(b - a for a, b in itertools.pairwise(starts[1:]))
        measured[name, "sampling"] = statistics.median(s["sampling", name] for s in trainer.seconds[1:-1])
    return measured


def summary(ratios):
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "median": round(statistics.median(ratios), 4),
        "quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)],
    }


def main(turns, steps):
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    ratios = {(kind, name): [] for kind in ("n_equal_m", "sum_of_phases", "grpo_n") for name in CLOCKS}
    with tempfile.TemporaryDirectory() as folder:
        model_path = environment.save_model(Path(folder) / "model", hidden_size=64, num_layers=2)
        for turn in range(turns):
            pods_m = ("pods_m", PODSGRPOTrainer, M, {"num_rollouts": M})
            kinds = [("grpo_m", GRPOTrainer, M, {}), pods_m, ("grpo_m_again", GRPOTrainer, M, {})]
            kinds += [("pods", PODSGRPOTrainer, M, {"num_rollouts": N}), ("grpo_n", GRPOTrainer, N, {})]
            got = {name: run(model_path, folder, cls, group, steps, **extra) for name, cls, group, extra in kinds}
            for name in CLOCKS:
                step, sampling = (name, "step"), (name, "sampling")
                grpo_m = (got["grpo_m"][step] + got["grpo_m_again"][step]) / 2  # before and after, against drift
                rest = grpo_m - (got["grpo_m"][sampling] + got["grpo_m_again"][sampling]) / 2
                ratios["n_equal_m", name].append(got["pods_m"][step] / grpo_m)
                ratios["sum_of_phases", name].append(got["pods"][step] / (got["grpo_n"][sampling] + rest))
                ratios["grpo_n", name].append(got["grpo_n"][step] / got["pods"][step])
            print(f"turn {turn + 1}/{turns}: " + ", ".join(f"{k} {n} {r[-1]:.3f}" for (k, n), r in ratios.items()))
    environment.report(
        "step",
        {
            "benchmark": "step",
            "sizes": {"prompts": NUM_PROMPTS, "n": N, "m": M, "completion_length": COMPLETION_LENGTH},
            "turns": turns,
            "steps_per_turn": steps,
            "seeds": [42],
            **{
                label: {name: summary(ratios[kind, name]) for name in CLOCKS}
                for kind, label in {
                    "n_equal_m": "pods_at_n_equal_m_over_grpo",
                    "sum_of_phases": "pods_step_over_sum_of_grpo_phases",
                    "grpo_n": "grpo_at_n_over_pods_step",
                }.items()
            },
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30, help="how often the trainers take turns")
    parser.add_argument("--steps", type=int, default=8, help="measured steps of each trainer in a turn")
    main(**vars(parser.parse_args()))
