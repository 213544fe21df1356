"""What finished runs say: their times, and the rewards that their rollouts got."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch

from ..errors import SetupError
from ..runs.log import completions_tables, read_log
from ..runs.record import RunRecord
from ..statistics import has_no_variance, weighted_sum
from .cost import Timing, read_timing
from .pass_rates import Rewards, SeenRewards, fit_pass_rates, pass_rates_of_log

# What must be equal, for times to be comparable.
_SHARED = ("num_prompts", "model", "device", "num_processes", "num_iterations", "max_completion_length")

_NEARLY_BINARY = 0.95  # share of the two most frequent rewards, from which on the others are rounded to them

_STD_TOLERANCE = 0.1  # of a log's standard deviation from that of rewards 0 and 1: it is a mean over steps


@dataclass(frozen=True)
class MeasuredRun:
    """
    A finished run.

    Args:
        folder (`Path`):
            Its `output_dir`.
        record ([`RunRecord`]):
            Its sizes.
        log (`list[dict]`):
            Its log.
        timing ([`Timing`]):
            Its times.
    """

    folder: Path
    record: RunRecord
    log: list[dict[str, Any]]
    timing: Timing


def read_runs(folders: Sequence[Path | str]) -> list[MeasuredRun]:
    """
    Read finished runs that differ in n, m and the rule alone.

    Args:
        folders (`Sequence[Path | str]`):
            Their `output_dir`s, at least one.

    Returns:
        `list[MeasuredRun]`: The runs.

    Raises:
        SetupError: A folder is no run of trl_pods, holds no times, or the runs cannot be compared.
    """
    runs = [_read_run(Path(folder)) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        for name in _SHARED:
            ours, theirs = getattr(first.record, name), getattr(run.record, name)
            if ours != theirs:
                raise SetupError(
                    f"{str(first.folder)!r} and {str(run.folder)!r} differ in `{name}` ({ours!r}, {theirs!r}), so "
                    "their times cannot be compared. Name runs that differ in n and m alone."
                )
    return runs


def _read_run(folder: Path) -> MeasuredRun:
    record, log = RunRecord.read(folder), read_log(folder)
    try:
        return MeasuredRun(folder, record, log, read_timing(log, record))
    except SetupError as error:
        raise SetupError(f"{str(folder)!r} cannot be planned from: {error}") from error


def find_rewards(runs: Sequence[MeasuredRun]) -> tuple[Rewards, list[str]]:
    """
    Find what rewards the rollouts of the next run would get: from the completions tables, or else from the logs.

    The whole runs are used, because the next one will pass through the same stages.

    Args:
        runs (`Sequence[MeasuredRun]`):
            The runs.

    Returns:
        `tuple[Rewards, list[str]]`: A source of rewards, and what to keep in mind of it.

    Raises:
        SetupError: No prompt had rollouts of different reward, or only the logs are there and the rewards are not 0
            and 1.
    """
    groups = [group for run in runs for group in _reward_groups(run)]
    if not groups:
        return _from_logs(runs), [
            "Pass rates come from `reward` and `frac_reward_zero_std` of the log alone. Runs with `log_completions: "
            "true` say more."
        ]
    if all(has_no_variance(group[None]).item() for group in groups):
        raise _nothing_to_learn(groups[0].nanmean().item())
    few = [f"Rewards come from {len(groups)} prompts only. Measure for longer."] if len(groups) < 50 else []
    values, counts = _values(groups)
    if counts.topk(min(2, len(counts))).values.sum() >= _NEARLY_BINARY * counts.sum():
        wrong, right = values[counts.topk(2).indices].sort().values
        if len(values) > 2:
            few.append(f"Rewards other than {wrong:g} and {right:g} are rare, and count as the nearer of these.")
        num_right = torch.stack([((group - right).abs() < (group - wrong).abs()).sum() for group in groups])
        return fit_pass_rates(num_right, torch.stack([(~group.isnan()).sum() for group in groups])), few
    return SeenRewards(groups), [
        f"Rewards take {len(values)} values, so those of each prompt are resampled: a prompt whose rollouts were all "
        "alike stays so for any n, which makes a large n look worse than it is.",
        *few,
    ]


def _values(groups: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The different rewards, and how often each was given."""
    rewards = torch.cat(list(groups))
    return rewards[~rewards.isnan()].unique(return_counts=True)


def _reward_groups(run: MeasuredRun) -> Iterator[torch.Tensor]:
    """Summed rewards of the rollouts of each prompt in the completions tables."""
    record = run.record
    for table in completions_tables(run.folder):
        if _is_of_training(table, record):
            missing = sorted(set(record.reward_names) - set(table.columns))
            if missing:
                raise SetupError(f"The completions tables of {str(run.folder)!r} lack the rewards {missing}.")
            rewards = torch.tensor(table[record.reward_names].to_numpy(dtype=float))
            total = weighted_sum(rewards, torch.tensor(record.reward_weights, dtype=rewards.dtype))
            yield from total.view(record.num_prompts, record.num_rollouts)


def _is_of_training(table: pd.DataFrame, record: RunRecord) -> bool:
    """Whether it holds one generation batch; an evaluation at the same step leaves its own table instead."""
    sampled, trained = (record.num_prompts * num for num in (record.num_rollouts, record.num_generations))
    return "kept" in table and len(table) == sampled and table["kept"].sum() == trained


def _from_logs(runs: Sequence[MeasuredRun]) -> Rewards:
    means, alike = [], []
    for run in runs:
        entries = [entry for entry in run.log if "frac_reward_zero_std" in entry]
        if len(run.record.reward_names) > 1 or not _are_binary(entries, run.record.reward_names[0]):
            raise SetupError(
                f"{str(run.folder)!r} has no completions tables, and by its log the rewards are not 0 and 1 alone. "
                "Train with `log_completions: true`."
            )
        means.append(fmean(entry[f"rewards/{run.record.reward_names[0]}/mean"] for entry in entries))
        alike.append(fmean(entry["frac_reward_zero_std"] for entry in entries))
    if min(alike) == 1.0:
        raise _nothing_to_learn(fmean(means))
    return pass_rates_of_log(means, alike, [run.record.num_rollouts for run in runs])


def _are_binary(entries: list[dict[str, Any]], name: str) -> bool:
    """Whether standard deviations over all rollouts are those of 0 and 1: the square root of mean (1 - mean)."""
    pairs = [(entry.get(f"rewards/{name}/mean"), entry.get(f"rewards/{name}/std")) for entry in entries]
    return bool(pairs) and all(
        mean is not None and 0 <= mean <= 1 and abs(std - (mean * (1 - mean)) ** 0.5) <= _STD_TOLERANCE
        for mean, std in pairs
    )


def _nothing_to_learn(mean: float) -> SetupError:
    return SetupError(
        f"No prompt had rollouts of different reward (their mean is {mean:.3g}): none was right or wrong where another "
        "was not, so nothing is learned and nothing can be planned. Take an easier or a harder task, or another model."
    )
