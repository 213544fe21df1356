"""Rules by how far a reward lies from the others of its prompt."""

import torch

from .order import ascending, take_both_ends, take_highest
from .paper import max_variance
from .registry import register_strategy

_EPS = 1e-4  # TRL's, added to the standard deviation


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


@register_strategy("max_advantage_variance")
def max_advantage_variance(rewards: torch.Tensor, num_kept: int) -> torch.Tensor:
    """
    Keep the m rollouts whose advantages over all n have the largest variance.

    Within a prompt the advantages (r - mean) / (std + 1e-4) are affine in the rewards, so this keeps what
    `max_variance` keeps, but for rounding. With `advantage_statistics="all"` it is the sample level of D3S within the
    prompt.

    Source: D3S (arXiv 2509.22115), sample level.
    """
    deviation = _deviation(rewards)
    num_scored = rewards.isfinite().sum(dim=1, keepdim=True)
    std = (deviation.square().nansum(dim=1, keepdim=True) / (num_scored - 1).clamp(min=1)).sqrt()
    return max_variance(deviation / (std + _EPS), num_kept)


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
