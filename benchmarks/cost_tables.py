"""
Reads the trainings of `bench_cost.py` and writes what they say: results/cost/summary.json and two plots.

    python -m benchmarks.cost_tables
"""

import json
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from trl_pods.lab.costs import Prices
from trl_pods.lab.curves import Curve
from trl_pods.lab.outcome import TABULATED, choose_rates, compare, cost_ratios, tuning_results

from .bench_cost import FOLDER, REGIMES, SEEDS, TUNING_SEEDS, Regime, read


def curve_of(line: dict[str, Any]) -> Curve:
    axes = ("seconds", "steps", "rollouts", "rows", "accuracy")
    return Curve(*(np.array(line[axis], dtype=float) for axis in axes))


def baselines(regime: Regime) -> list[str]:
    return [method.name for method in regime.methods if method.is_baseline]


def chosen_rates(regime: Regime, lines: list[dict[str, Any]]) -> dict[str, float]:
    """The learning rate of each method, by the steps that it takes to the target on the tuning seeds."""
    curves: dict[tuple[str, float], list[Curve]] = {}
    for line in lines:
        if line["seed"] in TUNING_SEEDS:
            curves.setdefault((line["method"], line["learning_rate"]), []).append(curve_of(line))
    return choose_rates(tuning_results(curves, baselines(regime)))


def summarize(regime: Regime) -> dict[str, Any] | None:
    """The speedups of a regime, or nothing while a training is missing."""
    lines = read(regime)
    if len({line["method"] for line in lines if line["seed"] in TUNING_SEEDS}) < len(regime.methods):
        return None
    rates = chosen_rates(regime, lines)
    curves = {
        method.name: [
            curve_of(line)
            for line in sorted(lines, key=lambda line: line["seed"])
            if (line["method"], line["learning_rate"]) == (method.name, rates[method.name]) and line["seed"] in SEEDS
        ]
        for method in regime.methods
    }
    if {len(runs) for runs in curves.values()} != {len(SEEDS)}:
        return None
    rollout, row = np.median([line["prices"] for line in lines], axis=0)
    prices = Prices(float(rollout), float(row))
    start = float(np.mean([curve.accuracy[0] for runs in curves.values() for curve in runs]))
    found = {c: compare(curves, baselines(regime), c) for c in cost_ratios(prices)}
    steps = compare(curves, baselines(regime), "steps")
    return {
        "start": start,
        "target": steps.target,
        "measured_cost_ratio": prices.cost_ratio,
        "learning_rates": rates,
        "steps": {name: value if np.isfinite(value) else None for name, value in steps.costs.items()},
        "speedup": {
            name: {
                f"{c:g}": [_rounded(x) for x in (outcome.ratios[name], *outcome.intervals[name])]
                for c, outcome in found.items()
            }
            for name in curves
        },
    }


def _rounded(value: float) -> float | None:
    return round(value, 3) if np.isfinite(value) else None


def table(summary: dict[str, Any]) -> str:
    """Markdown: a row for each method and regime, the speedup at the tabulated cost ratios."""
    heads = [f"c = {c:g}" for c in TABULATED]
    lines = [f"| regime | method | {' | '.join(heads)} |", f"| --- | --- |{' --- |' * len(heads)}"]
    for name, found in summary.items():
        for method, speedups in found["speedup"].items():
            cells = [_cell(speedups[f"{c:g}"]) for c in TABULATED]
            lines.append(f"| {name} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: list[float | None]) -> str:
    ratio, low, high = ("∞" if value is None else f"{value:.2f}" for value in values)
    return f"{ratio} ({low} to {high})"


def draw(summary: dict[str, Any], methods: list[str]) -> None:
    """The speedup of some methods against the cost ratio, a panel for each regime."""
    figure = Figure(figsize=(3.4 * len(summary), 3.4), layout="constrained")
    axes = figure.subplots(1, len(summary), sharey=True, squeeze=False)[0]
    for ax, (name, found) in zip(axes, summary.items(), strict=True):
        for method in methods:
            if method in found["speedup"]:
                points = {float(c): values for c, values in found["speedup"][method].items()}
                ratio, low, high = np.array([points[c] for c in sorted(points)], dtype=float).T
                ax.plot(sorted(points), ratio, label=method)
                ax.fill_between(sorted(points), low, high, alpha=0.12, linewidth=0)
        ax.axhline(1, color="grey", linewidth=0.8, linestyle=":")
        ax.axvline(found["measured_cost_ratio"], color="black", linewidth=0.8, linestyle="--")
        ax.set(xscale="log", xlim=(1, 100), title=name, xlabel="cost ratio c")
        ax.grid(alpha=0.2)
    axes[0].set_ylabel("speedup over the better GRPO")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(FOLDER / "speedup.png", dpi=150)


def main() -> None:
    summary = {regime.name: found for regime in REGIMES if (found := summarize(regime)) is not None}
    (FOLDER / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(table(summary))
    if summary:
        draw(summary, ["train_32_4", "skip_32_4", "drop_32_4", "drop_4_4", "drop_16_4_over2"])


if __name__ == "__main__":
    main()
