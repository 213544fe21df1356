"""Curves of accuracy against seconds and steps, and the time that their mean takes to a target."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..checks.errors import SetupError
from ..runs.log import read_log
from ..wall_clock import METRIC as TRAIN_SECONDS


@dataclass(frozen=True)
class Curve:
    """Accuracy of one run at its evaluations."""

    seconds: np.ndarray
    steps: np.ndarray
    accuracy: np.ndarray

    def along(self, axis: str) -> np.ndarray:
        """Give where the evaluations lie on an axis."""
        return getattr(self, axis)


def read_curve(folder: Path, metric: str) -> Curve:
    """Read the curve of a run."""
    entries = {entry["step"]: entry for entry in read_log(folder) if metric in entry and TRAIN_SECONDS in entry}
    if not entries:
        raise SetupError(f"The log of {str(folder)!r} has no evaluation with {metric!r} and {TRAIN_SECONDS!r}.")
    ordered = [entries[step] for step in sorted(entries)]
    return Curve(*(np.array([entry[key] for entry in ordered], dtype=float) for key in (TRAIN_SECONDS, "step", metric)))


def mean_curve(curves: list[Curve], axis: str) -> tuple[np.ndarray, np.ndarray]:
    """Average the curves of several seeds, each interpolated linearly between its evaluations."""
    grid = np.unique(np.concatenate([curve.along(axis) for curve in curves]))
    return grid, np.stack([np.interp(grid, curve.along(axis), curve.accuracy) for curve in curves])


def time_to(target: float, grid: np.ndarray, accuracy: np.ndarray) -> float:
    """Find where a curve first reaches a target, interpolated linearly."""
    reached = np.flatnonzero(accuracy >= target)
    if not len(reached):
        return float("inf")
    i = reached[0]
    if i == 0:
        return float(grid[0])
    return float(np.interp(target, accuracy[[i - 1, i]], grid[[i - 1, i]]))


def area(curve: Curve, budget: float) -> float:
    """Average the accuracy over the time of training: high for a curve that rises soon and far."""
    grid = np.unique([0.0, *curve.seconds[curve.seconds < budget], budget])
    return float(np.trapezoid(np.interp(grid, curve.seconds, curve.accuracy), grid) / budget)
