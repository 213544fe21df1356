"""The four rules that the PODS paper compares (arXiv 2504.13818)."""

import numpy as np
import torch

from .order import are_best, ascending, spread_of_splits, take_both_ends, take_highest, take_marked
from .registry import register_strategy


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
