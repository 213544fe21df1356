"""What a step costs: seconds by phase, the ideal that PODS can reach, and the same curves on other hardware."""

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..checks.errors import SetupError
from ..runs.log import read_log
from ..runs.record import RunRecord, whole_batches
from ..timing import PHASES
from ..wall_clock import METRIC as TRAIN_SECONDS
from .curves import Curve
from .methods import Method


def step_seconds(folder: Path) -> dict[str, float] | None:
    """
    Tell the seconds that a run spent per optimizer step, by phase.

    It is the median over generation batches of the mean over their steps, because most steps may sample nothing, the
    first are slow, and other work on the machine makes some slow.
    """
    entries = [entry for entry in read_log(folder) if f"pods/time/{PHASES[0]}" in entry]
    batches = list(whole_batches(entries, RunRecord.read(folder)))
    if len(batches) < 2:
        return None
    per_batch = [_means(batch, before[-1]) for before, batch in pairwise(batches)]
    return {name: float(np.median([means[name] for means in per_batch])) for name in (*PHASES, "step")}


def _means(batch: list[dict[str, Any]], before: dict[str, Any]) -> dict[str, float]:
    """Seconds per step over a generation batch, whose entries are means over the steps since the one before."""
    spans = np.diff([entry["step"] for entry in (before, *batch)])
    means = {name: np.average([entry[f"pods/time/{name}"] for entry in batch], weights=spans) for name in PHASES}
    return means | {"step": (batch[-1][TRAIN_SECONDS] - before[TRAIN_SECONDS]) / spans.sum()}


def ideal_step_seconds(small: dict[str, float], large: dict[str, float]) -> dict[str, float]:
    """
    Give the seconds of a step that samples and scores as plain GRPO with n does, and does all else as it does with m.
    """
    sampling = {phase: large[phase] for phase in ("generate", "reward")}
    return small | sampling | {"step": small["step"] + sum(large[phase] - small[phase] for phase in sampling)}


@dataclass(frozen=True)
class Hardware:
    """Seconds of a step's two parts on some hardware, by the number of rollouts per prompt."""

    name: str
    generate: dict[int, float]
    update: dict[int, float]

    @classmethod
    def read(cls, path: str) -> "Hardware":
        """Read the costs from JSON: `{"name": "my GPU", "generate": {"16": 2.0, "64": 4.5}, "update": {"16": 5.0}}`."""
        try:
            values: Any = json.loads(Path(path).read_text())
            tables = ({int(k): float(v) for k, v in values[part].items()} for part in ("generate", "update"))
            hardware = cls(str(values["name"]), *tables)
            if not all(0 <= s < math.inf for s in (*hardware.generate.values(), *hardware.update.values())):
                raise ValueError("its seconds must be 0 or more, and finite")
            return hardware
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SetupError(
                f"`hardware`: {path!r} cannot be read: {error!r}. It must be JSON with `name`, and with `generate` and "
                "`update` that map numbers of rollouts per prompt to seconds."
            ) from error

    def step_seconds(self, method: Method) -> float | None:
        """Give the seconds of a step, linear between the numbers given."""
        generate = _between(self.generate, method.num_rollouts)
        update = _between(self.update, method.num_generations)
        return None if generate is None or update is None else generate + update


def _between(table: dict[int, float], number: int) -> float | None:
    numbers = sorted(table)
    if not numbers or not numbers[0] <= number <= numbers[-1]:
        return None
    return float(np.interp(number, numbers, [table[k] for k in numbers]))


def projected(curves: list[Curve], seconds: float) -> list[Curve]:
    """Give curves the time that they would take if each step took so many seconds."""
    return [replace(curve, seconds=curve.steps * seconds) for curve in curves]
