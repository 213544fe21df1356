"""The contract of a down-sampling strategy, as a test that anyone can run on their own."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .downsampling.selection import check_strategy_kwargs, seeded_generator, select
from .strategies.registry import get_strategy

_NAN = float("nan")


def check_strategy(
    strategy: str | Callable[..., torch.Tensor],
    *,
    kwargs: Mapping[str, Any] | None = None,
    equivariant: bool | None = None,
) -> None:
    """
    Check that a strategy keeps the contract of [`register_strategy`].

    It is called, on rewards of many kinds, as the trainer calls it, and must: return a long tensor of shape (P, m) of
    distinct indices in range; give the same indices for the same input, and leave the global random generator alone;
    keep every scored rollout before an unscored one, whose reward is NaN; keep all
    rollouts with m = n; accept rewards that are all equal or all unscored, float32 and float64, one prompt and many, 2
    rollouts and thousands. The built-in strategies are tested by this very function.

    Args:
        strategy (`str` or `Callable`):
            The strategy, or its registered name or import path.
        kwargs (`Mapping[str, Any]`, *optional*):
            Its parameters, as in `down_sampling_kwargs`.
        equivariant (`bool`, *optional*):
            Whether it promises that the order of a prompt's rollouts does not matter where no two of them are equal,
            and that prompts do not influence each other. By default it does unless it asks for the `generator`.

    Raises:
        AssertionError: The contract is broken; the message says where.
        RuntimeError: The strategy raised.
        ValueError: It returned something other than a long tensor, a wrong shape or wrong indices, or does not take
            `kwargs`.

    Example:

    ```python
    >>> from trl_pods.testing import check_strategy

    >>> check_strategy("max_variance")
    >>> check_strategy(lambda rewards, num_kept: rewards.argsort(dim=1)[:, -num_kept:])
    Traceback (most recent call last):
    ...
    AssertionError: unscored rollouts: a rollout without a score is kept in place of one with a score

    ```
    """
    name = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", repr(strategy))
    function = get_strategy(strategy) if isinstance(strategy, str) else strategy
    check_strategy_kwargs(name, function, kwargs or {})
    for step, (kind, rewards, num_kept) in enumerate(_cases()):
        _check_case(kind, _Caller(name, function, kwargs or {}, step), rewards, num_kept)
    if equivariant is None:
        equivariant = "generator" not in inspect.signature(function).parameters
    if equivariant:
        for num_rollouts, num_kept, share_unscored in ((16, 4, 0.0), (40, 10, 0.0), (40, 10, 0.3)):
            _check_equivariance(_Caller(name, function, kwargs or {}), num_rollouts, num_kept, share_unscored)


class _Caller:
    """Calls a strategy as the trainer does, with lengths that differ between rollouts."""

    def __init__(self, name: str, strategy: Callable[..., torch.Tensor], kwargs: Mapping[str, Any], step: int = 0):
        self.name, self.strategy, self.kwargs, self.step = name, strategy, kwargs, step

    def __call__(
        self, rewards: torch.Tensor, num_kept: int, completion_lengths: torch.Tensor | None = None
    ) -> torch.Tensor:
        if completion_lengths is None:
            completion_lengths = (torch.arange(rewards.size(1)) * 7 % 11).expand(rewards.shape)
        context = {
            "rewards_per_func": torch.stack([0.25 * rewards, 0.75 * rewards], dim=-1),
            "completion_lengths": completion_lengths,
            "truncated": completion_lengths > 9,
            "generator": seeded_generator(1),
            "step": self.step,
        }
        return select(self.name, self.strategy, rewards, num_kept, kwargs=self.kwargs, context=context)


def _cases() -> Iterator[tuple[str, torch.Tensor, int]]:
    """Name of the kind, rewards (P, n) and m."""
    draw = seeded_generator(2)
    real = torch.randn(6, 24, generator=draw)
    some = real.masked_fill(torch.rand(6, 24, generator=draw) < 0.5, _NAN)
    few = torch.full((3, 12), _NAN)
    few[0, [2, 7]] = torch.tensor([1.0, 0.0])
    few[1, 5] = 1.0
    for num_kept in (2, 3, 8, 24):
        yield "real rewards", real, num_kept
        yield "float64 rewards", real.double(), num_kept
        yield "rewards of 0 and 1", (real > 0.5).float(), num_kept
        yield "equal rewards", torch.ones(4, 24), num_kept
        yield "rewards with a large offset", real + 1e6, num_kept
        yield "tiny rewards", real * 1e-40, num_kept
        yield "unscored rollouts", some, num_kept
    for num_kept in (2, 5, 12):
        yield "fewer scored rollouts than are kept", few, num_kept
    yield "unscored rollouts", torch.tensor([[_NAN, 0.0, _NAN, 1.0]]), 2
    yield "two rollouts", real[:, :2], 2
    yield "one prompt", real[:1], 4
    yield "many prompts", torch.randn(2000, 4, generator=draw), 2
    yield "many rollouts", torch.randn(2, 5000, generator=draw), 100
    yield "many prompts and rollouts", torch.randn(64, 1024, generator=draw), 256


def _check_case(kind: str, call: _Caller, rewards: torch.Tensor, num_kept: int) -> None:
    random_state = torch.get_rng_state()
    kept = call(rewards, num_kept)
    assert torch.equal(torch.get_rng_state(), random_state), f"{kind}: the global random generator is used"
    assert torch.equal(kept, call(rewards, num_kept)), f"{kind}: the same input gives other indices"
    scored = rewards.isfinite()
    num_kept_scored = scored.gather(1, kept).sum(dim=1)
    assert torch.equal(num_kept_scored, scored.sum(dim=1).clamp(max=num_kept)), (
        f"{kind}: a rollout without a score is kept in place of one with a score"
    )


def _check_equivariance(call: _Caller, num_rollouts: int, num_kept: int, share_unscored: float) -> None:
    draw = seeded_generator(3)
    rewards = torch.randn(8, num_rollouts, generator=draw)
    rewards[torch.rand(8, num_rollouts, generator=draw) < share_unscored] = _NAN
    lengths = torch.stack([torch.randperm(num_rollouts, generator=draw) + 1 for _ in range(8)])
    kept = call(rewards, num_kept, lengths)
    order = torch.randperm(num_rollouts, generator=draw)
    moved = order[call(rewards[:, order], num_kept, lengths[:, order])].sort(dim=1).values
    assert torch.equal(kept, moved), "the order of the rollouts decides which are kept, though no two are equal"
    alone = torch.cat([call(rewards[p : p + 1], num_kept, lengths[p : p + 1]) for p in range(8)])
    assert torch.equal(kept, alone), "the rollouts kept of a prompt depend on the other prompts"
