"""A comparison from beginning to end: tune, train, measure, write."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import costs, summary
from .curves import Curve, read_curve
from .methods import Method
from .outcome import Outcome, choose_rates, compare, tuning_results
from .plots import Panel, draw
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


class Axis(NamedTuple):
    """Curves by method, and how time is measured along them."""

    title: str
    unit: str
    curves: dict[str, list[Curve]]

    def outcome(self, references: list[str]) -> Outcome:
        """The times to the target."""
        return compare(self.curves, references, self.unit)


def run(comparison: Comparison) -> dict[str, Any]:
    """Compare, and write `results.json`, `accuracy.png` and the runs into the output folder."""
    chosen, tuning = _tuned(comparison)
    methods = comparison.methods
    runs = {method.name: comparison.runs(method, chosen[method.name], comparison.seeds) for method in methods}
    comparison.train(runs.values())
    axes = _measured(comparison, runs)
    outcomes = {name: axis.outcome(comparison.references) for name, axis in axes.items()}
    costs_of = {name: _mean([costs.step_seconds(run.folder) for run in of_method]) for name, of_method in runs.items()}
    titles = {name: axis.title for name, axis in axes.items()}
    results = {"command": comparison.command, "seeds": comparison.seeds, "axes": titles, "tuning": tuning}
    results |= summary.summarize(methods, chosen, axes["seconds"].curves, outcomes, costs_of)
    summary.write(comparison.folder / "results.json", results)
    labels = {method.name: method.label for method in methods}
    panels = [
        Panel(axis.title, axis.unit, {labels[key]: runs for key, runs in axis.curves.items()}, outcomes[name].target)
        for name, axis in axes.items()
    ]
    draw(comparison.folder / "accuracy.png", comparison.title, panels)
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
    seen = tuning_results(curves, comparison.references, comparison.job.max_seconds)
    tuning = [
        {
            "method": name,
            "learning_rate": rate,
            "time_to_target": time if np.isfinite(time) else None,
            "mean_accuracy": accuracy,
        }
        for (name, rate), (time, accuracy) in seen.items()
    ]
    return choose_rates(seen), tuning


def _measured(comparison: Comparison, runs: dict[str, list[Run]]) -> dict[str, Axis]:
    """The comparison by seconds and by steps."""
    curves = {name: comparison.curves(of_method) for name, of_method in runs.items()}
    return {"seconds": Axis("measured", "seconds", curves), "steps": Axis("per step", "steps", curves)}


def _mean(of_runs: list[dict[str, float] | None]) -> dict[str, float] | None:
    known = [seconds for seconds in of_runs if seconds is not None]
    return {key: float(np.mean([seconds[key] for seconds in known])) for key in known[0]} if known else None
