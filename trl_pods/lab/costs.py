"""What a step costs: seconds by phase, and the ideal that PODS can reach."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..runs.log import read_log
from ..runs.record import RunRecord, whole_batches
from ..timing import PHASES
from ..wall_clock import METRIC as TRAIN_SECONDS


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
