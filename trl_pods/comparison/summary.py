"""The results of a comparison as a JSON file and as a table."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from ..phases import PHASES
from .costs import ideal_step_seconds
from .curves import Curve
from .methods import Method
from .outcome import Outcome


def summarize(
    methods: list[Method],
    learning_rates: dict[str, float],
    curves: dict[str, list[Curve]],
    outcomes: dict[str, Outcome],
    costs: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """
    Put all numbers of a comparison together.

    Args:
        methods (`list[Method]`):
            The methods.
        learning_rates (`dict[str, float]`):
            Learning rate of each.
        curves (`dict[str, list[Curve]]`):
            Curves of each, one for each seed.
        outcomes (`dict[str, Outcome]`):
            What came out, by the name of the time axis. One of other hardware may not know all methods.
        costs (`dict[str, dict[str, float]]`):
            Seconds of a step of each method, by phase.

    Returns:
        `dict`: What goes into the JSON file. What is never reached is `null`.
    """
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
    if {"grpo", "grpo_n"} <= costs.keys():
        summary["ideal_step_seconds"] = ideal_step_seconds(costs["grpo"], costs["grpo_n"])
    return summary


def write(path: Path, summary: dict[str, Any]) -> None:
    """
    Write the JSON file, all of it or nothing.

    Args:
        path (`Path`):
            The file.
        summary (`dict`):
            What [`summarize`] gave, and what else is to be kept.
    """
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(summary, indent=1) + "\n")
    draft.replace(path)


def table(summary: dict[str, Any], axis: str = "seconds") -> Table:
    """
    Make the table of a comparison.

    Args:
        summary (`dict`):
            What [`summarize`] gave.
        axis (`str`, *optional*, defaults to `"seconds"`):
            Time axis of the ratios.

    Returns:
        [`~rich.table.Table`]: One row for each method.
    """
    target = summary["targets"][axis]
    columns = ("learning rate", f"time to {target:.1%} (s)", "ratio", "95 %", "final accuracy", "s per step")
    result = Table(*(Column(name, no_wrap=name in ("method", "95 %")) for name in ("method", *columns)))
    for row in summary["methods"].values():
        if axis not in row["time_to_target"]:
            continue
        spread = "" if row["final_accuracy_std"] is None else f" ± {row['final_accuracy_std']:.1%}"
        result.add_row(
            row["label"],
            f"{row['learning_rate']:g}",
            _text(row["time_to_target"][axis], "{:.1f}", missing="not reached"),
            _text(row["ratio"][axis], "{:.2f}"),
            "–".join(_text(value, "{:.2f}") for value in row["ratio_interval"][axis]) if spread else "",
            f"{row['final_accuracy']:.1%}{spread}",
            f"{row['seconds_per_step']['step']:.3f}",
        )
    return result


def phase_table(summary: dict[str, Any]) -> Table:
    """
    Make the table of what a step costs, in milliseconds.

    Args:
        summary (`dict`):
            What [`summarize`] gave.

    Returns:
        [`~rich.table.Table`]: One row for each method, and one for the ideal: sampling as GRPO with n pays it, and all
        else as GRPO with m does.
    """
    result = Table(Column("ms per step", no_wrap=True), *PHASES, "rest", "step")
    rows = {row["label"]: row["seconds_per_step"] for row in summary["methods"].values()}
    if "ideal_step_seconds" in summary:
        rows["ideal of PODS"] = summary["ideal_step_seconds"]
    for label, seconds in rows.items():
        parts = [seconds[phase] for phase in PHASES]
        values = [*parts, max(seconds["step"] - sum(parts), 0.0), seconds["step"]]
        result.add_row(label, *(f"{1000 * value:.1f}" for value in values))
    return result


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(value: float | None, form: str, missing: str = "∞") -> str:
    return missing if value is None else form.format(value)
