"""
Rewards that rollouts would get: drawn for new prompts, for any number of rollouts, after what runs have seen.

Right-or-wrong rewards are drawn by the pass rates of prompts, which follow a Beta distribution: then a prompt with 0 of
8 right may have some right of 128. Other rewards are resampled from the prompts that were seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


class Rewards(Protocol):
    """A source of rewards."""

    @property
    def description(self) -> str:
        """What it draws from, in words."""

    def draw(self, num_prompts: int, num_rollouts: int, seed: int) -> torch.Tensor:
        """
        Draw rewards.

        Args:
            num_prompts (`int`):
                Prompts to draw.
            num_rollouts (`int`):
                Rollouts of each. Any of its columns may be left out, since they are exchangeable.
            seed (`int`):
                Seed.

        Returns:
            `torch.Tensor`: Float tensor of shape (num_prompts, num_rollouts), NaN where a rollout has no score.
        """


@dataclass(frozen=True)
class BetaPassRates:
    """
    Rewards 0 and 1 of prompts whose pass rates follow Beta(alpha, beta).

    Args:
        alpha (`float`):
            First parameter.
        beta (`float`):
            Second parameter. The mean pass rate is alpha / (alpha + beta); the smaller their sum, the more prompts
            are nearly always or nearly never right.
    """

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        """Mean pass rate, in (0, 1)."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def description(self) -> str:
        """What it draws from, in words."""
        return f"pass rates from Beta({self.alpha:.3g}, {self.beta:.3g}), mean {self.mean:.3g}"

    def draw(self, num_prompts: int, num_rollouts: int, seed: int) -> torch.Tensor:
        """Draw 0 and 1, see [`Rewards`]."""
        random = np.random.default_rng(seed)
        pass_rates = random.beta(self.alpha, self.beta, size=(num_prompts, 1))
        return torch.from_numpy((random.random((num_prompts, num_rollouts)) < pass_rates).astype(np.float32))


@dataclass(frozen=True)
class SeenRewards:
    """
    Rewards resampled with replacement from those of prompts that were seen.

    Args:
        groups (`Sequence[torch.Tensor]`):
            Rewards of the rollouts of each prompt, float tensors of shape (n,).
    """

    groups: Sequence[torch.Tensor]

    @property
    def description(self) -> str:
        """What it draws from, in words."""
        return f"rewards resampled from the rollouts of {len(self.groups)} prompts"

    def draw(self, num_prompts: int, num_rollouts: int, seed: int) -> torch.Tensor:
        """Resample prompts, and of each its rollouts, see [`Rewards`]."""
        random = np.random.default_rng(seed)
        prompts = random.integers(len(self.groups), size=(num_prompts, 1))
        sizes = np.array([len(group) for group in self.groups])
        columns = (random.random((num_prompts, num_rollouts)) * sizes[prompts]).astype(np.int64)
        seen = torch.nn.utils.rnn.pad_sequence(list(self.groups), batch_first=True)
        return seen[torch.from_numpy(prompts), torch.from_numpy(columns)].float()


def fit_pass_rates(right: torch.Tensor, sampled: torch.Tensor) -> BetaPassRates:
    """
    Fit the Beta distribution of the pass rates by the likelihood of the beta-binomial.

    For k of n right its logarithm is log B(k + alpha, n - k + beta) - log B(alpha, beta) + a constant. It is searched
    over the mean from 0.001 to 0.999 and alpha + beta from 0.02 to 10000, on a grid that closes in on its best point:
    beyond, all prompts are certain, or all are alike.

    Args:
        right (`torch.Tensor`):
            Right rollouts k of each prompt, shape (prompts,).
        sampled (`torch.Tensor`):
            Scored rollouts n of each prompt, shape (prompts,).

    Returns:
        [`BetaPassRates`]: The distribution.

    Example:

    ```python
    >>> import torch
    >>> from trl_pods.planning.pass_rates import fit_pass_rates

    >>> round(fit_pass_rates(torch.tensor([1, 2, 3, 2]), torch.full((4,), 8)).mean, 3)
    0.25

    ```
    """
    pairs, counts = torch.stack([right, sampled], dim=1).double().unique(dim=0, return_counts=True)
    low, high = torch.tensor([-7.0, np.log(0.02)]).double(), torch.tensor([7.0, np.log(1e4)]).double()
    best, span = (low + high) / 2, high - low
    for _ in range(12):
        axes = [torch.linspace(-0.5, 0.5, 29).double().mul(span[i]).add(best[i]).clamp(low[i], high[i]) for i in (0, 1)]
        grid = torch.cartesian_prod(*axes)
        alpha, beta = _parameters(grid)
        likelihood = _log_likelihood(pairs[:, 0], pairs[:, 1], alpha[:, None], beta[:, None]) @ counts.double()
        best, span = grid[likelihood.argmax()], span * 0.4
    return BetaPassRates(*(value.item() for value in _parameters(best[None])))


def pass_rates_of_log(
    means: Sequence[float], shares_alike: Sequence[float], num_rollouts: Sequence[int]
) -> BetaPassRates:
    """
    Find the Beta distribution whose mean and share of prompts with rollouts all alike are those of logs.

    Args:
        means (`Sequence[float]`):
            Mean of `reward` of each run.
        shares_alike (`Sequence[float]`):
            Mean of `frac_reward_zero_std` of each run.
        num_rollouts (`Sequence[int]`):
            n of each run.

    Returns:
        [`BetaPassRates`]: The distribution, with alpha + beta from 0.02 to 10000.
    """
    mean = float(np.mean(means))
    low, high = np.log(0.02), np.log(1e4)
    for _ in range(60):  # the larger alpha + beta, the fewer prompts are all alike
        middle = (low + high) / 2
        fitted = BetaPassRates(mean * np.exp(middle), (1 - mean) * np.exp(middle))
        excess = sum(share_alike(fitted, n) - share for n, share in zip(num_rollouts, shares_alike, strict=True))
        low, high = (middle, high) if excess > 0 else (low, middle)
    return fitted


def share_alike(pass_rates: BetaPassRates, num_rollouts: int) -> float:
    """
    Tell how many prompts have only right or only wrong rollouts.

    Args:
        pass_rates ([`BetaPassRates`]):
            Pass rates of the prompts.
        num_rollouts (`int`):
            n.

    Returns:
        `float`: E[p^n + (1 - p)^n], in [0, 1].

    Example:

    ```python
    >>> from trl_pods.planning.pass_rates import BetaPassRates, share_alike

    >>> round(share_alike(BetaPassRates(1.0, 1.0), 4), 6)  # 2 / (n + 1) for pass rates spread evenly
    0.4

    ```
    """
    alpha, beta = torch.tensor(pass_rates.alpha).double(), torch.tensor(pass_rates.beta).double()
    right = torch.tensor([0.0, num_rollouts]).double()
    return _log_likelihood(right, torch.tensor(num_rollouts), alpha, beta).exp().sum().item()


def _parameters(grid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Alpha and beta, from the logit of the mean and the logarithm of their sum."""
    mean, total = grid[:, 0].sigmoid(), grid[:, 1].exp()
    return mean * total, (1 - mean) * total


def _log_likelihood(
    right: torch.Tensor, sampled: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """Logarithm of the beta-binomial probability of one order of right and wrong rollouts."""
    return _log_beta(right + alpha, sampled - right + beta) - _log_beta(alpha, beta)


def _log_beta(alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    return alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()
