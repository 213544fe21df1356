"""
The order in which strategies take rollouts, by the policy of `trl_pods.strategies` on ties and missing rewards.

Shapes: P prompts, n rollouts sampled per prompt, m rollouts kept per prompt. A run is a stretch of exactly equal
rewards in ascending order. Of a run, a strategy takes the first rollouts, whichever end it counts from.

This is NumPy, on the CPU: rewards are few, their indices are needed there to pick completions, and a call of NumPy
costs a fraction of one of torch. Rewards on a GPU are fetched once for all prompts.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

# Relative difference below which two variances count as equal: two roundings of float32, in which rewards are given, so
# that 0.2 and 1.2 behave as 0 and 1 do.
SAME_VARIANCE = 2 * float(np.finfo(np.float32).eps)


class Ordered(NamedTuple):
    """Rollouts in ascending order of reward."""

    values: NDArray[np.float64]  # (P, n) ascending; unscored rollouts come last, as inf
    columns: NDArray[np.intp]  # (P, n) where each was generated
    num_scored: NDArray[np.intp]  # (P, 1)
    all_scored: bool  # for every prompt
    rows: NDArray[np.intp]  # (P, 1) the prompts, to index with
    device: torch.device  # of the rewards


def ascending(rewards: torch.Tensor, then_by: torch.Tensor | None = None) -> Ordered:
    """Sort rollouts by reward, equal ones by another key if there is one, then by when they were generated."""
    keys = rewards.double().numpy(force=True)
    scored = np.isfinite(keys)
    num_scored = scored.sum(axis=1, keepdims=True)
    all_scored = bool(scored.all())
    if not all_scored:
        keys = np.where(scored, keys, np.inf)
    rows = np.arange(len(keys))[:, None]
    if then_by is None:
        columns = keys.argsort(axis=1, kind="stable")
    else:
        columns = then_by.numpy(force=True).argsort(axis=1, kind="stable")
        columns = columns[rows, keys[rows, columns].argsort(axis=1, kind="stable")]
    return Ordered(keys[rows, columns], columns, num_scored, all_scored, rows, rewards.device)


def spread_of_splits(order: Ordered, num_kept: int) -> NDArray[np.float64]:
    """
    Compute m times the variance of the j lowest and m - j highest rewards, for every j, with prefix sums.

    Only 0 < j < m matters: moving the lowest of a set further down, or its highest further up, adds to its variance, so
    the lowest and the highest reward are always among those of largest variance. Going from j to j + 1 adds the lowest
    reward that is not yet in the set and removes the lowest of its high ones, so that the sum and the sum of squares
    change by differences, which are summed up. Works in float64 on rewards shifted by each prompt's lowest, so that a
    large common offset does not drown the differences.
    """
    values = order.values
    if not order.all_scored:
        values = np.where(order.num_scored >= num_kept, values, 0.0)
    lowest = values[:, :1]
    low = values[:, :num_kept] - lowest
    high = values[order.rows, order.num_scored - num_kept + np.arange(num_kept)] - lowest
    change = low - high
    sums = high.sum(axis=1, keepdims=True) + change.cumsum(axis=1)[:, :-1]
    squares = (high * high).sum(axis=1, keepdims=True) + (change * (low + high)).cumsum(axis=1)[:, :-1]
    return squares - sums * sums / num_kept


def are_best(spread: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the splits whose variance is the largest, but for rounding (see `SAME_VARIANCE`)."""
    return spread >= spread.max(axis=1, keepdims=True) * (1 - SAME_VARIANCE)


def take_both_ends(order: Ordered, num_kept: int, num_low: NDArray[np.intp] | int) -> torch.Tensor:
    """Take the j lowest and the m - j highest rollouts; of a prompt with fewer than m scored ones, the first m."""
    values, columns, num_scored, all_scored, rows, device = order
    if not all_scored:
        num_low = np.where(num_scored >= num_kept, num_low, num_kept)
    position, skipped = np.arange(num_kept), num_scored - num_kept
    is_high = position >= num_low
    position = position + is_high * skipped
    first_high = np.minimum(num_low + skipped, values.shape[1] - 1)
    boundary = values[rows, first_high]
    if (values[rows, first_high - 1] == boundary).any():
        # The high end begins within a run: take the first of it that the low end has left, rather than the last.
        run_start = (values < boundary).sum(axis=1, keepdims=True)
        run_end = (values <= boundary).sum(axis=1, keepdims=True)
        position -= (is_high & (position < run_end)) * (first_high - np.maximum(run_start, num_low))
    return torch.from_numpy(columns[rows, position]).to(device)


def take_marked(order: Ordered, marked: NDArray[np.bool_], num_kept: int) -> torch.Tensor:
    """Take the rollouts at marked positions, or rather, of each run, as many from its start."""
    run_start, _ = runs(order)
    num_marked = np.zeros_like(run_start)
    np.add.at(num_marked, (order.rows, run_start), marked)
    position = np.arange(marked.shape[1])
    taken = position - run_start < num_marked[order.rows, run_start]
    return torch.from_numpy(order.columns[taken].reshape(-1, num_kept)).to(order.device)


def take_highest(keys: torch.Tensor, rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """Take the rollouts of the highest keys, equal ones by when they were generated, unscored ones last."""
    keys = torch.where(rewards.isfinite(), keys, -torch.inf)
    return keys.argsort(dim=1, descending=True, stable=True)[:, :num_kept]


def runs(order: Ordered) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Find the run that each position is in."""
    values = order.values
    position = np.arange(values.shape[1])
    changes = values[:, 1:] != values[:, :-1]
    starts = np.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    ends = np.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    run_start = np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    run_end = np.minimum.accumulate(np.where(ends, position + 1, len(position))[:, ::-1], axis=1)[:, ::-1]
    return run_start, run_end
