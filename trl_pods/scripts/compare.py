"""
What `trl-pods compare` runs: the same start model trained by plain GRPO and by PODS for the same time, several seeds.

Evaluation is off the clock. With several learning rates, each method gets the one that does best on tuning seeds, which
are others than those compared.
"""

import argparse
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from ..batching import check_evaluation
from ..comparison import costs, summary
from ..comparison.curves import Curve, read_curve
from ..comparison.methods import DEFAULT, METHODS, Method, make_method
from ..comparison.outcome import Outcome, choose_rates, compare
from ..comparison.runs import Run, train
from ..errors import SetupError, said_in_a_line
from .arguments import Arguments, RecipeParser
from .build import load_rewards
from .grpo import set_up, set_up_output


@dataclass(frozen=True)
class Comparison:
    """
    What is compared.

    Args:
        parsed ([`Arguments`]):
            The recipe, with what the command line overrides.
        shared (`list[str]`):
            Arguments of `trl-pods grpo` that all runs share.
        methods (`list[Method]`):
            The methods.
        seeds (`list[int]`):
            Seeds that are compared.
        learning_rates (`list[float]`):
            Learning rates to choose from for each method.
        tuning_seeds (`list[int]`):
            Seeds by which they are chosen.
        metric (`str`):
            Key of the accuracy in the log.
        folder (`Path`):
            Where everything goes.
        num_jobs (`int`):
            Runs at a time.
        hardware ([`~comparison.costs.Hardware`], *optional*):
            Step costs of other hardware to project to.
    """

    parsed: Arguments
    shared: list[str]
    methods: list[Method]
    seeds: list[int]
    learning_rates: list[float]
    tuning_seeds: list[int]
    metric: str
    folder: Path
    num_jobs: int
    hardware: costs.Hardware | None

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
        train([run for turn in zip(*groups, strict=True) for run in turn], self.shared, self.num_jobs)

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
        known = [name for name in references if name in self.curves]
        return compare(self.curves, known or [next(iter(self.curves))], self.unit)


def run(arguments: list[str], prog: str = "trl-pods compare") -> dict[str, Any]:
    """
    Compare, and write `results.json`, `accuracy.png` and the runs into the output folder.

    Args:
        arguments (`list[str]`):
            Command-line arguments.
        prog (`str`, *optional*, defaults to `"trl-pods compare"`):
            Name of the command, for its help.

    Returns:
        `dict`: What `results.json` holds.

    Raises:
        SetupError: An argument is wrong, or a run failed.
    """
    try:
        from ..comparison.pictures import Panel, draw
    except ImportError as error:
        raise SetupError(f"Pictures need matplotlib: {error}. Install it: pip install 'trl-pods[plot]'.") from error
    comparison = _parse(arguments, prog)
    chosen = _tuned(comparison)
    runs = {
        method.name: comparison.runs(method, chosen[method.name], comparison.seeds) for method in comparison.methods
    }
    comparison.train(runs.values())
    axes = _measured(comparison, runs)
    outcomes = {name: axis.outcome(comparison.references) for name, axis in axes.items()}
    costs_of = {name: _mean([costs.step_seconds(run.folder) for run in of_method]) for name, of_method in runs.items()}
    results = {"command": shlex.join([*prog.split(), *arguments]), "seeds": comparison.seeds}
    results |= summary.summarize(comparison.methods, chosen, axes["seconds"].curves, outcomes, costs_of)
    summary.write(comparison.folder / "results.json", results)
    labels = {method.name: method.label for method in comparison.methods}
    panels = [
        Panel(axis.title, axis.unit, {labels[key]: runs for key, runs in axis.curves.items()}, outcomes[name].target)
        for name, axis in axes.items()
    ]
    draw(comparison.folder / "accuracy.png", Path(comparison.parsed.recipe.path or "").stem, panels)
    tables = [summary.table(results, name) for name in axes if name != "steps"]
    Console().print(*tables, summary.phase_table(results), sep="\n")
    print(f"Numbers, curves and picture are in {comparison.folder}: results.json, accuracy.png.")
    return results


def _parse(arguments: list[str], prog: str) -> Comparison:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", metavar="RECIPE", required=True, help="recipe of the PODS run")
    parser.add_argument("--methods", nargs="+", default=list(DEFAULT), help=f"of {list(METHODS)} and 'pods:RULE'")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds that are compared")
    parser.add_argument("--learning_rates", nargs="+", type=float, help="to choose from, for each method")
    parser.add_argument("--tuning_seeds", nargs="+", type=int, default=[1000], help="seeds to choose them by")
    parser.add_argument("--accuracy", help="reward function that is the accuracy (default: the first)")
    parser.add_argument("--hardware", help="JSON with step costs of other hardware to project the curves to")
    parser.add_argument("--num_jobs", type=int, default=1, help="runs at a time, on a CPU with cores to spare")
    parser.add_argument("--output_dir", default="runs/compare", help="folder for all that it makes")
    own, rest = parser.parse_known_args(arguments)
    shared = ["--config", own.config, *rest]
    parsed = RecipeParser(prog).parse(shared)
    shared += _same_evaluation(parsed)
    with parsed.explained():
        check_evaluation(parsed.training)
        names = [getattr(reward, "__name__", str(reward).split("/")[-1]) for reward in load_rewards(parsed)]
        methods = [make_method(name, parsed.training) for name in own.methods]
        set_up(parsed)
    _check(own, parsed, names)
    return Comparison(
        parsed,
        shared,
        methods,
        own.seeds,
        own.learning_rates or [parsed.training.learning_rate],
        own.tuning_seeds,
        f"eval_rewards/{own.accuracy or names[0]}/mean",
        Path(own.output_dir),
        own.num_jobs,
        costs.Hardware.read(own.hardware) if own.hardware else None,
    )


def _check(own: argparse.Namespace, parsed: Arguments, names: list[str]) -> None:
    for name in ("max_seconds", "eval_seconds"):
        if getattr(parsed.script, name) is None:
            raise SetupError(f"`{name}` is not set, but methods are compared by it. Give it seconds of training.")
    if own.accuracy is not None and own.accuracy not in names:
        raise SetupError(f"`accuracy` is {own.accuracy!r}, but the recipe's reward functions are {names}. Name one.")
    if shared := sorted({*own.seeds} & {*own.tuning_seeds}):
        raise SetupError(f"`tuning_seeds` has {shared}, which are compared, too. Use others, to choose fairly.")
    for name in ("methods", "seeds", "learning_rates", "tuning_seeds"):
        values = getattr(own, name) or []
        if len(set(values)) < len(values):
            raise SetupError(f"`{name}` is {values}, which has a value twice. Give each once.")
    if own.num_jobs < 1:
        raise SetupError(f"`num_jobs` is {own.num_jobs}, but it must be 1 or more.")


def _same_evaluation(parsed: Arguments) -> list[str]:
    """All methods are evaluated alike, whatever group they train."""
    args = parsed.training
    return ["--num_generations_eval", str(args.num_generations_eval or args.num_generations)]


def _tuned(comparison: Comparison) -> dict[str, float]:
    """Choose each method's learning rate on the tuning seeds, by what is compared afterwards."""
    rates, methods = comparison.learning_rates, comparison.methods
    if len(rates) == 1:
        return {method.name: rates[0] for method in methods}
    pairs = [(method, rate) for rate in rates for method in methods]
    runs = {pair: comparison.runs(*pair, comparison.tuning_seeds) for pair in pairs}
    comparison.train(runs.values())
    curves = {(method.name, rate): comparison.curves(of_pair) for (method, rate), of_pair in runs.items()}
    return choose_rates(curves, comparison.references, comparison.parsed.script.max_seconds or 0.0)


def _measured(comparison: Comparison, runs: dict[str, list[Run]]) -> dict[str, Axis]:
    """The comparison by seconds, by steps, and by seconds on other hardware."""
    curves = {name: comparison.curves(of_method) for name, of_method in runs.items()}
    axes = {"seconds": Axis("measured", "seconds", curves), "steps": Axis("per step", "steps", curves)}
    if comparison.hardware is not None:
        seconds = {method.name: comparison.hardware.step_seconds(method) for method in comparison.methods}
        known = {name: costs.projected(curves[name], s) for name, s in seconds.items() if s is not None}
        if known:
            axes["projected"] = Axis(f"projected to {comparison.hardware.name}", "seconds", known)
    return axes


def _mean(dictionaries: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([values[key] for values in dictionaries])) for key in dictionaries[0]}


def main(arguments: list[str], prog: str) -> None:
    """
    Run the script as a command: what a user can mend is said in a line, without a traceback.

    Args:
        arguments (`list[str]`):
            Command-line arguments.
        prog (`str`):
            Name of the command, for its help and its errors.
    """
    set_up_output()
    with said_in_a_line(prog):
        run(arguments, prog)
