"""
The speedup of a method to what plain GRPO reaches, with an interval over the seeds.

The target is a share, 98.5 %, of the best accuracy of the better GRPO baseline, on the mean curve of its seeds, and the
baselines' cost is that of the one that gets there for the least. Where GRPO has learned nothing, there is no such cost:
its best must lie above the accuracy of the start by more than 3 standard deviations of an evaluation, which the
evaluations of the initial checkpoint tell. The interval is the bootstrap's, over seeds that all methods share.

Cost is seconds, steps, or rollouts sampled + c * rows trained, at a cost ratio c: what a trained row costs in sampled
rollouts. How many rollouts and rows a method needs does not depend on the machine; c does.
"""

import math
from dataclasses import dataclass

import numpy as np

from .costs import Prices
from .curves import Axis, Curve, area, first_reached, mean_curve

SHARE = 0.985
TABULATED = (3.0, 10.0, 30.0)  # cost ratios
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Outcome:
    """The cost to a target, and how it compares."""

    target: float
    costs: dict[str, float]
    ratios: dict[str, float]
    intervals: dict[str, tuple[float, float]]


def compare(curves: dict[str, list[Curve]], baselines: list[str], axis: Axis, share: float = SHARE) -> Outcome:
    """Compare methods by the cost, along an axis, of a share of the best accuracy of plain GRPO."""
    per_seed = {name: mean_curve(runs, axis) for name, runs in curves.items()}
    num_seeds = len(next(iter(curves.values())))
    rng = np.random.default_rng(0)

    def costs(seeds: np.ndarray) -> tuple[float, dict[str, float]]:
        means = {name: (grid, accuracy[seeds].mean(axis=0)) for name, (grid, accuracy) in per_seed.items()}
        target = share * max(means[name][1].max() for name in baselines)
        return target, {name: first_reached(target, *mean) for name, mean in means.items()}

    target, found = costs(np.arange(num_seeds))
    unknown = dict.fromkeys(curves, math.nan)
    no_interval = dict.fromkeys(curves, (math.nan, math.nan))
    if not _has_learned(curves, target / share):
        return Outcome(target, found, unknown, no_interval)
    if num_seeds < 3:
        return Outcome(target, found, _ratios(found, baselines), no_interval)
    resampled = [_ratios(costs(rng.integers(num_seeds, size=num_seeds))[1], baselines) for _ in range(NUM_RESAMPLES)]
    intervals = {name: _interval([ratios[name] for ratios in resampled]) for name in curves}
    return Outcome(target, found, _ratios(found, baselines), intervals)


def cost_ratios(prices: Prices | None) -> list[float]:
    """Give the cost ratios at which methods are compared: from 1 to 100, and the one that was measured."""
    grid = np.geomspace(1, 100, 21).round(2).tolist()
    return sorted({*grid, *TABULATED, *([prices.cost_ratio] if prices else [])})


def _has_learned(curves: dict[str, list[Curve]], best: float) -> bool:
    starts = np.array([curve.accuracy[0] for runs in curves.values() for curve in runs])  # of one model
    return best > 0 and best - starts.mean() > 3 * starts.std()


def choose_rates(seen: dict[tuple[str, float], tuple[float, float]]) -> dict[str, float]:
    """
    Choose the learning rate of each method: that of the fewest steps to the target, which no other load changes.

    Of those that are equally soon, such as those that do not reach it, the one of the highest mean accuracy over the
    steps is chosen.
    """
    names = dict.fromkeys(name for name, _ in seen)
    return {
        name: max((pair for pair in seen if pair[0] == name), key=lambda pair: (-seen[pair][0], seen[pair][1]))[1]
        for name in names
    }


def tuning_results(
    curves: dict[tuple[str, float], list[Curve]], baselines: list[str]
) -> dict[tuple[str, float], tuple[float, float]]:
    """Give what learning rates are chosen by. The target is that of the baselines at their best learning rates."""
    means = {pair: mean_curve(runs, "steps") for pair, runs in curves.items()}
    means = {pair: (grid, accuracy.mean(axis=0)) for pair, (grid, accuracy) in means.items()}
    target = SHARE * max(accuracy.max() for (name, _), (_, accuracy) in means.items() if name in baselines)
    return {
        pair: (first_reached(target, *mean), float(np.mean([area(curve) for curve in curves[pair]])))
        for pair, mean in means.items()
    }


def _ratios(costs: dict[str, float], baselines: list[str]) -> dict[str, float]:
    least = min(costs[name] for name in baselines)
    return {name: _ratio(least, cost) for name, cost in costs.items()}


def _ratio(baseline: float, cost: float) -> float:
    if cost == baseline:  # also where both reach it before they have trained
        return 1.0
    return math.inf if cost == 0 else baseline / cost


def _interval(ratios: list[float]) -> tuple[float, float]:
    # Not interpolated, because some may be infinite.
    low, high = np.quantile(ratios, (0.025, 0.975), method="nearest")
    return float(low), float(high)
