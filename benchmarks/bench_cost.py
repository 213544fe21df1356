"""
What it costs to reach an accuracy, in rollouts sampled and rows trained, over regimes; writes benchmarks/results/cost/.

    python -m benchmarks.bench_cost --minutes 60

The steps that a training needs do not depend on the machine, so trainings of one regime may run at any time, beside any
load. Each is a line of `results/cost/REGIME.jsonl`; what is there is not trained again, so that the benchmark goes on
where it was. `cost_tables.py` reads the lines.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .environment import ON_CPU, RESULTS, describe

FOLDER = RESULTS / "cost"
NUM_PROMPTS, NUM_EVALUATED = 8, 256
SEEDS, TUNING_SEEDS = range(8), (1000, 1001)
TASKS = {  # settings of the task, tokens of its longest answer and end
    "rotate_matrix": ({"min_n": 2, "max_n": 2, "min_rotations": 1, "max_rotations": 1}, 9),
    "palindrome_generation": ({"min_length": 3, "max_length": 5}, 7),
    "spell_backward": ({"min_word_len": 3, "max_word_len": 5}, 7),  # its reward is the share of right letters
}
STARTS = {"5": 0.5, "40": 0.78, "90": 0.96}  # per cent right with `rotate_matrix`, and share of right labels
LARGE = {"hidden_size": 256, "num_layers": 4, "learning_rate": 1e-3}  # 2.7 million parameters


@dataclass(frozen=True)
class Method:
    """What a method samples and trains of a prompt, and the options by which it does."""

    n: int
    m: int
    zero_variance: str
    prompt_oversampling: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.zero_variance}_{self.n}_{self.m}" + ("_over2" if self.prompt_oversampling > 1 else "")

    @property
    def is_baseline(self) -> bool:
        return self.n == self.m and self.zero_variance == "train"


BASELINES = [Method(4, 4, "train"), Method(8, 8, "train"), Method(32, 32, "train")]
GRID = [Method(n, 4, zero_variance) for n in (8, 16, 32) for zero_variance in ("train", "skip", "drop")]
OVERSAMPLED = Method(16, 4, "drop", 2.0)
FULL = [*BASELINES, Method(4, 4, "drop"), *GRID, OVERSAMPLED]
EVERYWHERE = [Method(4, 4, "drop"), Method(16, 4, "skip"), Method(16, 4, "drop"), OVERSAMPLED]
FEW = [*BASELINES, *EVERYWHERE, Method(32, 4, "train"), Method(32, 4, "drop")]
LARGE_ONES = [Method(4, 4, "train"), Method(16, 16, "train"), *EVERYWHERE]


@dataclass(frozen=True)
class Regime:
    """A task, the accuracy that training starts from, the model, and the methods that are compared."""

    task: str
    start: str
    methods: list[Method]
    max_steps: int
    learning_rates: tuple[float, ...] = (5e-4, 1e-3, 2e-3)
    num_eval_samples: int = 2  # per problem
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.task}_{self.start}" + ("_large" if self.model else "")


REGIMES = [
    Regime("rotate_matrix", "5", FULL, 160),
    Regime("rotate_matrix", "40", FEW, 160),
    Regime("rotate_matrix", "90", FEW, 80, num_eval_samples=1),
    Regime("palindrome_generation", "5", FEW, 200, (1.25e-4, 2.5e-4, 5e-4), num_eval_samples=1),
    Regime("spell_backward", "5", FEW, 200, (1.25e-4, 2.5e-4, 5e-4)),
    Regime("rotate_matrix", "5", LARGE_ONES, 80, (2.5e-5, 5e-5, 1e-4), 1, LARGE),
]


@dataclass(frozen=True)
class Training:
    """One training."""

    regime: Regime
    method: Method
    learning_rate: float
    seed: int

    @property
    def key(self) -> tuple:
        return self.method.name, self.learning_rate, self.seed


def train(training: Training, start_models: str) -> dict[str, Any]:
    """Train, and say what came of it: the curve, and what its rollouts and rows cost here."""
    import torch
    from transformers import PrinterCallback

    from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
    from trl_pods.data import adapt, load_task
    from trl_pods.lab.costs import measure_prices
    from trl_pods.lab.curves import read_curve
    from trl_pods.rewards import reasoning_gym_reward
    from trl_pods.wall_clock import WallClockCallback

    from .start_points import is_right

    torch.set_num_threads(1)
    regime, method = training.regime, training.method
    num_tokens = TASKS[regime.task][1]
    data = adapt(load_task(regime.task, settings(regime)), "reasoning_gym", conversational=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = PODSGRPOTrainer(
            model=f"{start_models}/{regime.name}",
            reward_funcs=[is_right, reasoning_gym_reward],
            args=PODSGRPOConfig(
                output_dir=folder,
                reward_weights=[0.0, 1.0] if regime.task == "spell_backward" else [1.0, 0.0],
                num_rollouts=method.n,
                num_generations=method.m,
                rollout_batch_size=2 * NUM_PROMPTS * method.n,  # all at once
                zero_variance=method.zero_variance,
                prompt_oversampling=method.prompt_oversampling,
                per_device_train_batch_size=NUM_PROMPTS * method.m,
                per_device_eval_batch_size=NUM_EVALUATED * regime.num_eval_samples,
                num_generations_eval=regime.num_eval_samples,
                max_completion_length=num_tokens,
                max_steps=regime.max_steps,
                learning_rate=training.learning_rate,
                lr_scheduler_type="constant",
                seed=training.seed,
                gradient_checkpointing=False,
                logging_steps=1,
                eval_strategy="steps",
                eval_steps=5,
                eval_on_start=True,
                save_strategy="no",
                **ON_CPU,
            ),
            train_dataset=data["train"],
            eval_dataset=data["test"],
        )
        trainer.remove_callback(PrinterCallback)
        WallClockCallback().attach(trainer)
        trainer.train()
        trainer.save_state()
        curve = read_curve(Path(folder), "eval_rewards/is_right/mean")
        prices = measure_prices([Path(folder)])
    return {
        **{"method": method.name, "learning_rate": training.learning_rate, "seed": training.seed},
        **{name: getattr(curve, name).astype(int).tolist() for name in ("steps", "rollouts", "rows")},
        "accuracy": curve.accuracy.round(4).tolist(),
        "seconds": curve.seconds.round(1).tolist(),
        "prices": [float(f"{price:.4g}") for price in prices],
    }


def settings(regime: Regime) -> dict[str, Any]:
    """Give the settings of the task."""
    return TASKS[regime.task][0] | {"size": 4000, "test_size": NUM_EVALUATED}


def prepare(regime: Regime, start_models: str) -> None:
    """Make the initial checkpoint."""
    from . import start_points

    share = STARTS[regime.start]
    folder = f"{start_models}/{regime.name}"
    start_points.prepare(folder, regime.task, settings(regime), share_right=share, **regime.model)


def read(regime: Regime) -> list[dict[str, Any]]:
    """Read the trainings of a regime."""
    path = FOLDER / f"{regime.name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(regime: Regime) -> Iterator[Training]:
    """Give what is left to train: to tune first, then to compare at the learning rates that were chosen."""
    from .cost_tables import chosen_rates

    lines = read(regime)
    done = {(line["method"], line["learning_rate"], line["seed"]) for line in lines}
    tuning = [
        Training(regime, method, rate, seed)
        for seed in TUNING_SEEDS
        for rate in regime.learning_rates
        for method in regime.methods
    ]
    if left := [training for training in tuning if training.key not in done]:
        yield from left
        return
    rates = chosen_rates(regime, lines)
    for seed in SEEDS:
        for method in regime.methods:
            training = Training(regime, method, rates[method.name], seed)
            if training.key not in done:
                yield training


def work(regime: Regime, pool: ProcessPoolExecutor, until: float, num_jobs: int, start_models: str) -> bool:
    """Train what is missing of a regime until the time is over; tells whether nothing is."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    pool.submit(prepare, regime, start_models).result()
    while todo := list(missing(regime)):
        running = set()
        while todo or running:
            while todo and len(running) < num_jobs and time.monotonic() < until:
                running.add(pool.submit(train, todo.pop(0), start_models))
            if not running:
                return False
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            with (FOLDER / f"{regime.name}.jsonl").open("a") as file:
                for future in finished:
                    file.write(json.dumps(future.result()) + "\n")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=300, help="after which no training is begun")
    parser.add_argument("--num_jobs", type=int, default=2, help="trainings at a time, with one thread each")
    parser.add_argument("--regimes", nargs="+", default=[regime.name for regime in REGIMES])
    parser.add_argument("--start_models", default="runs/cost/start_models", help="folder for the initial checkpoints")
    own = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # of the processes that train
    until = time.monotonic() + 60 * own.minutes
    with ProcessPoolExecutor(own.num_jobs, mp_context=get_context("spawn")) as pool:
        for regime in REGIMES:
            if regime.name in own.regimes:
                is_complete = work(regime, pool, until, own.num_jobs, own.start_models)
                print(f"{regime.name}: {'complete' if is_complete else 'to be continued'}", flush=True)
    (FOLDER / "environment.json").write_text(json.dumps(describe(), indent=2) + "\n")


if __name__ == "__main__":
    main()
