"""The plan: seconds and learning signal of each pair (n, m), and the best of them."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SetupError
from ..registry import get_strategy
from .cautions import of_best, of_cost
from .cost import CostModel, Timing, fit_cost
from .measured import MeasuredRun, find_rewards, read_runs
from .signal import signals, unknown_to_the_simulation

NUM_ROLLOUTS = (8, 16, 32, 64, 128)
NUM_KEPT = (2, 4, 8, 16)


@dataclass(frozen=True)
class Pair:
    """
    What is predicted of a pair (n, m), per generation batch of P prompts.

    Args:
        num_rollouts (`int`):
            n.
        num_generations (`int`):
            m.
        seconds (`float`):
            Seconds.
        signal (`float`):
            S, squared signal-to-noise ratio of the gradient, see `trl_pods/planning/signal.py`.
    """

    num_rollouts: int
    num_generations: int
    seconds: float
    signal: float

    @property
    def signal_per_second(self) -> float:
        """S / seconds, by which pairs are recommended."""
        return self.signal / self.seconds

    @property
    def root_signal_per_second(self) -> float:
        """The square root of S / seconds: the signal-to-noise ratio itself, for comparisons."""
        return math.sqrt(self.signal) / self.seconds


@dataclass(frozen=True)
class Plan:
    """
    Predictions for a grid of pairs.

    Args:
        title (`str`):
            What was planned.
        rule (`str`):
            Rule that keeps m of n.
        num_prompts (`int`):
            P, prompts per generation batch.
        pairs (`list[Pair]`):
            The grid.
        cost ([`CostModel`]):
            Seconds as a function of n and m.
        rewards (`str`):
            What rewards were drawn from.
        timings (`list[Timing]`):
            What was measured.
        cautions (`list[str]`):
            What to keep in mind.
    """

    title: str
    rule: str
    num_prompts: int
    pairs: list[Pair]
    cost: CostModel
    rewards: str
    timings: list[Timing]
    cautions: list[str]

    @property
    def best(self) -> Pair:
        """The pair of most signal per second."""
        return max(self.pairs, key=lambda pair: pair.signal_per_second)

    @property
    def signal_per_second(self) -> dict[tuple[int, int], float]:
        """S / seconds of each pair (n, m)."""
        return {(pair.num_rollouts, pair.num_generations): pair.signal_per_second for pair in self.pairs}

    @property
    def root_signal_per_second(self) -> dict[tuple[int, int], float]:
        """The square root of S / seconds of each pair (n, m)."""
        return {(pair.num_rollouts, pair.num_generations): pair.root_signal_per_second for pair in self.pairs}

    def relative(self, pair: Pair) -> float:
        """
        Compare a pair with the best.

        Args:
            pair ([`Pair`]):
                The pair.

        Returns:
            `float`: Its signal per second / that of the best, in [0, 1].
        """
        return pair.signal_per_second / self.best.signal_per_second

    def as_dict(self) -> dict[str, Any]:
        """
        Give all numbers, for JSON.

        Returns:
            `dict`: The fields, with the pairs' `signal_per_second`, `root_signal_per_second` and `relative`, which is
            1 for the best.
        """
        derived = ("signal_per_second", "root_signal_per_second")
        pairs = [
            dataclasses.asdict(pair)
            | {name: getattr(pair, name) for name in derived}
            | {"relative": self.relative(pair)}
            for pair in self.pairs
        ]
        best = {"num_rollouts": self.best.num_rollouts, "num_generations": self.best.num_generations}
        return dataclasses.asdict(self) | {"pairs": pairs, "recommended": best}


def plan_runs(
    folders: Sequence[Path | str],
    rollouts: Sequence[int] = NUM_ROLLOUTS,
    kept: Sequence[int] = NUM_KEPT,
    rule: str | None = None,
    title: str | None = None,
) -> Plan:
    """
    Plan from finished runs.

    Args:
        folders (`Sequence[Path | str]`):
            `output_dir`s of runs that differ in n, m and the rule alone.
        rollouts (`Sequence[int]`, *optional*, defaults to `(8, 16, 32, 64, 128)`):
            Values of n.
        kept (`Sequence[int]`, *optional*, defaults to `(2, 4, 8, 16)`):
            Values of m.
        rule (`str`, *optional*):
            Name of the rule. Defaults to that of the runs.
        title (`str`, *optional*):
            What is planned. Defaults to the names of the runs.

    Returns:
        [`Plan`]: The plan.

    Raises:
        SetupError: The runs are missing, foreign or incomparable, or nothing can be planned from them.
    """
    runs = read_runs(folders)
    grid, rule = make_grid(rollouts, kept), rule or _rule_of(runs)
    rewards, cautions = find_rewards(runs)
    timings = [run.timing for run in runs]
    cost, num_prompts = fit_cost(timings), runs[0].record.num_prompts
    try:
        strategy = get_strategy(rule)
        signal = signals(rewards, rule, strategy, grid)
    except ValueError as error:
        raise SetupError(f"`--rule`: {error}") from error
    if not any(signal.values()):
        raise SetupError(f"The rule {rule!r} keeps only rewards that are all alike, so nothing is learned by it.")
    pairs = [Pair(n, m, cost.seconds(n, m), num_prompts * signal[n, m]) for n, m in grid]
    unknown = unknown_to_the_simulation(strategy)
    if unknown:
        cautions.append(f"The rule {rule!r} is simulated without {unknown}: all completions count as equally long.")
    cautions += of_cost(runs, cost)
    plan = Plan(title or _title(runs), rule, num_prompts, pairs, cost, rewards.description, timings, cautions)
    cautions += of_best(plan)
    return plan


def make_grid(rollouts: Sequence[int], kept: Sequence[int]) -> list[tuple[int, int]]:
    """
    List the pairs of a grid.

    Args:
        rollouts (`Sequence[int]`):
            Values of n.
        kept (`Sequence[int]`):
            Values of m.

    Returns:
        `list[tuple[int, int]]`: Pairs (n, m) with n >= m, ascending.

    Raises:
        SetupError: There are none, or an m is below 2.
    """
    if min(kept) < 2:
        raise SetupError(f"`--kept` is {list(kept)}, but at least 2 rollouts must be kept of each prompt.")
    grid = [(n, m) for m in sorted(set(kept)) for n in sorted(set(rollouts)) if n >= m]
    if not grid:
        raise SetupError(f"`--rollouts` {list(rollouts)} are all smaller than `--kept` {list(kept)}. Raise them.")
    return grid


def _rule_of(runs: Sequence[MeasuredRun]) -> str:
    rules = sorted({run.record.down_sampling for run in runs})
    if len(rules) > 1:
        raise SetupError(f"The runs used the rules {rules}. Name the one to plan for with `--rule`.")
    return rules[0]


def _title(runs: Sequence[MeasuredRun]) -> str:
    names = dict.fromkeys(run.folder.resolve().name for run in runs)
    return f"{', '.join(names)} ({Path(runs[0].record.model).name or 'model'})"
