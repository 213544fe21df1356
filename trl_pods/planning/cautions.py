"""What to keep in mind of a plan: what was not measured, and where the grid ends."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .cost import CostModel
from .measured import MeasuredRun

if TYPE_CHECKING:
    from .plan import Plan

_LARGE_ERROR = 0.1  # of the cost model


def of_cost(runs: Sequence[MeasuredRun], cost: CostModel) -> list[str]:
    """
    Say what the measured times leave open.

    Args:
        runs (`Sequence[MeasuredRun]`):
            The runs.
        cost ([`CostModel`]):
            What was fitted to them.

    Returns:
        `list[str]`: One sentence or two for each.
    """
    cautions = []
    for name, part in (("num_rollouts", "sampling"), ("num_generations", "the update")):
        values = {getattr(run.record, name) for run in runs}
        if len(values) == 1:
            cautions.append(
                f"All runs have `{name}` {values.pop()}, so the part of the time of {part} that does not grow with it "
                f"is unknown and taken as 0. Name runs with other values of `{name}` too."
            )
    error = cost.largest_error([run.timing for run in runs])
    if error > _LARGE_ERROR:
        cautions.append(f"The cost model misses the measured times by up to {error:.0%}.")
    rows = sorted({run.record.per_device_train_batch_size for run in runs})
    if len(rows) > 1:
        cautions.append(
            f"Micro-batches of {rows} rows were measured; the seconds of the update are taken as per row, whatever "
            "their size."
        )
    return cautions


def of_best(plan: "Plan") -> list[str]:
    """
    Say where the recommended pair lies outside what was measured, or at the edge of the grid.

    Args:
        plan ([`Plan`]):
            The plan.

    Returns:
        `list[str]`: One sentence or two for each.
    """
    cautions = []
    for name, option in (("num_rollouts", "--rollouts"), ("num_generations", "--kept")):
        best, grid = getattr(plan.best, name), {getattr(pair, name) for pair in plan.pairs}
        measured = [getattr(timing, name) for timing in plan.timings]
        if len(set(measured)) > 1 and not min(measured) <= best <= max(measured):
            cautions.append(f"`{name}` {best} was not measured, only {min(measured)} to {max(measured)}.")
        if best == max(grid) and len(grid) > 1:
            cautions.append(f"`{name}` {best} is the largest of the grid. Try larger ones with `{option}`.")
    return cautions
