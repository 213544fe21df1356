"""
Selecting rollouts: call a strategy with what it asks for, and check what it returns.

Shapes: Q prompts sampled, P <= Q prompts that the update counts, K <= P prompts that go on to it, n rollouts sampled
and m kept per prompt, F reward functions.
"""

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import torch

from ..checks.errors import SetupError

Strategy = Callable[..., torch.Tensor]

# What becomes of a prompt: not in the update, counted in its denominators alone, in it to fill it up, or in it.
LEFT_OUT, COUNTED, FILLING, TRAINED = range(4)

# What a strategy may ask for by naming it in its signature.
CONTEXT = ("rewards_per_func", "completion_lengths", "truncated", "generator", "step")


@dataclass(frozen=True)
class Selection:
    """A generation batch as it was before narrowing, and what of it goes on. Tensors are on the CPU."""

    prompts: list  # of this process's rows, as completions and images
    completions: list
    images: list | None
    rewards_per_func: torch.Tensor  # (Q, n, F) of all processes, NaN where a function gave none
    completion_lengths: torch.Tensor  # (Q, n) tokens that the model generated
    loss_tokens: torch.Tensor  # (Q, n) those of them that the loss sees
    kept: torch.Tensor  # (Q, m) columns of the kept rollouts, ascending
    roles: torch.Tensor  # (Q,) `LEFT_OUT`, `COUNTED`, `FILLING` or `TRAINED`

    @cached_property
    def trained_prompts(self) -> torch.Tensor:
        """Prompts that go on to the update, ascending: long tensor of shape (K,)."""
        return (self.roles >= FILLING).nonzero().flatten()

    @cached_property
    def counted_prompts(self) -> torch.Tensor:
        """Prompts that the update stands for, ascending: long tensor of shape (P,)."""
        return (self.roles != LEFT_OUT).nonzero().flatten()

    @cached_property
    def trained_rows(self) -> torch.Tensor:
        """Places of the rollouts that go on among all Q n, ascending: long tensor of shape (K m,)."""
        return self.rows(self.trained_prompts)

    def rows(self, prompts: torch.Tensor) -> torch.Tensor:
        """Places of the kept rollouts of some prompts among all Q n."""
        num_rollouts = self.completion_lengths.size(1)
        return (prompts.unsqueeze(1) * num_rollouts + self.kept[prompts]).flatten()

    def among_all(self, rows: torch.Tensor) -> torch.Tensor:
        """Whether each of all rollouts is among the given ones: bool tensor of shape (Q n,)."""
        return torch.zeros(self.completion_lengths.numel(), dtype=torch.bool).scatter(0, rows, True)

    @property
    def is_kept(self) -> torch.Tensor:
        """Whether each of all rollouts is kept: bool tensor of shape (Q n,)."""
        return self.among_all(self.rows(torch.arange(len(self.kept))))

    @property
    def is_trained(self) -> torch.Tensor:
        """Whether each of all rollouts goes on: bool tensor of shape (Q n,)."""
        return self.among_all(self.trained_rows)

    @property
    def trained_rewards_per_func(self) -> torch.Tensor:
        """Rewards of the rollouts that go on: float tensor of shape (K m, F)."""
        return self.rewards_per_func.flatten(0, 1)[self.trained_rows]


def check_strategy_kwargs(name: str, strategy: Strategy, kwargs: Mapping[str, Any]) -> None:
    """Check that a strategy takes the keyword arguments that the user sets, and needs no others."""
    parameters = list(inspect.signature(strategy).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ValueError(
            f"The strategy {name!r} has the signature {inspect.signature(strategy)}, but it is called with "
            "`(rewards, num_kept)` and what it names of the context. Take these two first."
        )
    parameters = parameters[2:]
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    own = [key for key in named if key not in CONTEXT]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [key for key in kwargs if key in CONTEXT or (key not in own and not takes_any)]
    if unknown:
        raise ValueError(
            f"`down_sampling_kwargs` sets {unknown}, which the strategy {name!r} does not let you set. "
            f"It takes {own or 'no parameters'}."
        )
    missing = [key for key in own if named[key].default is inspect.Parameter.empty and key not in kwargs]
    if missing:
        raise ValueError(
            f"The strategy {name!r} needs {missing}, which `down_sampling_kwargs` does not set. Set them there, for "
            f"example `down_sampling_kwargs={{{missing[0]!r}: ...}}`."
        )


def select(
    name: str,
    strategy: Strategy,
    rewards: torch.Tensor,
    num_kept: int,
    *,
    kwargs: Mapping[str, Any],
    context: Mapping[str, Any],
) -> torch.Tensor:
    """Call a strategy and check its answer."""
    # Copies, so that a strategy that writes into its arguments spoils neither the metrics nor the training.
    context = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in context.items()}
    try:
        kept = strategy(rewards.clone(), num_kept, **requested(strategy, context), **kwargs)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # those of the strategy
        own = [f" at {frame.filename}:{frame.lineno}" for frame in frames if frame.filename == frames[0].filename]
        raise RuntimeError(f"The down-sampling strategy {name!r} raised {error!r}{''.join(own[-1:])}.") from error
    _check(name, strategy, kept, rewards.shape, num_kept)
    return kept.sort(dim=1).values.contiguous()  # of a transposed one, another process would read other rows


def seeded_generator(*parts: int) -> torch.Generator:
    """Make a CPU generator whose stream depends on all the given numbers, on every platform alike."""
    return torch.Generator().manual_seed(Random(repr(parts)).getrandbits(63))


def requested(strategy: Strategy, context: Mapping[str, Any]) -> dict[str, Any]:
    """Pick what a strategy asks for."""
    parameters = inspect.signature(strategy).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(context)
    return {key: value for key, value in context.items() if key in parameters}


def _check(name: str, strategy: Strategy, kept: torch.Tensor, shape: torch.Size, num_kept: int) -> None:
    wrong = _wrong_return(kept, shape, num_kept)
    if wrong is not None:
        found, advice = wrong
        code = getattr(inspect.unwrap(strategy), "__code__", None)
        place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        raise SetupError(
            f"The down-sampling strategy {name!r}{place} must return a long tensor of shape {(shape[0], num_kept)}, of "
            f"distinct column indices of `rewards` in each row, but it returned {found}. {advice} "
            "`trl_pods.testing.check_strategy` tries a strategy without a training."
        )


def _wrong_return(kept: torch.Tensor, shape: torch.Size, num_kept: int) -> tuple[str, str] | None:
    """What is wrong with what a strategy returned, and what to do."""
    num_prompts, num_rollouts = shape
    if not isinstance(kept, torch.Tensor) or kept.dtype != torch.long:
        found = f"a tensor of {kept.dtype}" if isinstance(kept, torch.Tensor) else f"a `{type(kept).__name__}`"
        return found, "Return column indices as `torch.long`."
    if kept.shape != (num_prompts, num_kept):
        return f"shape {tuple(kept.shape)}", "Return `num_kept` indices a prompt."
    if ((kept < 0) | (kept >= num_rollouts)).any():
        found = f"indices from {kept.min().item()} to {kept.max().item()}"
        return found, f"Return indices from 0 to {num_rollouts - 1}."
    repeated = (kept.sort(dim=1).values.diff(dim=1) == 0).any(dim=1)
    if repeated.any():
        row = int(repeated.nonzero()[0])
        return f"{kept[row].tolist()} in row {row}", "Keep each rollout at most once."
    return None
