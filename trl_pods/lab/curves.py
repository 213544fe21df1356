"""Curves of accuracy against seconds and steps, and the time that their mean takes to a target."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..checks.errors import SetupError
from ..runs.log import read_log
from ..wall_clock import METRIC as TRAIN_SECONDS


@dataclass(frozen=True)
class Curve:
    """
    Accuracy of one run at its evaluations.

    Args:
        seconds (`np.ndarray`):
            Seconds of training before each evaluation, float64 of shape (E,).
        steps (`np.ndarray`):
            Optimizer steps before it, float64 of shape (E,).
        accuracy (`np.ndarray`):
            What it measured, float64 of shape (E,).
    """

    seconds: np.ndarray
    steps: np.ndarray
    accuracy: np.ndarray

    def along(self, axis: str) -> np.ndarray:
        """
        Give where the evaluations lie on an axis.

        Args:
            axis (`str`):
                `"seconds"` or `"steps"`.

        Returns:
            `np.ndarray`: Float64 of shape (E,).
        """
        return getattr(self, axis)


def read_curve(folder: Path, metric: str) -> Curve:
    """
    Read the curve of a run.

    Args:
        folder (`Path`):
            The run's `output_dir`.
        metric (`str`):
            Key of the accuracy in the log, such as `"eval_rewards/accuracy_reward/mean"`.

    Returns:
        [`Curve`]: The curve, in order of steps, with the last evaluation of each.

    Raises:
        SetupError: The log has no such metric, or no seconds.
    """
    entries = {entry["step"]: entry for entry in read_log(folder) if metric in entry and TRAIN_SECONDS in entry}
    if not entries:
        raise SetupError(f"The log of {str(folder)!r} has no evaluation with {metric!r} and {TRAIN_SECONDS!r}.")
    ordered = [entries[step] for step in sorted(entries)]
    return Curve(*(np.array([entry[key] for entry in ordered], dtype=float) for key in (TRAIN_SECONDS, "step", metric)))


def mean_curve(curves: list[Curve], axis: str) -> tuple[np.ndarray, np.ndarray]:
    """
    Average the curves of several seeds, each interpolated linearly between its evaluations.

    Args:
        curves (`list[Curve]`):
            One for each seed.
        axis (`str`):
            `"seconds"` or `"steps"`.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Where any of them was evaluated, of shape (G,); and the accuracies there, of
        shape (seeds, G), the last of each curve counting for what comes after it.
    """
    grid = np.unique(np.concatenate([curve.along(axis) for curve in curves]))
    return grid, np.stack([np.interp(grid, curve.along(axis), curve.accuracy) for curve in curves])


def time_to(target: float, grid: np.ndarray, accuracy: np.ndarray) -> float:
    """
    Find where a curve first reaches a target, interpolated linearly.

    Args:
        target (`float`):
            Accuracy to reach.
        grid (`np.ndarray`):
            Seconds or steps, ascending, of shape (G,).
        accuracy (`np.ndarray`):
            Accuracies there, of shape (G,).

    Returns:
        `float`: Where it is reached, `inf` if it is not.

    Example:

    ```python
    >>> import numpy as np
    >>> from trl_pods.lab.curves import time_to

    >>> time_to(0.5, np.array([0.0, 10.0, 20.0]), np.array([0.0, 0.4, 0.6]))
    15.0
    >>> time_to(0.7, np.array([0.0, 10.0, 20.0]), np.array([0.0, 0.4, 0.6]))
    inf

    ```
    """
    reached = np.flatnonzero(accuracy >= target)
    if not len(reached):
        return float("inf")
    i = reached[0]
    if i == 0:
        return float(grid[0])
    return float(np.interp(target, accuracy[[i - 1, i]], grid[[i - 1, i]]))


def area(curve: Curve, budget: float) -> float:
    """
    Average the accuracy over the time of training: high for a curve that rises soon and far.

    Args:
        curve (`Curve`):
            Curve of one run.
        budget (`float`):
            Seconds to average over; the last accuracy counts for those after the last evaluation.

    Returns:
        `float`: Mean accuracy.
    """
    grid = np.unique([0.0, *curve.seconds[curve.seconds < budget], budget])
    return float(np.trapezoid(np.interp(grid, curve.seconds, curve.accuracy), grid) / budget)
