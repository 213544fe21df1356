"""
The built-in down-sampling strategies.

All take `rewards`, a float tensor of shape (P, n) with NaN where unscored, and `num_kept`, m; those that ask for
`completion_lengths` get the tokens of each rollout, a long tensor of shape (P, n). All return distinct column indices,
a long tensor of shape (P, m), in O(n log n) time per prompt. What they share on ties and missing rewards stands in
`trl_pods.strategies`.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from .order import Ordered, are_best, ascending, runs, spread_of_splits, take_both_ends, take_highest, take_marked
from .registry import register_strategy

# The paper's


@register_strategy("max_variance")
def max_variance(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep the m rollouts whose rewards have the largest variance.

    A subset of largest variance always consists of the k highest and the m - k lowest rewards for some k, so the
    rewards are sorted and all values of k are scanned with prefix sums. With 0/1 rewards and even m this keeps
    m / 2 of each, where they exist.

    Source: PODS (arXiv 2504.13818).

    Between values of k of equal variance, but for two roundings of float32, the one with more of the highest rewards is
    taken.
    """
    order = ascending(rewards)
    num_low = are_best(spread_of_splits(order, num_kept)).argmax(axis=1, keepdims=True) + 1  # the first of equals
    return take_both_ends(order, num_kept, num_low)


@register_strategy("max_reward")
def max_reward(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep the m rollouts of highest reward.

    It drops the failures that the policy could learn to avoid.

    Source: PODS (arXiv 2504.13818).
    """
    return take_highest(rewards, rewards, num_kept)


@register_strategy("random")
def random(rewards: torch.Tensor, num_kept: int, *, generator: torch.Generator) -> torch.Tensor:
    """
    Keep m rollouts drawn uniformly without replacement.

    The kept group has the statistics of a plain group of m. Rewards decide only which rollouts are scored.

    Source: PODS (arXiv 2504.13818).
    """
    keys = torch.rand(rewards.shape, generator=generator, device=generator.device).to(rewards.device)
    return take_highest(keys, rewards, num_kept)


@register_strategy("percentile")
def percentile(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep the m rollouts at the (i - 0.5) / m quantiles of the reward, for i = 1, ..., m.

    The kept group has the shape of the reward distribution. The quantile q of s scored rewards is the one at position
    floor(q s) of their ascending order, counted from 0; these positions are distinct because s >= m.

    Source: PODS (arXiv 2504.13818).
    """
    order = ascending(rewards)
    i = np.arange(1, num_kept + 1)
    positions = (2 * i - 1) * order.num_scored // (2 * num_kept)
    positions = np.where(order.num_scored >= num_kept, positions, i - 1)
    marked = np.zeros(order.columns.shape, dtype=bool)
    marked[order.rows, positions] = True
    return take_marked(order, marked, num_kept)


# By how far a reward lies from the others of its prompt


@register_strategy("max_abs_advantage")
def max_abs_advantage(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep the m rollouts of largest absolute advantage within their prompt.

    The advantage is that over all n rollouts; dividing by the prompt's standard deviation does not change the order, so
    |r - mean| is compared, as a share of the prompt's largest and rounded to float32 so that rounding decides no tie.
    Unlike `max_variance` it may keep one side only: where most rollouts fail, the few successes and then failures.

    Source: CPPO (arXiv 2503.22342), within the prompt.
    """
    deviation = _deviation(rewards).abs()
    largest = deviation.nan_to_num(nan=0.0).amax(dim=1, keepdim=True)
    return take_highest((deviation / largest).nan_to_num(nan=0.0).float(), rewards, num_kept)


@register_strategy("balanced")
def balanced(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep as many of the best rollouts as of the worst.

    With odd m, one more of the best. Equal to `max_variance` where rewards lie symmetrically; with skewed ones it keeps
    the halves equal rather than the variance largest.

    Source: trl_pods.
    """
    return take_both_ends(ascending(rewards), num_kept, num_kept // 2)


def _deviation(rewards: torch.Tensor) -> torch.Tensor:
    """
    Rewards less the mean over their prompt's scored rollouts, in float64 (P, n), NaN where unscored.

    Both are taken from the prompt's lowest reward, from which differences are exact also under a large common offset.
    """
    rewards = torch.where(rewards.isfinite(), rewards.double(), torch.nan)
    above_lowest = rewards - rewards.nan_to_num(nan=torch.inf).amin(dim=1, keepdim=True)
    return above_lowest - above_lowest.nanmean(dim=1, keepdim=True)


# By the number of tokens of a rollout


@register_strategy("shortest")
def shortest(rewards: torch.Tensor, num_kept: int, *, completion_lengths: torch.Tensor) -> torch.Tensor:
    """
    Keep the m shortest rollouts.

    Teaches brevity. Rewards decide only which rollouts are scored; combine with `exclude_truncated` where rollouts that
    were truncated have a reward.

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
    # Unscored rollouts are kept by when they were generated, as by every strategy.
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
