"""Curves of accuracy against steps, seconds and cost, and where their mean reaches a target."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checks.errors import SetupError
from ..runs.log import read_log
from ..runs.record import RunRecord
from ..wall_clock import METRIC as TRAIN_SECONDS

# What a curve is read along: a quantity of its own, or a cost ratio c, which means its cost.
Axis = str | float


@dataclass(frozen=True)
class Curve:
    """Accuracy of one run at its evaluations, and what had been done until then."""

    seconds: np.ndarray
    steps: np.ndarray
    rollouts: np.ndarray  # sampled
    rows: np.ndarray  # trained
    accuracy: np.ndarray

    def along(self, axis: Axis) -> np.ndarray:
        """Give where the evaluations lie on an axis. The cost at a cost ratio c is rollouts + c * rows."""
        return getattr(self, axis) if isinstance(axis, str) else self.rollouts + axis * self.rows


def read_curve(folder: Path, metric: str) -> Curve:
    """Read the curve of a run."""
    record = RunRecord.read(folder)
    rollouts = rows = 0.0
    points: dict[int, tuple] = {}
    for entry in read_log(folder):
        sampled, trained = sampled_and_trained(entry, record)
        rollouts, rows = rollouts + sampled, rows + trained
        if metric in entry and TRAIN_SECONDS in entry:
            points[entry["step"]] = (entry[TRAIN_SECONDS], entry["step"], rollouts, rows, entry[metric])
    if not points:
        raise SetupError(f"The log of {str(folder)!r} has no evaluation with {metric!r} and {TRAIN_SECONDS!r}.")
    return Curve(*np.array([points[step] for step in sorted(points)], dtype=float).T)


def sampled_and_trained(entry: dict[str, Any], record: RunRecord) -> tuple[float, float]:
    """Count rollouts sampled and rows trained in a step, by its log: those of the generation batches that it began."""
    if "pods/trained_rows" not in entry:
        return 0.0, 0.0
    batches = max(float(record.generations_per_step), 1.0)
    return batches * record.rollouts_sampled, batches * entry["pods/trained_rows"]


def mean_curve(curves: list[Curve], axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Average the curves of several seeds, each interpolated linearly between its evaluations."""
    grid = np.unique(np.concatenate([curve.along(axis) for curve in curves]))
    return grid, np.stack([np.interp(grid, curve.along(axis), curve.accuracy) for curve in curves])


def first_reached(target: float, grid: np.ndarray, accuracy: np.ndarray) -> float:
    """Find where a curve first reaches a target, interpolated linearly."""
    reached = np.flatnonzero(accuracy >= target)
    if not len(reached):
        return float("inf")
    i = reached[0]
    if i == 0:
        return float(grid[0])
    return float(np.interp(target, accuracy[[i - 1, i]], grid[[i - 1, i]]))


def area(curve: Curve) -> float:
    """Average the accuracy over the steps of training: high for a curve that rises soon and far."""
    return float(np.trapezoid(curve.accuracy, curve.steps) / curve.steps[-1]) if curve.steps[-1] else 0.0
