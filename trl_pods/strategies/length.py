"""Rules that look at the number of tokens of a rollout."""

import numpy as np
import torch
from numpy.typing import NDArray

from .order import Ordered, are_best, ascending, runs, spread_of_splits, take_both_ends, take_highest
from .registry import register_strategy


@register_strategy("shortest")
def shortest(rewards: torch.Tensor, num_kept: int, *, completion_lengths: torch.Tensor) -> torch.Tensor:
    """
    Keep the m shortest rollouts.

    Teaches brevity. Rewards decide only which rollouts are scored; combine with `exclude_truncated` where rollouts that
    were cut have a reward.

    Source: GFPO (arXiv 2508.09726), filter by response length.
    """
    return take_highest(-completion_lengths.double(), rewards, num_kept)


@register_strategy("reward_per_token")
def reward_per_token(rewards: torch.Tensor, num_kept: int, *, completion_lengths: torch.Tensor) -> torch.Tensor:
    """
    Keep the m rollouts of highest reward per token.

    Compares r / max(length, 1). It is meant for rewards that are not negative: among negative ones it prefers the
    longest.

    Source: GFPO (arXiv 2508.09726), filter by token efficiency.
    """
    return take_highest(rewards.double() / completion_lengths.clamp(min=1), rewards, num_kept)


@register_strategy("length_aware_max_variance")
def length_aware_max_variance(
    rewards: torch.Tensor, num_kept: int, *, completion_lengths: torch.Tensor
) -> torch.Tensor:
    """
    Keep the rollouts of largest reward variance, and of all such choices the one with the fewest tokens.

    With 0/1 rewards ties abound: any m / 2 right and m / 2 wrong rollouts do, so the shortest of each are kept and the
    update is cheaper. Choices are compared that swap exactly equal rewards, or take more from one end and fewer from
    the other; variances that differ by less than two roundings of float32 count as equal. Ties: among equal rewards
    the shortest, then the earliest generated are kept; between choices with equally many tokens, the one with more of
    the highest rewards.

    Source: trl_pods, after PODS (arXiv 2504.13818).
    """
    # Unscored rollouts are kept by when they were generated, as by every rule.
    lengths = completion_lengths.masked_fill(~rewards.isfinite(), 0)
    order = ascending(rewards, then_by=lengths)
    tokens = _tokens_of_splits(order, lengths.numpy(force=True), num_kept)
    tokens = np.where(are_best(spread_of_splits(order, num_kept)), tokens, np.inf)
    num_low = tokens.argmin(axis=1, keepdims=True) + 1  # the first of equals
    return take_both_ends(order, num_kept, num_low)


def _tokens_of_splits(order: Ordered, lengths: NDArray[np.integer], num_kept: int) -> NDArray[np.integer]:
    """
    Tokens of the j lowest and m - j highest rollouts, for j = 1, ..., m - 1: (P, m - 1).

    In the run that the high end begins in, the shortest that the low end has left are taken.
    """
    rows, num_scored = order.rows, order.num_scored
    run_start, run_end = runs(order)
    sums = np.pad(lengths[rows, order.columns].cumsum(axis=1), ((0, 0), (1, 0)))  # sums[:, i]: of the i first
    num_low = np.arange(1, num_kept)
    first_high = np.maximum(num_low + num_scored - num_kept, 0)
    start, end = np.maximum(run_start[rows, first_high], num_low), run_end[rows, first_high]
    from_run = sums[rows, np.minimum(start + end - first_high, lengths.shape[1])] - sums[rows, start]
    return sums[:, 1:num_kept] + from_run + sums[rows, num_scored] - sums[rows, end]
