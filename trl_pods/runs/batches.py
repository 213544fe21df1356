"""The entries of a log that make up a generation batch."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from .record import RunRecord


def whole_batches(entries: list[dict[str, Any]], record: RunRecord) -> Iterator[list[dict[str, Any]]]:
    """
    Group the entries of a log into whole generation batches.

    An entry is a mean over the optimizer steps since the one before, and most steps of a generation batch sample
    nothing, so only groups that cover whole batches can be compared.
    """
    steps = batches_per_step(record)
    group: list[dict[str, Any]] = []
    covered = 0
    for entry in entries:
        group.append(entry)
        if (entry["step"] - covered) * steps % 1 == 0:
            yield group
            group, covered = [], entry["step"]


def batches_per_step(record: RunRecord) -> Fraction:
    """Count the generation batches of an optimizer step."""
    return Fraction(record.gradient_accumulation_steps, record.steps_per_generation * record.num_iterations)
