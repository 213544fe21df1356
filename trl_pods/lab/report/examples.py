"""Examples of kept and dropped rollouts, from the completions tables of a run."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ...runs.log import table_paths
from ...runs.record import RunRecord
from .text import plain_text

PROMPTS = 2  # of each table
ROLLOUTS = 4  # of each prompt: kept ones, and as many dropped ones


@dataclass(frozen=True)
class Rollout:
    """One completion."""

    completion: str
    reward: float
    rewards: dict[str, float]
    advantage: float
    kept: bool


@dataclass(frozen=True)
class Group:
    """Rollouts of one prompt."""

    prompt: str
    rollouts: list[Rollout]

    def some(self, *, kept: bool) -> list[Rollout]:
        """Choose a few rollouts."""
        of_kind = [rollout for rollout in self.rollouts if rollout.kept == kept]
        ordered = sorted(of_kind, key=lambda rollout: -math.inf if math.isnan(rollout.reward) else rollout.reward)[::-1]
        return [ordered[i] for i in _strides(len(ordered), ROLLOUTS)]

    def count(self, *, kept: bool) -> int:
        """Count rollouts."""
        return sum(rollout.kept == kept for rollout in self.rollouts)


@dataclass(frozen=True)
class Table:
    """Examples of one completions table."""

    step: int
    groups: list[Group]
    problem: str = ""


def examples(folder: Path, record: RunRecord) -> list[Table]:
    """Take examples from the first, the middle and the last completions table."""
    paths = table_paths(folder)
    return [_read(paths[i], record) for i in _strides(len(paths), 3)]


def _read(path: Path, record: RunRecord) -> Table:
    step = int(path.stem.rpartition("_")[2])
    try:
        rows = pd.read_parquet(path).to_dict("records")
        groups = list(itertools.islice(_groups(rows, record), PROMPTS))
    except (OSError, ValueError) as error:  # a run that is killed may leave a file half written
        return Table(step, [], f"{path.name} cannot be read: {error}")
    except KeyError as error:
        return Table(step, [], f"{path.name} has no column {error}.")
    return Table(step, groups)


def _groups(rows: list[dict[str, Any]], record: RunRecord) -> Iterator[Group]:
    """Rows of the same prompt in groups of n; a prompt may come twice."""
    for prompt, run in itertools.groupby(rows, key=lambda row: plain_text(row["prompt"])):
        same = [_rollout(row, record) for row in run]
        for start in range(0, len(same), record.num_rollouts):
            yield Group(prompt, same[start : start + record.num_rollouts])


def _rollout(row: dict[str, Any], record: RunRecord) -> Rollout:
    rewards = {name: _number(row.get(name)) for name in record.reward_names}
    weighted = [weight * rewards[name] for name, weight in zip(record.reward_names, record.reward_weights, strict=True)]
    scored = [value for value in weighted if not math.isnan(value)]
    return Rollout(
        completion=plain_text(row["completion"]),
        reward=sum(scored) if scored else math.nan,
        rewards=rewards,
        advantage=_number(row.get("advantage")),
        kept=bool(row.get("kept", True)),
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _strides(length: int, most: int) -> list[int]:
    """At most so many indices below `length` in even strides, with the first and the last."""
    if length <= most:
        return list(range(length))
    return [round(i * (length - 1) / (most - 1)) for i in range(most)]
