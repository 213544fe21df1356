"""
How much a generation batch teaches: the squared signal-to-noise ratio of its gradient.

Of one prompt, with kept rewards r_1 .. r_m and advantages A_i = (r_i - mean) / s, the gradient is
sum_i A_i grad log pi_i. Let the scores grad log pi_i have the mean u + g r_i, g being the direction that raises the
reward, and independent noise of variance v. Since sum_i A_i = 0, u drops out, and with Var the variance over the m:

    mean = g sum_i A_i r_i = g m Var / s,    noise = v sum_i A_i^2 = v m Var / s^2,    mean^2 / noise = g^2 / v m Var.

The scale s cancels. For rewards 0 and 1 with k of m right, q = k / m, that is m q (1 - q): the mean score of the right
minus that of the wrong is g, with noise v / k + v / (m - k) = v / (m q (1 - q)). A prompt whose rewards are all alike
has none. PODS (arXiv 2504.13818) maximises Var at fixed m for this reason; what n costs is weighed here.

Independent estimates add their squared ratios, if each is weighted by its mean over its noise, which s = 1 does
(`scale_rewards: none`); dividing by the standard deviation loses a little where prompts differ in it. So, in units of
g^2 / v, taken as the same for all prompts,

    S(n, m) = P E[ sum_i (r_i - mean)^2 ]  over prompts, their n rewards, and the m that the rule keeps.

Steps that are small against the noise add up as prompts do. So S / second is the evidence on the gradient per second,
and stays as it is if batches are halved at half the time, where sqrt(S) / second would grow. Progress is proportional
to it while noise dominates and the learning rate fits the batch (McCandlish et al., arXiv 1812.06162, section 2.2:
progress per step ~ 1 / (1 + noise scale / batch size)). In a batch of little noise, more signal brings less.
"""

import inspect
from collections.abc import Callable

import torch

from ..selection import check_strategy_kwargs, seeded_generator, select
from .pass_rates import Rewards

NUM_PROMPTS = 8192  # drawn for each pair: the error of S is then about 1 %


def kept_signal(rewards: torch.Tensor) -> torch.Tensor:
    """
    Compute m Var of the kept rewards of each prompt.

    Args:
        rewards (`torch.Tensor`):
            Kept rewards, float tensor of shape (P, m), NaN where unscored; such a rollout does not move the model.

    Returns:
        `torch.Tensor`: Sum of squared distances from the prompt's mean, shape (P,), 0 where all are alike.

    Example:

    ```python
    >>> import torch
    >>> from trl_pods.planning.signal import kept_signal

    >>> kept_signal(torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])).tolist()
    [1.0, 0.0]

    ```
    """
    return (rewards - rewards.nanmean(dim=1, keepdim=True)).square().nansum(dim=1)


def signals(
    rewards: Rewards,
    rule: str,
    strategy: Callable[..., torch.Tensor],
    pairs: list[tuple[int, int]],
    *,
    num_prompts: int = NUM_PROMPTS,
    seed: int = 0,
) -> dict[tuple[int, int], float]:
    """
    Simulate what a rule keeps, and compute its signal.

    Args:
        rewards ([`Rewards`]):
            Source of rewards.
        rule (`str`):
            Name of the rule, for messages.
        strategy (`Callable`):
            The rule, with its default settings.
        pairs (`list[tuple[int, int]]`):
            Pairs (n, m).
        num_prompts (`int`, *optional*, defaults to `8192`):
            Prompts to draw.
        seed (`int`, *optional*, defaults to `0`):
            Seed. All pairs see the same rewards, so that they differ by what they are and not by luck.

    Returns:
        `dict[tuple[int, int], float]`: Signal per prompt, E[m Var], for each pair.

    Raises:
        ValueError: The rule has settings without defaults, or breaks its contract.
    """
    check_strategy_kwargs(rule, strategy, {})
    drawn = rewards.draw(num_prompts, max(n for n, _ in pairs), seed)
    return {
        (n, m): kept_signal(drawn[:, :n].gather(1, _kept(drawn[:, :n], rule, strategy, m, seed))).mean().item()
        for n, m in pairs
    }


def unknown_to_the_simulation(strategy: Callable[..., torch.Tensor]) -> list[str]:
    """
    List what a rule asks for and the simulation does not know.

    Args:
        strategy (`Callable`):
            The rule.

    Returns:
        `list[str]`: Of `completion_lengths`, `truncated`, `rewards_per_func` and the rule's own settings, those that
        its signature names.
    """
    known = ("generator", "step")
    parameters = list(inspect.signature(strategy).parameters.values())[2:]
    return [p.name for p in parameters if p.name not in known and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _kept(
    rewards: torch.Tensor, rule: str, strategy: Callable[..., torch.Tensor], num_kept: int, seed: int
) -> torch.Tensor:
    context = {
        "rewards_per_func": rewards.unsqueeze(-1),
        "completion_lengths": torch.ones(rewards.shape, dtype=torch.long),
        "truncated": torch.zeros(rewards.shape, dtype=torch.bool),
        "generator": seeded_generator(seed, *rewards.shape, num_kept),
        "step": 0,
    }
    return select(rule, strategy, rewards, num_kept, kwargs={}, context=context)
