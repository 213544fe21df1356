"""The results of a comparison as a JSON file and as a table."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from ..runs.atomic import atomic_write
from ..timing import PHASES
from .costs import Prices, ideal_step_seconds
from .curves import Curve
from .methods import Method
from .outcome import TABULATED, Outcome

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
        name = method.name
        final = np.array([curve.accuracy[-1] for curve in curves[method.name]])
        summary["methods"][name] = {
            "label": method.label,
            "num_rollouts": method.num_rollouts,
            "num_generations": method.num_generations,
            "learning_rate": learning_rates[name],
            "start_accuracy": float(np.mean([curve.accuracy[0] for curve in curves[name]])),
            "final_accuracy": float(final.mean()),
            "final_accuracy_std": float(final.std(ddof=1)) if len(final) > 1 else None,
            "to_target": {axis: _finite(outcome.costs[name]) for axis, outcome in outcomes.items()},
            "speedup": {axis: _finite(outcome.ratios[name]) for axis, outcome in outcomes.items()},
            "interval": {axis: [_finite(x) for x in o.intervals[name]] for axis, o in outcomes.items()},
            "seconds_per_step": costs[name],
            "curves": [
                {field.name: getattr(curve, field.name).tolist() for field in dataclasses.fields(curve)}
                for curve in curves[name]
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


def summarize_costs(by_cost_ratio: dict[float, Outcome], prices: Prices | None) -> dict[str, Any]:
    """Put together what depends on the cost ratio."""
    names = next(iter(by_cost_ratio.values())).ratios
    return summarize_prices(prices) | {
        "by_cost_ratio": [
            {
                "cost_ratio": c,
                "speedup": {name: _finite(outcome.ratios[name]) for name in names},
                "interval": {name: [_finite(x) for x in outcome.intervals[name]] for name in names},
            }
            for c, outcome in by_cost_ratio.items()
        ],
    }


def summarize_prices(prices: Prices | None) -> dict[str, Any]:
    """Put prices into JSON, in seconds."""
    return {"prices": None if prices is None else prices._asdict() | {"cost_ratio": prices.cost_ratio}}


def describe_prices(prices: dict[str, float]) -> str:
    """Say in a sentence what a rollout and a row cost."""
    return (
        f"Here a sampled rollout costs {1000 * prices['rollout']:.3g} ms and a trained row {1000 * prices['row']:.3g} "
        f"ms: the cost ratio is {prices['cost_ratio']:.2g}."
    )


def cost_table(summary: dict[str, Any]) -> Table:
    """Make the table of the speedup at some cost ratios, and at the one that was measured."""
    prices = summary["prices"]
    measured = prices["cost_ratio"] if prices else None
    by_cost_ratio = {entry["cost_ratio"]: entry for entry in summary["by_cost_ratio"]}
    shown = sorted({*TABULATED, *([measured] if measured else [])})
    heads = [f"c = {c:.1f}, measured" if c == measured else f"c = {c:g}" for c in shown]
    result = Table(Column("method", no_wrap=True), "steps", "rollouts", "rows", *heads)
    result.title = f"To {summary['targets']['steps']:.1%}, and the speedup where a row costs c rollouts"
    for name, row in summary["methods"].items():
        counts = (row["to_target"][axis] for axis in ("steps", "rollouts", "rows"))
        cells = [_speedup(by_cost_ratio[c]["speedup"][name], by_cost_ratio[c]["interval"][name]) for c in shown]
        result.add_row(row["label"], *("–" if x is None else f"{x:,.0f}" for x in counts), *cells)
    return result


def seconds_table(summary: dict[str, Any]) -> Table:
    """Make the table of the time that was measured."""
    target = summary["targets"]["seconds"]
    columns = ("method", "learning rate", f"s to {target:.1%}", "speedup", "final accuracy")
    result = Table(*(Column(name, no_wrap=name != "learning rate") for name in columns))
    result.title = "Measured wall-clock"
    for row in summary["methods"].values():
        time, spread = row["to_target"]["seconds"], row["final_accuracy_std"]
        result.add_row(
            row["label"],
            f"{row['learning_rate']:g}",
            "not reached" if time is None else f"{time:.1f}",
            _speedup(row["speedup"]["seconds"], row["interval"]["seconds"]),
            f"{row['final_accuracy']:.1%}" + ("" if spread is None else f" ± {spread:.1%}"),
        )
    return result


def _speedup(ratio: float | None, interval: list[float | None]) -> str:
    if not ratio:
        return "–"
    between = "" if interval == [None, None] else " to ".join("∞" if x is None else f"{x:.2f}" for x in interval)
    return f"{ratio:.2f}" + (f" ({between})" if between else "")


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
    if not any(row["speedup"]["steps"] is not None for row in summary["methods"].values()):
        found.append("GRPO did not rise above the initial checkpoint by more than noise, so there is no speedup.")
    if len(summary["seeds"]) < 3:
        found.append("An interval needs three seeds or more.")
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
