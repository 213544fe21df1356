"""
How much sooner PODS reaches what plain GRPO reaches, over regimes; writes benchmarks/results/time_to_accuracy_SET.json.

Each regime is one `trl-pods compare`: GRPO with m, GRPO with n in accumulated micro-batches, and PODS, each with its
own learning rate, chosen on other seeds. Run it from the repository; interrupted, it goes on where it was:

    OMP_NUM_THREADS=1 python -m benchmarks.bench_time_to_accuracy --set map --num_jobs 2
"""

import argparse
import json
from pathlib import Path
from typing import Any

from trl_pods.lab.command import run

from .environment import RESULTS, describe
from .regimes import SETS, Regime

RECIPE = Path("recipes") / "cpu_rotate_matrix_pods.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=list(SETS), required=True, help="which regimes")
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2", "3", "4"])
    parser.add_argument("--learning_rates", nargs="+", default=["5e-4", "1e-3", "2e-3"])
    parser.add_argument("--tuning_seeds", nargs="+", default=["1000", "1001"])
    parser.add_argument("--max_seconds", default="12")
    parser.add_argument("--methods", nargs="+", default=["grpo", "grpo_n", "pods"])
    parser.add_argument("--num_jobs", default="1")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/time_to_accuracy"))
    own = parser.parse_args()
    results = RESULTS / f"time_to_accuracy_{own.set}.json"
    found: dict[str, Any] = {}
    for regime in SETS[own.set]:
        found[regime.name] = compare(regime, own)
        results.write_text(
            json.dumps({"regimes": found, "settings": vars(own) | {"output_dir": "", **describe()}}) + "\n"
        )


def compare(regime: Regime, own: argparse.Namespace) -> dict[str, Any]:
    """Compare the methods in one regime."""
    print(f"--- {regime.name}", flush=True)
    lists = ("seeds", "learning_rates", "tuning_seeds", "methods")
    words = [word for name in lists for word in (f"--{name}", *getattr(own, name))]
    every = str(float(own.max_seconds) / 12)
    return run(
        [
            *("--config", str(RECIPE), *words, "--num_jobs", own.num_jobs),
            *("--output_dir", str(own.output_dir / regime.name)),
            *("--max_seconds", own.max_seconds, "--eval_seconds", every),
            *regime.options(str(own.output_dir / "start_models")),
        ]
    )


if __name__ == "__main__":
    main()
