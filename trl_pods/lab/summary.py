"""The results of a comparison as a JSON file and as a table."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from ..runs.atomic import atomic_write
from ..timing import PHASES
from .costs import ideal_step_seconds
from .curves import Curve
from .methods import Method
from .outcome import Outcome

SLOWED = 1.2  # times the ideal seconds of a step, which PODS comes close to on a quiet machine


def summarize(
    methods: list[Method],
    learning_rates: dict[str, float],
    curves: dict[str, list[Curve]],
    outcomes: dict[str, Outcome],
    costs: dict[str, dict[str, float] | None],
) -> dict[str, Any]:
    """Put all numbers of a comparison together."""
    summary: dict[str, Any] = {"methods": {}, "targets": {name: outcome.target for name, outcome in outcomes.items()}}
    for method in methods:
        name, known = method.name, {axis: o for axis, o in outcomes.items() if method.name in o.times}
        final = np.array([curve.accuracy[-1] for curve in curves[method.name]])
        summary["methods"][name] = {
            "label": method.label,
            "num_rollouts": method.num_rollouts,
            "num_generations": method.num_generations,
            "learning_rate": learning_rates[name],
            "start_accuracy": float(np.mean([curve.accuracy[0] for curve in curves[name]])),
            "final_accuracy": float(final.mean()),
            "final_accuracy_std": float(final.std(ddof=1)) if len(final) > 1 else None,
            "time_to_target": {axis: _finite(outcome.times[name]) for axis, outcome in known.items()},
            "ratio": {axis: _finite(outcome.ratios[name]) for axis, outcome in known.items()},
            "ratio_interval": {axis: [_finite(x) for x in o.intervals[name]] for axis, o in known.items()},
            "seconds_per_step": costs[name],
            "curves": [
                {"seconds": c.seconds.tolist(), "steps": c.steps.tolist(), "accuracy": c.accuracy.tolist()}
                for c in curves[name]
            ],
        }
    small, large = costs.get("grpo"), costs.get("grpo_n")
    if small is not None and large is not None:
        summary["ideal_step_seconds"] = ideal_step_seconds(small, large)
    return summary


def write(path: Path, summary: dict[str, Any]) -> None:
    """Write the JSON file, all of it or nothing."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(summary, indent=1) + "\n")


def table(summary: dict[str, Any], axis: str = "seconds") -> Table:
    """Make the table of a comparison."""
    target = summary["targets"][axis]
    columns = ("method", "learning rate", f"s to {target:.1%}", "ratio", "95 %", "final accuracy")
    result = Table(*(Column(name, no_wrap=name not in ("learning rate", "ratio")) for name in columns))
    result.title = summary["axes"][axis]
    for row in summary["methods"].values():
        if axis in row["time_to_target"]:
            result.add_row(*_cells(row, axis))
    return result


def _cells(row: dict[str, Any], axis: str) -> list[str]:
    time, ratio, interval = (row[key][axis] for key in ("time_to_target", "ratio", "ratio_interval"))
    spread = "" if row["final_accuracy_std"] is None else f" ± {row['final_accuracy_std']:.1%}"
    return [
        row["label"],
        f"{row['learning_rate']:g}",
        "not reached" if time is None else f"{time:.1f}",
        "–" if not ratio else f"{ratio:.2f}",
        "–" if interval == [None, None] else "–".join("∞" if x is None else f"{x:.2f}" for x in interval),
        f"{row['final_accuracy']:.1%}{spread}",
    ]


def phase_table(summary: dict[str, Any]) -> Table:
    """Make the table of what a step costs, in milliseconds."""
    result = Table(Column("ms per step", no_wrap=True), *PHASES, "rest", "step")
    rows = {row["label"]: row["seconds_per_step"] for row in summary["methods"].values()}
    if "ideal_step_seconds" in summary:
        rows["ideal of PODS"] = summary["ideal_step_seconds"]
    for label, seconds in rows.items():
        if seconds is None:
            continue
        parts = [seconds[phase] for phase in PHASES]
        values = [*parts, max(seconds["step"] - sum(parts), 0.0), seconds["step"]]
        result.add_row(label, *(f"{1000 * value:.1f}" for value in values))
    return result


def warnings(summary: dict[str, Any]) -> list[str]:
    """Say what to keep in mind of a comparison."""
    found = []
    rates = sorted({entry["learning_rate"] for entry in summary["tuning"]})
    for row in summary["methods"].values():
        if len(rates) > 1 and row["learning_rate"] in (rates[0], rates[-1]):
            found.append(f"The learning rate of {row['label']} is at the edge of those that were tried. Try more.")
        if row["seconds_per_step"] is None:
            found.append(f"{row['label']} trained too few steps to tell what one costs. Raise `max_seconds`.")
    ideal = summary.get("ideal_step_seconds")
    for name, row in summary["methods"].items():
        seconds = row["seconds_per_step"]
        if name.startswith("pods") and ideal is not None and seconds is not None:
            times = seconds["step"] / ideal["step"]
            if times > SLOWED:
                found.append(
                    f"A step of {row['label']} took {times:.2f} times the ideal. Perhaps its runs were slowed by other "
                    "work, or the others were trained before, on a quieter machine; then the times do not compare."
                )
    if not any(row["ratio"]["seconds"] is not None for row in summary["methods"].values()):
        found.append("GRPO did not rise above the initial checkpoint by more than noise, so there is no speedup.")
    if len(summary["seeds"]) < 3:
        found.append("An interval needs three seeds or more.")
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
