"""A comparison from beginning to end: tune, train, measure, write."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checks.errors import SetupError
from . import costs, summary
from .curves import Curve, read_curve
from .methods import Method
from .outcome import choose_rates, compare, cost_ratios, tuning_results
from .plots import AXES, Panel, SpeedupPanel, draw, draw_speedups
from .runs import Job, Run, train


@dataclass(frozen=True)
class Comparison:
    """What is compared."""

    title: str
    command: str
    job: Job
    methods: list[Method]
    seeds: list[int]
    learning_rates: list[float]
    tuning_seeds: list[int]
    metric: str
    folder: Path
    cost_only: bool = False

    def runs(self, method: Method, learning_rate: float, seeds: list[int]) -> list[Run]:
        """The runs of a method, one for each seed."""
        name = method.name.replace(":", "-").replace("/", "-")
        return [
            Run(method, learning_rate, seed, self.folder / "runs" / f"{name}_lr{learning_rate:g}_seed{seed}")
            for seed in seeds
        ]

    def curves(self, runs: list[Run]) -> list[Curve]:
        """The curves of finished runs."""
        return [read_curve(run.folder, self.metric) for run in runs]

    def train(self, groups: Iterable[list[Run]]) -> None:
        """Train runs of several methods, which take turns, so that what else the machine does meets all alike."""
        train([run for turn in zip(*groups, strict=True) for run in turn], self.job)

    @property
    def references(self) -> list[str]:
        """The methods that others are compared with: plain GRPO, or else the first."""
        return [method.name for method in self.methods if method.is_baseline] or [self.methods[0].name]


def measure(comparison: Comparison) -> dict[str, Any]:
    """Measure what a rollout and a row cost, by the first method alone."""
    runs = comparison.runs(comparison.methods[0], comparison.learning_rates[0], comparison.seeds)
    comparison.train([runs])
    prices = costs.measure_prices([run.folder for run in runs])
    if prices is None:
        raise SetupError("Too little was trained to tell what it costs. Raise `max_seconds`.")
    return summary.summarize_prices(prices)


def compare_methods(comparison: Comparison) -> dict[str, Any]:
    """Compare, and write `results.json`, the plots and the runs into the output folder."""
    chosen, tuning = _tuned(comparison)
    methods, references = comparison.methods, comparison.references
    runs = {method.name: comparison.runs(method, chosen[method.name], comparison.seeds) for method in methods}
    comparison.train(runs.values())
    curves = {name: comparison.curves(of_method) for name, of_method in runs.items()}
    prices = costs.measure_prices([run.folder for of_method in runs.values() for run in of_method])
    outcomes = {axis: compare(curves, references, axis) for axis in AXES}
    by_cost_ratio = {c: compare(curves, references, c) for c in cost_ratios(prices)}
    steps = {name: _mean([costs.step_seconds(run.folder) for run in of_method]) for name, of_method in runs.items()}
    results = {"command": comparison.command, "seeds": comparison.seeds, "tuning": tuning}
    results |= summary.summarize(methods, chosen, curves, outcomes, steps)
    results |= summary.summarize_costs(by_cost_ratio, prices)
    summary.write(comparison.folder / "results.json", results)
    labelled = {method.label: curves[method.name] for method in methods}
    panels = [Panel(axis, labelled, outcome.target) for axis, outcome in outcomes.items()]
    draw(comparison.folder / "accuracy.png", comparison.title, panels)
    lines = {method.label: method.name for method in methods if method.name not in references}
    draw_speedups(comparison.folder / "speedup.png", [SpeedupPanel(comparison.title, lines, by_cost_ratio, prices)])
    return results


def _tuned(comparison: Comparison) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Choose each method's learning rate on the tuning seeds, and say what it was chosen by."""
    rates, methods = comparison.learning_rates, comparison.methods
    if len(rates) == 1:
        return {method.name: rates[0] for method in methods}, []
    pairs = [(method, rate) for rate in rates for method in methods]
    runs = {pair: comparison.runs(*pair, comparison.tuning_seeds) for pair in pairs}
    comparison.train(runs.values())
    curves = {(method.name, rate): comparison.curves(of_pair) for (method, rate), of_pair in runs.items()}
    seen = tuning_results(curves, comparison.references)
    tuning = [
        {
            "method": name,
            "learning_rate": rate,
            "steps_to_target": steps if np.isfinite(steps) else None,
            "mean_accuracy": accuracy,
        }
        for (name, rate), (steps, accuracy) in seen.items()
    ]
    return choose_rates(seen), tuning


def _mean(of_runs: list[dict[str, float] | None]) -> dict[str, float] | None:
    known = [seconds for seconds in of_runs if seconds is not None]
    return {key: float(np.mean([seconds[key] for seconds in known])) for key in known[0]} if known else None
