"""
Draws and prints what `bench_time_to_accuracy.py` has found: one row for each regime.

    python -m benchmarks.regime_map
"""

import json
import math
import re
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from trl_pods.lab.curves import Curve
from trl_pods.lab.outcome import compare

from .environment import RESULTS

SETS = ("map", "ratios", "ratios_of_16", "hardly_taught", "noisy", "tasks", "vllm")


def main() -> None:
    found = {name: values for path in SETS for name, values in read(path).items()}
    print(markdown(found), repeated(read("map"), read("again")), rules(read("rules")), sep="\n\n")
    print(*one_batch(read("one_batch")), sep="\n")
    draw(read("map") | read("hardly_taught"))


def read(which: str) -> dict[str, Any]:
    """Results of a set of regimes, by name; none if it has not been run."""
    path = RESULTS / f"time_to_accuracy_{which}.json"
    return json.loads(path.read_text())["regimes"] if path.exists() else {}


def markdown(found: dict[str, Any]) -> str:
    """A table for benchmarks/README.md."""
    lines = [
        "| regime | seeds | start | GRPO m, GRPO n, PODS at the end | target | speedup | 95 % | per step |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, values in found.items():
        methods = values["methods"]
        pods = methods["pods"]
        ends = ", ".join(f"{methods[key]['final_accuracy']:.1%}" for key in ("grpo", "grpo_n", "pods"))
        low, high = (text(bound) for bound in pods["ratio_interval"]["seconds"])
        lines.append(
            f"| {name} | {len(values['seeds'])} | {pods['start_accuracy']:.1%} | {ends} | "
            f"{values['targets']['seconds']:.1%} | {text(pods['ratio']['seconds'])} | {low} to {high} | "
            f"{text(pods['ratio']['steps'])} |"
        )
    return "\n".join(lines)


def repeated(first: dict[str, Any], again: dict[str, Any]) -> str:
    """A table of the regimes that were run twice with the same command and seeds."""
    lines = ["| regime | speedup | 95 % | again | within |", "| --- | --- | --- | --- | --- |"]
    for name, values in again.items():
        pods = first[name]["methods"]["pods"]
        low, high = pods["ratio_interval"]["seconds"]
        ratio = values["methods"]["pods"]["ratio"]["seconds"]
        is_within = low <= (math.inf if ratio is None else ratio) <= (math.inf if high is None else high)
        lines.append(
            f"| {name} | {text(pods['ratio']['seconds'])} | {text(low)} to {text(high)} | {text(ratio)} | "
            f"{'yes' if is_within else 'no'} |"
        )
    return "\n".join(lines)


def rules(found: dict[str, Any]) -> str:
    """A table of rules side by side, the best at the end first."""
    lines = ["| method | at the end (standard deviation) | speedup | 95 % |", "| --- | --- | --- | --- |"]
    for values in found.values():
        for name, method in sorted(values["methods"].items(), key=lambda item: -item[1]["final_accuracy"]):
            end = f"{method['final_accuracy']:.1%} ({method['final_accuracy_std']:.1%})"
            low, high = (text(bound) for bound in method["ratio_interval"]["seconds"])
            is_rule = name.startswith("pods")
            sooner = (text(method["ratio"]["seconds"]), f"{low} to {high}") if is_rule else ("", "")
            lines.append(f"| `{name}` | {end} | {' | '.join(sooner)} |")
    return "\n".join(lines)


def one_batch(found: dict[str, Any]) -> list[str]:
    """How much sooner PODS is than GRPO with n in one batch, to 99 % of the best accuracy of the latter."""
    lines = []
    for name, values in found.items():
        curves = {
            method: [
                Curve(**{"rollouts": None, "rows": None} | {axis: np.array(numbers) for axis, numbers in curve.items()})
                for curve in row["curves"]
            ]
            for method, row in values["methods"].items()
        }
        outcome = compare(curves, ["grpo_n_batch"], "seconds", share=0.99)
        low, high = outcome.intervals["pods"]
        lines.append(
            f"{name}, against GRPO n in one batch: {text(outcome.ratios['pods'])} ({text(low)} to {text(high)}), to "
            f"{outcome.target:.1%} in seconds: {outcome.costs}"
        )
    return lines


def text(ratio: float | None) -> str:
    """A ratio as the table shows it; infinite ones are stored as null."""
    return "∞" if ratio is None else "not reached" if ratio == 0 else f"{ratio:.2f}"


def draw(found: dict[str, Any]) -> None:
    """The map: how much sooner, by start accuracy and m."""
    cells = {(name.split("/")[1], name.split("/")[2]): values["methods"]["pods"] for name, values in found.items()}
    rows, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    ratios = [[_ratio(cells.get((row, column))) for column in columns] for row in rows]
    figure = Figure(figsize=(1.7 * len(columns) + 1.6, 1.1 * len(rows) + 1.2), layout="constrained")
    ax = figure.subplots()
    image = ax.imshow(ratios, cmap="RdYlBu", vmin=0, vmax=2, aspect="auto", alpha=0.6)
    for (row, column), pods in cells.items():
        low, high = (text(bound) for bound in pods["ratio_interval"]["seconds"])
        label = f"{text(pods['ratio']['seconds'])}" + (f"\n{low} to {high}" if low != high else "")
        ax.text(columns.index(column), rows.index(row), label, ha="center", va="center", fontsize=9)
    ax.set_xticks(range(len(columns)), [f"m = {c[1:]}, n = {8 * int(c[1:])}" for c in columns])
    ax.set_yticks(
        range(len(rows)), [re.sub(r"start(\d+)", r"starts at\nabout \1 %", row).replace("_", "\n") for row in rows]
    )
    ax.set_title("PODS sooner than the better GRPO by (time ratio, 95 %)", fontsize=10)
    figure.colorbar(image, ax=ax, shrink=0.8)
    figure.savefig(RESULTS / "time_to_accuracy_map.png", dpi=150)


def _ratio(pods: dict[str, Any] | None) -> float:
    """Where the cell's colour comes from; grey where nothing was measured."""
    return math.nan if pods is None else 10.0 if pods["ratio"]["seconds"] is None else pods["ratio"]["seconds"]


if __name__ == "__main__":
    main()
