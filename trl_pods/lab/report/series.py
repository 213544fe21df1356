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
    """Training metrics and evaluations of a run."""

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
        """Values of a metric."""
        return [as_number(entry.get(key)) for entry in self.training]

    def has(self, key: str) -> bool:
        """Tell whether a metric has any value."""
        return any(map(math.isfinite, self.values(key)))

    def mean(self, values: Sequence[float]) -> float:
        """Average over the steps of the run."""
        return _mean(values, self.spans)

    def phases(self) -> dict[str, list[float]]:
        """Seconds per optimizer step in each phase."""
        return {phase: self.values(f"pods/time/{phase}") for phase in PHASES if self.has(f"pods/time/{phase}")}

    def seconds(self) -> list[float]:
        """Seconds per optimizer step, without evaluation."""
        passed = self.values(TRAIN_SECONDS)
        return [(now - before) / span for (before, now), span in zip(pairwise([0.0, *passed]), self.spans, strict=True)]

    def outside(self) -> list[float]:
        """Seconds per optimizer step in no phase."""
        in_phases = [sum(column) for column in zip(*self.phases().values(), strict=True)] or [math.nan] * len(
            self.steps
        )
        return [total - phases for total, phases in zip(self.seconds(), in_phases, strict=True)]

    def coarse(self, most: int) -> "RunLog":
        """Average neighbouring entries of training, for a picture that can be read."""
        size = self.entries_per_point(most)
        parts = [slice(i, i + size) for i in range(0, len(self.training), size)]
        log = RunLog([_merged(self.training[part], self.spans[part]) for part in parts])
        log.evaluations = self.evaluations
        return log

    def entries_per_point(self, most: int) -> int:
        """How many entries of training are averaged."""
        return max(-(-len(self.training) // most), 1)


def as_number(value: Any) -> float:
    """Read a logged value."""
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
