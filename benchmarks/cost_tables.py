"""
Reads the trainings of `bench_cost.py` and writes what they say: a figure, and tables for docs/results.md and README.md.

    python -m benchmarks.cost_tables

Writes results/cost/summary.json and speedup.png, and prints the tables. `tests/test_results.py` compares the documents
with the JSON.
"""

import json
import statistics
from typing import Any

import numpy as np

from trl_pods.lab.costs import Prices
from trl_pods.lab.curves import Curve
from trl_pods.lab.outcome import TABULATED, Outcome, choose_rates, compare, cost_ratios, tuning_results
from trl_pods.lab.plots import SpeedupPanel, draw_speedups

from .bench_cost import FOLDER, REGIMES, SEEDS, TUNING_SEEDS, Regime, missing, read
from .environment import RESULTS

RECOMMENDED, DEFAULT = "drop_16_4_over2", "skip_16_4"
OTHERS = ("drop_16_4", "drop_4_4", "drop_32_4", "train_32_4")
PRICED = {"transformers": "c with transformers (ms per rollout, ms per row)", "vllm": "c with vLLM"}
# Seconds of a step with n rollouts of which 16 are trained, Qwen2.5-3B with LoRA, one L40S, that PODS publishes.
PUBLISHED_SECONDS = {16: 7.56, 32: 7.95, 64: 10.12, 128: 13.78, 256: 21.37}


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


def final_curves(regime: Regime) -> tuple[dict[str, list[Curve]], dict[str, float]]:
    """The curves of each method, in the order of the seeds, and the learning rates that were chosen."""
    lines = read(regime)
    rates = chosen_rates(regime, lines)
    curves = {
        method.name: [
            curve_of(line)
            for line in sorted(lines, key=lambda line: line["seed"])
            if (line["method"], line["learning_rate"]) == (method.name, rates[method.name]) and line["seed"] in SEEDS
        ]
        for method in regime.methods
    }
    return curves, rates


def results_of(regime: Regime) -> tuple[dict[str, Any], dict[float, Outcome], Prices]:
    """What a regime says, its outcome by cost ratio, and the prices."""
    curves, rates = final_curves(regime)
    prices = Prices(*(float(price) for price in np.median([line["prices"] for line in read(regime)], axis=0)))
    by_cost_ratio = {c: compare(curves, baselines(regime), c) for c in cost_ratios(prices)}
    steps = compare(curves, baselines(regime), "steps")
    summary = {
        "start": round(float(np.mean([curve.accuracy[0] for runs in curves.values() for curve in runs])), 3),
        "target": round(steps.target, 3),
        "measured_cost_ratio": round(prices.cost_ratio, 2),
        "learning_rates": rates,
        "final_accuracy": {name: _mean_at_end(runs, "accuracy") for name, runs in curves.items()},
        "rows_trained": {name: _mean_at_end(runs, "rows") for name, runs in curves.items()},
        "steps_to_target": {name: finite(value) for name, value in steps.costs.items()},
        "speedup": {
            method.name: {
                f"{c:g}": [finite(x) for x in (outcome.ratios[method.name], *outcome.intervals[method.name])]
                for c, outcome in by_cost_ratio.items()
            }
            for method in regime.methods
        },
    }
    return summary, by_cost_ratio, prices


def _mean_at_end(runs: list[Curve], axis: str) -> float:
    return round(float(np.mean([getattr(curve, axis)[-1] for curve in runs])), 3)


def finite(value: float) -> float | None:
    return round(value, 3) if np.isfinite(value) else None


def published_cost_ratio() -> float:
    """
    Derive c of one L40S from the published step times.

    A line through them says what a rollout more costs. What a step with 16 rollouts costs beyond their sampling is what
    its 16 rows cost.
    """
    rollout, _ = np.polyfit(list(PUBLISHED_SECONDS), list(PUBLISHED_SECONDS.values()), 1)
    return float(round((PUBLISHED_SECONDS[16] / 16 - rollout) / rollout, 1))


def results_table(regimes: dict[str, Any]) -> str:
    """Markdown: the recommended setting and the default in each regime, and medians over the regimes of all."""
    lines = [f"| | {' | '.join(f'c = {c:g}' for c in TABULATED)} |", f"| --- |{' --- |' * len(TABULATED)}"]
    for method in (RECOMMENDED, DEFAULT):
        for name, found in regimes.items():
            title = f"**{label(method)}**: {title_of(name)}, from {found['start']:.0%}"
            lines.append(_row(title, [_cell(found["speedup"][method][f"{c:g}"]) for c in TABULATED]))
    for method in (RECOMMENDED, DEFAULT, *OTHERS):
        ratios = [found["speedup"][method] for found in regimes.values() if method in found["speedup"]]
        cells = [_median_and_least([speedups[f"{c:g}"][0] for speedups in ratios]) for c in TABULATED]
        lines.append(_row(f"{label(method)}: median of {len(ratios)} regimes (least)", cells))
    return "\n".join(lines)


def full_table(regimes: dict[str, Any]) -> str:
    """Markdown: every method in every regime."""
    heads = ("regime", "method", "learning rate", "accuracy at the end", "steps to the target", "rows trained")
    lines = [f"| {' | '.join((*heads, *(f'c = {c:g}' for c in TABULATED)))} |"]
    lines.append("|" + " --- |" * (len(heads) + len(TABULATED)))
    for name, found in regimes.items():
        for method, speedups in found["speedup"].items():
            steps = found["steps_to_target"][method]
            cells = [label(method), f"{found['learning_rates'][method]:g}", f"{found['final_accuracy'][method]:.1%}"]
            cells += ["not reached" if steps is None else f"{steps:.0f}", f"{found['rows_trained'][method]:,.0f}"]
            title = f"{title_of(name)}, from {found['start']:.0%}"
            lines.append(_row(title, cells + [_cell(speedups[f"{c:g}"]) for c in TABULATED]))
    return "\n".join(lines)


def price_table() -> str:
    """Markdown: what `bench_prices.py` measured."""
    found = {engine: json.loads((RESULTS / f"prices_{engine}.json").read_text())["sizes"] for engine in PRICED}
    lines = [f"| million parameters | {' | '.join(PRICED.values())} |", f"| --- |{' --- |' * len(PRICED)}"]
    for size in found["transformers"]:
        prices = [found[engine][size] for engine in PRICED]
        cells = [f"{p['cost_ratio']:.1f} ({p['rollout_ms']:.3g}, {p['row_ms']:.3g})" for p in prices]
        lines.append(_row(size, cells))
    return "\n".join(lines)


def headline(regimes: dict[str, Any]) -> str:
    """The sentence that README and docs/results.md say."""
    by_c = {c: [found["speedup"][RECOMMENDED][f"{c:g}"][0] or 0.0 for found in regimes.values()] for c in TABULATED}
    shares = [f"{statistics.median(by_c[c]):.1f} times less at c = {c:g} ({min(by_c[c]):.1f})" for c in TABULATED]
    return (
        f"To 98.5 % of the better GRPO's best accuracy, {label(RECOMMENDED)}, costs {shares[0]}, {shares[1]} and "
        f"{shares[2]}: medians of {len(regimes)} regimes, the least in parentheses."
    )


def label(name: str) -> str:
    """What readers call a method, such as `drop_16_4`."""
    kind, n, m, *over = name.split("_")
    sizes = f"GRPO {n}" if n == m else f"PODS {n} to {m}"
    rule = {"train": "" if n == m else ", all rows", "skip": ", `skip`", "drop": ", `drop`"}[kind]
    return sizes + rule + (", of twice the prompts" if over else "")


def title_of(regime: str) -> str:
    """What readers call a regime."""
    task, _, size = regime.partition("_5_")
    task = task.removesuffix("_5").removesuffix("_40").removesuffix("_90")
    return f"`{task}`" + (", 2.7 million parameters" if size else "")


def _row(title: str, cells: list[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"


def _cell(values: list[float | None]) -> str:
    """A speedup and its interval; a bound of 0 means that the target is not reached."""
    ratio, low, high = ("∞" if value is None else f"{value:.2f}" for value in values)
    return f"{ratio} ({low} to {high})" if values[0] != 0 else f"not reached (0 to {high})"


def _median_and_least(ratios: list[float | None]) -> str:
    known = [np.inf if ratio is None else ratio for ratio in ratios]
    return f"{statistics.median(known):.2f} ({min(known):.2f})".replace("(0.00)", "(not reached)")


def methods_drawn(regime: Regime) -> dict[str, str]:
    names = [method.name for method in regime.methods]
    return {label(name).replace("`", ""): name for name in (RECOMMENDED, DEFAULT, *OTHERS) if name in names}


def main() -> None:
    panels, regimes = [], {}
    for regime in REGIMES:
        if next(missing(regime), None) is not None:
            print(f"{regime.name} is not complete.")
            continue
        summary, by_cost_ratio, prices = results_of(regime)
        regimes[regime.name] = summary
        title = f"{title_of(regime.name)}, from {summary['start']:.0%}".replace("`", "")
        panels.append(SpeedupPanel(title, methods_drawn(regime), by_cost_ratio, prices))
    summary = {"l40s_cost_ratio": published_cost_ratio(), "regimes": regimes}
    (FOLDER / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw_speedups(FOLDER / "speedup.png", panels, num_columns=2)
    print(headline(regimes), results_table(regimes), full_table(regimes), sep="\n\n")
    if all((RESULTS / f"prices_{engine}.json").exists() for engine in PRICED):
        print("", price_table(), sep="\n")


if __name__ == "__main__":
    main()
