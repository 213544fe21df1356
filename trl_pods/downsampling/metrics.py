"""
Quantities computed from rewards: the weighted sum, advantages over all rollouts, and what selection did to them.

Shapes: P prompts sampled, n rollouts sampled per prompt, m rollouts kept per prompt, F reward functions. NaN marks a
reward that a function did not give, or a rollout that no function scored.
"""

import torch
from trl.trainer.utils import nanstd

from .selection import Selection

_EPS = 1e-4  # TRL's, added to the standard deviation


def weighted_sum(rewards_per_func: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum the rewards of all functions as TRL does: weighted, leaving out those that are NaN."""
    total = (rewards_per_func * weights).nansum(dim=-1)
    return total.masked_fill(rewards_per_func.isnan().all(dim=-1), torch.nan)


def has_no_variance(rewards: torch.Tensor) -> torch.Tensor:
    """
    Tell which groups have rewards that are equal but for rounding.

    The test is max - min <= 4 times the machine epsilon of the dtype times the largest magnitude, rather
    than exact equality: rewards such as 1.0 and 1.0000001 carry no signal.
    """
    lowest, highest = _range(rewards)
    magnitude = torch.maximum(highest.abs(), lowest.abs())
    return ((~rewards.isnan()).sum(dim=1) < 2) | (highest - lowest <= 4 * torch.finfo(rewards.dtype).eps * magnitude)


def has_signal(rewards_per_func: torch.Tensor, weights: torch.Tensor, *, aggregation: str) -> torch.Tensor:
    """
    Tell which prompts' advantages differ, by the rewards (P, k, F) that give their statistics: bool tensor (P,).

    With `aggregation="normalize_then_sum"` it is enough that one function's rewards differ.
    """
    if aggregation == "sum_then_normalize":
        return _differ(weighted_sum(rewards_per_func, weights))
    return _differ(rewards_per_func * (weights != 0)).any(dim=-1)


def _differ(rewards: torch.Tensor) -> torch.Tensor:
    """Whether rewards of dimension 1 differ at all: small differences have large advantages where the mean is large."""
    lowest, highest = _range(rewards)
    return highest > lowest


def _range(rewards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest and the highest scored reward along dimension 1; infinity and its negative where there is none."""
    unscored = rewards.isnan()
    lowest = rewards.masked_fill(unscored, torch.inf).amin(dim=1)
    return lowest, rewards.masked_fill(unscored, -torch.inf).amax(dim=1)


def advantages_over_all(
    rewards_per_func: torch.Tensor, weights: torch.Tensor, *, scale_rewards: str, aggregation: str
) -> torch.Tensor:
    """
    Compute GRPO's advantages with the statistics of all n rollouts of each prompt.

    With `aggregation="sum_then_normalize"`, A_i = (r_i - mean) / (std + 1e-4), where r is the weighted sum of rewards
    and the mean is the prompt's; the standard deviation is the prompt's for `scale_rewards="group"` (DeepSeekMath,
    arXiv 2402.03300, section 4.1), the batch's for `"batch"`, and there is no division for `"none"`. With
    `"normalize_then_sum"` (GDPO, arXiv 2601.05242) each function's rewards are normalised within the prompt, summed
    with the weights, and normalised over the batch. These are the formulas of TRL, so that with n as the group size
    they give what `GRPOTrainer` gives.
    """
    if aggregation == "normalize_then_sum":
        normalized = _normalize(rewards_per_func, nanstd(rewards_per_func, dim=1, keepdim=True), dim=1)
        # Where a prompt has a single score it has no spread, and counts as 0.
        rewards = (normalized * weights).nansum(dim=-1).masked_fill(rewards_per_func.isnan().all(dim=-1), torch.nan)
        return _normalize(rewards, nanstd(rewards)).nan_to_num(nan=0.0)
    rewards = weighted_sum(rewards_per_func, weights)
    if scale_rewards == "none":
        return (rewards - rewards.nanmean(dim=1, keepdim=True)).nan_to_num(nan=0.0)
    std = nanstd(rewards) if scale_rewards == "batch" else nanstd(rewards, dim=1, keepdim=True)
    return _normalize(rewards, std, dim=1).nan_to_num(nan=0.0)


def reward_metrics(rewards_per_func: torch.Tensor, weights: torch.Tensor, names: list[str]) -> dict[str, float]:
    """
    Compute TRL's reward metrics over all n rollouts.

    They are TRL's keys with TRL's meaning, except that `frac_reward_zero_std` is always the share of prompts whose
    rollouts have no variance within the prompt (see [`has_no_variance`]), whatever `scale_rewards` is.
    """
    rewards = weighted_sum(rewards_per_func, weights)
    metrics = {
        "reward": rewards.nanmean().item(),
        "reward_std": nanstd(rewards).item(),
        "frac_reward_zero_std": has_no_variance(rewards).float().mean().item(),
    }
    for i, name in enumerate(names):
        metrics[f"rewards/{name}/mean"] = rewards_per_func[..., i].nanmean().item()
        metrics[f"rewards/{name}/std"] = nanstd(rewards_per_func[..., i]).item()
    return metrics


def selection_metrics(selection: Selection, weights: torch.Tensor) -> dict[str, float]:
    """Describe what was kept and trained, against what was sampled."""
    rewards, kept = weighted_sum(selection.rewards_per_func, weights), selection.kept
    trained = {
        "pods/trained_rows": float(len(selection.trained_rows)),
        "pods/frac_prompts_trained": len(selection.trained_prompts) / len(kept),
    }
    if rewards.shape == kept.shape:
        return trained
    kept_rewards = rewards.gather(1, kept)
    dropped = torch.ones_like(rewards, dtype=torch.bool).scatter(1, kept, False)
    kept_tokens = selection.completion_lengths.gather(1, kept).sum()
    return trained | {
        "pods/kept_reward": kept_rewards.nanmean().item(),
        "pods/kept_reward_std": nanstd(kept_rewards).item(),
        "pods/dropped_reward": rewards[dropped].nanmean().item(),
        "pods/kept_frac_zero_std": has_no_variance(kept_rewards).float().mean().item(),
        "pods/variance_gain": variance_gain(rewards, kept),
        "pods/kept_token_fraction": (kept_tokens / selection.completion_lengths.sum().clamp(min=1)).item(),
    }


def variance_gain(rewards: torch.Tensor, kept: torch.Tensor) -> float:
    """
    Compute how many times larger the reward variance within the kept groups is than within the sampled ones.

    It is the mean over prompts of the kept variance, divided by the mean over prompts of the variance of all n, both
    without Bessel's correction (the Var of PODS, arXiv 2504.13818).
    """
    everything = variance(rewards).mean().item()
    return 1.0 if everything == 0 else variance(rewards.gather(1, kept)).mean().item() / everything


def variance(rewards: torch.Tensor) -> torch.Tensor:
    """Compute each group's variance (P,), without Bessel's correction, as float64; 0 where rewards are equal."""
    rewards = rewards.double()
    variances = (rewards - rewards.nanmean(dim=1, keepdim=True)).square().nanmean(dim=1)
    return variances.masked_fill(has_no_variance(rewards.float()), 0.0)


def _normalize(values: torch.Tensor, std: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    mean = values.nanmean() if dim is None else values.nanmean(dim=dim, keepdim=True)
    return (values - mean) / (std + _EPS)
