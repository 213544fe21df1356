"""
Does `trl-pods plan` rank pairs (n, m) as training does? Writes benchmarks/results/plan.json.

The plan is made from three short runs; the sweep it is held against is what `bench_time_to_accuracy.py --set sizes` has
trained. What is predicted is signal per second; what is measured is the mean accuracy over the time of training.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_plan
"""

import argparse
import json
from pathlib import Path

import numpy as np

from trl_pods.comparison.curves import Curve, area
from trl_pods.planning.ranks import rank_correlation
from trl_pods.scripts.plan import run

from .bench_time_to_accuracy import RECIPE
from .environment import RESULTS, report
from .regimes import SETS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/time_to_accuracy"))
    parser.add_argument("--max_seconds", type=float, nargs="+", default=[2.0, 4.0, 12.0])
    own = parser.parse_args()
    regimes = SETS["sizes"]
    found = json.loads((RESULTS / "time_to_accuracy_sizes.json").read_text())["regimes"]
    results = {(regime.n, regime.m): found[regime.name]["methods"]["pods"] for regime in regimes}
    plan = run(
        [
            *("--config", str(RECIPE), "--output_dir", str(own.output_dir / "plan"), "--plan_steps", "20"),
            *("--rollouts", *map(str, sorted({n for n, _ in results}))),
            *("--kept", *map(str, sorted({m for _, m in results}))),
            *regimes[-1].options(str(own.output_dir / "start_models")),  # whose micro-batch holds those of all others
        ]
    )
    predictions = {"S / s": plan.signal_per_second, "sqrt(S) / s": plan.root_signal_per_second}
    accuracies = {f"{b:g} s": {pair: mean_area(r, b) for pair, r in results.items()} for b in own.max_seconds}
    correlations = {
        name: {budget: rank_correlation(predicted, accuracy) for budget, accuracy in accuracies.items()}
        for name, predicted in predictions.items()
    }
    seconds = {(pair.num_rollouts, pair.num_generations): pair.seconds for pair in plan.pairs}
    measured = {pair: values["seconds_per_step"]["step"] for pair, values in results.items()}
    report(
        "plan",
        {
            "rank_correlation_with_mean_accuracy": correlations,
            "rank_correlation_of_step_seconds": rank_correlation(seconds, measured),
            "recommended": plan.as_dict()["recommended"],
            "pairs": [
                {
                    "num_rollouts": n,
                    "num_generations": m,
                    "predicted": {name: predicted[n, m] for name, predicted in predictions.items()},
                    "predicted_step_seconds": seconds[n, m],
                    "step_seconds": measured[n, m],
                    "mean_accuracy": {budget: accuracy[n, m] for budget, accuracy in accuracies.items()},
                }
                for n, m in results
            ],
        },
    )


def mean_area(values: dict, budget: float) -> float:
    """Mean accuracy over the time, of all seeds."""
    curves = [Curve(*(np.array(curve[key]) for key in ("seconds", "steps", "accuracy"))) for curve in values["curves"]]
    return float(np.mean([area(curve, budget) for curve in curves]))


if __name__ == "__main__":
    main()
