"""A run's log as series of numbers over its steps."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...timing import PHASES
from ...wall_clock import METRIC as TRAIN_SECONDS

LAST_OF_GROUP = ("step", TRAIN_SECONDS)  # they count up, so an average of them would mean nothing


class RunLog:
    """
    Training metrics and evaluations of a run.

    Args:
        entries (`list[dict[str, Any]]`):
            What was logged, in order, as [`~trl_pods.runs.log.read_log`] gives it.

    Attributes:
        training (`list[dict[str, Any]]`):
            Entries of training. Each is an average over the steps since the one before. One of steps that sampled
            nothing, and so has no reward, is averaged into the one before.
        evaluations (`dict[str, list[dict[str, Any]]]`):
            Entries of evaluation by the name of the data, which is empty where there is one dataset only.
        steps (`list[int]`):
            Optimizer step of each entry of training.
        spans (`list[int]`):
            Optimizer steps that each entry of training stands for.
    """

    def __init__(self, entries: list[dict[str, Any]]):
        groups: list[list[dict[str, Any]]] = []
        for entry in entries:
            if "reward" in entry:
                groups.append([entry])
            elif groups and any(key.startswith("pods/time/") for key in entry):
                groups[-1].append(entry)
        spans = iter(_spans([int(entry["step"]) for group in groups for entry in group]))
        self.training = [_merged(group, [next(spans) for _ in group]) for group in groups]
        self.evaluations: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            if "eval_reward" in entry:
                self.evaluations.setdefault(_dataset_name(entry), []).append(entry)
        self.steps = [int(entry["step"]) for entry in self.training]
        self.spans = _spans(self.steps)

    def values(self, key: str) -> list[float]:
        """
        Values of a metric.

        Args:
            key (`str`):
                Name of the metric.

        Returns:
            `list[float]`: One number for each entry of training, NaN where it has none.
        """
        return [as_number(entry.get(key)) for entry in self.training]

    def has(self, key: str) -> bool:
        """
        Tell whether a metric has any value.

        Args:
            key (`str`):
                Name of the metric.

        Returns:
            `bool`: Whether an entry of training has a number for it.
        """
        return any(map(math.isfinite, self.values(key)))

    def mean(self, values: Sequence[float]) -> float:
        """
        Average over the steps of the run.

        Args:
            values (`Sequence[float]`):
                One number for each entry of training, NaN where there is none.

        Returns:
            `float`: The mean, each number weighted by the steps that it stands for. NaN where there is none.
        """
        return _mean(values, self.spans)

    def phases(self) -> dict[str, list[float]]:
        """
        Seconds per optimizer step in each phase.

        Returns:
            `dict[str, list[float]]`: For each phase that was timed, seconds per optimizer step for each entry.
        """
        return {phase: self.values(f"pods/time/{phase}") for phase in PHASES if self.has(f"pods/time/{phase}")}

    def seconds(self) -> list[float]:
        """
        Seconds per optimizer step, without evaluation.

        Returns:
            `list[float]`: One number for each entry of training, from the seconds of training that were logged. NaN
            where that was not the case.
        """
        passed = self.values(TRAIN_SECONDS)
        return [(now - before) / span for (before, now), span in zip(pairwise([0.0, *passed]), self.spans, strict=True)]

    def outside(self) -> list[float]:
        """
        Seconds per optimizer step in no phase.

        Returns:
            `list[float]`: One number for each entry of training, NaN where it is not known. The phases and the seconds
            of training are read at moments that lie a little apart, so a number may be just below 0.
        """
        in_phases = [sum(column) for column in zip(*self.phases().values(), strict=True)] or [math.nan] * len(
            self.steps
        )
        return [total - phases for total, phases in zip(self.seconds(), in_phases, strict=True)]

    def coarse(self, most: int) -> "RunLog":
        """
        Average neighbouring entries of training, for a picture that can be read.

        Args:
            most (`int`):
                Largest number of entries to leave, at least 1.

        Returns:
            [`RunLog`]: The same run with at most so many entries of training, and all its evaluations.
        """
        size = self.entries_per_point(most)
        parts = [slice(i, i + size) for i in range(0, len(self.training), size)]
        log = RunLog([_merged(self.training[part], self.spans[part]) for part in parts])
        log.evaluations = self.evaluations
        return log

    def entries_per_point(self, most: int) -> int:
        """
        How many entries of training are averaged.

        Args:
            most (`int`):
                Largest number of points of a line, at least 1.

        Returns:
            `int`: Entries for each point.
        """
        return max(-(-len(self.training) // most), 1)


def as_number(value: Any) -> float:
    """
    Read a logged value.

    Args:
        value (`Any`):
            A number, or `None`, which TRL logs where nothing was measured.

    Returns:
        `float`: The number, NaN where there is none.
    """
    return float(value) if isinstance(value, int | float) else math.nan


def _dataset_name(entry: dict[str, Any]) -> str:
    """TRL's metrics do not name the dataset, but the trainer's own do: `eval_<name>_runtime`."""
    names = (re.fullmatch(r"eval_(.+)_runtime", key) for key in entry)
    return next((name[1] for name in names if name), "")


def _spans(steps: list[int]) -> list[int]:
    """How many steps each entry stands for."""
    return [max(step - before, 1) for before, step in pairwise([0, *steps])]


def _merged(group: list[dict[str, Any]], spans: list[int]) -> dict[str, Any]:
    """One entry with the means of several, each weighted by the steps that it stands for."""
    if len(group) == 1:
        return group[0]
    keys = dict.fromkeys(key for entry in group for key in entry)
    means = {key: _mean([as_number(entry.get(key)) for entry in group], spans) for key in keys}
    return means | {key: group[-1][key] for key in LAST_OF_GROUP if key in group[-1]}


def _mean(values: Sequence[float], spans: Sequence[int]) -> float:
    """Mean of the numbers, each weighted by its steps; NaN where there is none."""
    known = [(value, span) for value, span in zip(values, spans, strict=True) if math.isfinite(value)]
    steps = sum(span for _, span in known)
    return sum(value * span for value, span in known) / steps if steps else math.nan
