"""
The built-in down-sampling strategies: which m of n rollouts to train on.

Shapes: P prompts, n rollouts sampled per prompt, m rollouts kept per prompt. All rules are batched over prompts and
share one policy:

- a rollout whose reward is not finite (NaN where no reward function scored it) counts as unscored. Unscored rollouts
  are kept only where a prompt has fewer than m scored ones, earliest generated first;
- among rollouts of exactly equal reward, the earliest generated are kept, so that where all rewards are equal the
  first m are kept and the same input always gives the same indices;
- with m = n, all are kept.
"""

import torch

from .registry import register_strategy


@register_strategy("max_variance")
def max_variance(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep the m rollouts whose rewards have the largest variance.

    A subset of largest variance always consists of the k highest and the m - k lowest rewards for some k (PODS,
    arXiv 2504.13818, section 3), so the rewards are sorted and the m + 1 values of k are scanned with prefix sums.
    With 0/1 rewards and even m this keeps m / 2 of each, where they exist.

    Between values of k that give equal variance, the one with more of the highest rewards is taken. Costs O(n log n)
    time per prompt and O(P n) memory. Works in float64 on rewards shifted by each prompt's lowest, so that a large
    common offset does not drown the differences.

    Args:
        rewards (`torch.Tensor`):
            Rewards of shape (P, n), NaN where unscored.
        num_kept (`int`):
            Rollouts to keep per prompt, m.

    Returns:
        `torch.Tensor`: Long tensor of shape (P, m) of distinct column indices.

    Example:

    ```python
    >>> import torch
    >>> from trl_pods.strategies import max_variance

    >>> max_variance(torch.tensor([[0.0, 0.5, 0.4, 1.0]]), num_kept=2).sort().values
    tensor([[0, 3]])

    ```
    """
    values, order, num_scored = _sort(rewards)
    m, s = num_kept, num_scored
    scored = torch.where(values.isfinite(), values, 0.0)  # the infinities that stand for unscored rows
    lowest = values[:, :1].nan_to_num(posinf=0.0)
    shifted = torch.where(values.isfinite(), scored - lowest, 0.0)
    sums = torch.nn.functional.pad(shifted.cumsum(dim=1), (1, 0))  # sums[:, i]: of the i lowest
    squares = torch.nn.functional.pad(shifted.square().cumsum(dim=1), (1, 0))

    num_high = torch.arange(m, -1, -1, device=rewards.device).expand(len(rewards), -1)  # k = m, ..., 0
    rest = (s - num_high).clamp(min=0)
    total = sums[:, m - num_high[0]] + sums.gather(1, s) - sums.gather(1, rest)
    total_squares = squares[:, m - num_high[0]] + squares.gather(1, s) - squares.gather(1, rest)
    spread = total_squares - total.square() / m  # m times the variance

    # argmax returns the first of equals: the largest k. A prompt with too few scored rows keeps the first m, k = 0.
    k = num_high.gather(1, spread.argmax(dim=1, keepdim=True))
    k = torch.where(s >= m, k, 0)
    position = torch.arange(values.size(1), device=rewards.device)
    kept = (position < m - k) | ((position >= s - k) & (position < s))
    return _earliest_of_equals(kept, values, order, num_kept)


@register_strategy("max_reward")
def max_reward(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep the m rollouts of highest reward.

    A baseline of PODS (arXiv 2504.13818, section 4): it drops the failures that the policy could learn to avoid. Costs
    O(n log n) time per prompt.

    Args:
        rewards (`torch.Tensor`):
            Rewards of shape (P, n), NaN where unscored.
        num_kept (`int`):
            Rollouts to keep per prompt, m.

    Returns:
        `torch.Tensor`: Long tensor of shape (P, m) of distinct column indices.

    Example:

    ```python
    >>> import torch
    >>> from trl_pods.strategies import max_reward

    >>> max_reward(torch.tensor([[0.0, 0.5, 0.4, 1.0]]), num_kept=2).sort().values
    tensor([[1, 3]])

    ```
    """
    scores = torch.where(rewards.isfinite(), rewards, -torch.inf)
    return scores.argsort(dim=1, descending=True, stable=True)[:, :num_kept]


@register_strategy("random")
def random(rewards: torch.Tensor, num_kept: int, *, generator: torch.Generator) -> torch.Tensor:
    """
    Keep m rollouts drawn uniformly without replacement.

    A baseline of PODS (arXiv 2504.13818, section 4): the kept group has the statistics of a plain group of m. Rewards
    decide only which rollouts are scored. Costs O(n log n) time per prompt.

    Args:
        rewards (`torch.Tensor`):
            Rewards of shape (P, n), NaN where unscored.
        num_kept (`int`):
            Rollouts to keep per prompt, m.
        generator (`torch.Generator`):
            Source of the draw; the global generators are left alone.

    Returns:
        `torch.Tensor`: Long tensor of shape (P, m) of distinct column indices.

    Example:

    ```python
    >>> import torch
    >>> from trl_pods.strategies import random

    >>> random(torch.zeros(1, 8), num_kept=8, generator=torch.Generator().manual_seed(0)).sort().values
    tensor([[0, 1, 2, 3, 4, 5, 6, 7]])

    ```
    """
    keys = torch.rand(rewards.shape, generator=generator, device=generator.device).to(rewards.device)
    keys = torch.where(rewards.isfinite(), keys, torch.inf)
    return keys.argsort(dim=1, stable=True)[:, :num_kept]


@register_strategy("percentile")
def percentile(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep the m rollouts at the (i - 0.5) / m quantiles of the reward, for i = 1, ..., m.

    A baseline of PODS (arXiv 2504.13818, section 4): the kept group has the shape of the reward distribution. The
    quantile q of s scored rewards is the one at position floor(q s) of their ascending order, counted from 0; these
    positions are distinct because s >= m. Costs O(n log n) time per prompt.

    Args:
        rewards (`torch.Tensor`):
            Rewards of shape (P, n), NaN where unscored.
        num_kept (`int`):
            Rollouts to keep per prompt, m.

    Returns:
        `torch.Tensor`: Long tensor of shape (P, m) of distinct column indices.

    Example:

    ```python
    >>> import torch
    >>> from trl_pods.strategies import percentile

    >>> percentile(torch.tensor([[0.0, 0.1, 0.2, 0.3, 0.4, 0.5]]), num_kept=3).sort().values
    tensor([[1, 3, 5]])

    ```
    """
    values, order, num_scored = _sort(rewards)
    i = torch.arange(1, num_kept + 1, device=rewards.device)
    positions = (2 * i - 1) * num_scored // (2 * num_kept)
    positions = torch.where(num_scored >= num_kept, positions, i - 1)
    kept = torch.zeros_like(values, dtype=torch.bool).scatter(1, positions, True)
    return _earliest_of_equals(kept, values, order, num_kept)


def _sort(rewards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values (P, n) in ascending order as float64, unscored ones last as inf; their columns; scored rows (P, 1)."""
    scored = rewards.isfinite()
    values, order = torch.where(scored, rewards.double(), torch.inf).sort(dim=1, stable=True)
    return values, order, scored.sum(dim=1, keepdim=True)


def _earliest_of_equals(kept: torch.Tensor, values: torch.Tensor, order: torch.Tensor, num_kept: int) -> torch.Tensor:
    """Columns of the m positions marked in `kept` (P, n), moved within each run of equal values to its start."""
    new_run = torch.nn.functional.pad(values[:, 1:] != values[:, :-1], (1, 0), value=True)
    run = new_run.cumsum(dim=1) - 1
    kept_in_run = torch.zeros_like(run).scatter_add(1, run, kept.long())
    position = torch.arange(values.size(1), device=values.device).expand_as(run)
    start_of_run = torch.where(new_run, position, 0).cummax(dim=1).values
    earliest = position - start_of_run < kept_in_run.gather(1, run)
    return order[earliest].view(-1, num_kept)
