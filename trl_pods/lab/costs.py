"""What sampling and training cost: seconds of a step by phase, and the prices of a rollout and of a row."""

from collections import Counter
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..runs.log import read_log
from ..runs.record import RunRecord, whole_batches
from ..timing import PHASES
from ..wall_clock import METRIC as TRAIN_SECONDS
from .curves import sampled_and_trained


class Prices(NamedTuple):
    """What a rollout and a row cost, in seconds."""

    rollout: float  # to generate and to score
    row: float  # log-probs and update

    @property
    def cost_ratio(self) -> float:
        """c: what a trained row costs, in sampled rollouts."""
        return self.row / self.rollout


def measure_prices(folders: list[Path]) -> Prices | None:
    """Measure prices over all runs together, without their first generation batches, which are slow."""
    seconds: Counter[str] = Counter()
    rollouts = rows = 0.0
    for folder in folders:
        record = RunRecord.read(folder)
        entries = [entry for entry in read_log(folder) if f"pods/time/{PHASES[0]}" in entry]
        for entry in chain.from_iterable(islice(whole_batches(entries, record), 1, None)):
            sampled, trained = sampled_and_trained(entry, record)
            rollouts, rows = rollouts + sampled, rows + trained
            seconds.update({phase: entry[f"pods/time/{phase}"] for phase in PHASES})
    if not rollouts or not rows:
        return None
    return Prices((seconds["generate"] + seconds["reward"]) / rollouts, (seconds["update"] + seconds["logps"]) / rows)


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
