"""
Checking how reward functions are declared and what they return, with messages that name the function and the fix.

What TRL can use passes with the same values. What a reward function raises is raised unchanged, but only once TRL has
gathered the rewards, so that no process waits for one that is gone: until then its rewards are zeros.
"""

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch

from .all_ranks import raise_on_all
from .columns import FROM_TRL, check_names
from .errors import SetupError
from .rollout_func import checked_rollouts
from .trl_seam import Host


class CheckedRewards(Host):
    """
    Checks what reward functions and a `rollout_func` return, on all processes alike.

    Overrides `__init__` (checks names, and wraps them) and `_calculate_rewards` (says in `trainer_state.num_rollouts`
    how many completions a prompt has, and raises what functions have met once all rewards are there).
    """

    rollout_func: Any
    num_rollouts: int

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        check_names(self)
        self._reward_errors: list[Exception] = []
        self.reward_funcs = self._checked_reward_functions()
        if self.rollout_func is not None:
            self.rollout_func = checked_rollouts(self.rollout_func)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        self._reward_errors.clear()
        # For judges that rank a group; an attribute of its own, which no checkpoint holds.
        self.state.num_rollouts = self.num_rollouts if self.model.training else self.num_generations_eval
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        raise_on_all(self._reward_errors[0] if self._reward_errors else None)
        return rewards_per_func

    def _checked_reward_functions(self) -> list[Any]:
        """The reward functions, each wrapped in its checks; reward models as they are."""
        named = list(zip(self.reward_func_names, self.reward_funcs, strict=True))
        columns_removed = self.args.remove_unused_columns

        @functools.cache  # once, and for all functions before the first is called, because a call may cost much
        def check_signatures(keywords: tuple[str, ...]) -> None:
            for name, function in named:
                if not isinstance(function, torch.nn.Module):
                    check_signature(name, function, keywords, columns_removed=columns_removed)

        def checked(name: str, function: Any) -> Any:
            if isinstance(function, torch.nn.Module):
                return function
            # TRL 1.10 takes no callable object for async (1.16 does: https://github.com/huggingface/trl/pull/7213), and
            # has an event loop to await it in only if something else is async.
            is_async = self._has_async_funcs and _is_async(function)
            return _checked(name, function, check_signatures, self._reward_errors, is_async=is_async)

        return [checked(name, function) for name, function in named]


def check_signature(name: str, function: Callable, keywords: tuple[str, ...], *, columns_removed: bool = False) -> None:
    """Check that a reward function can be called with what TRL passes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C have none
        return
    try:
        signature.bind(**dict.fromkeys(keywords))
    except TypeError as error:
        raise SetupError(_why_not_callable(name, signature, keywords, error, columns_removed)) from None


def check_rewards(name: str, rewards: Any, num_completions: int) -> list[float]:
    """Check that a reward function returned one number or `None` per completion."""
    if inspect.iscoroutine(rewards):
        rewards.close()
        raise SetupError(
            f"The reward function {name!r} returned a coroutine, which TRL does not await. Declare it as an "
            "`async def` function; an object with an async `__call__` needs TRL 1.16."
        )
    if isinstance(rewards, str | bytes | Mapping | Set):
        raise SetupError(_wrong_return(name, rewards))
    try:
        iterator = iter(rewards)
    except TypeError:
        raise SetupError(_wrong_return(name, rewards)) from None
    values = [torch.nan if reward is None else reward for reward in iterator]  # a generator may raise its own error
    if len(values) != num_completions:
        raise SetupError(
            f"The reward function {name!r} returned {len(values)} rewards, but {num_completions} were expected: "
            f"{_describe(rewards)}. Return one number or `None` per completion; in training there are `num_rollouts` "
            "of each prompt."
        )
    numbers = _as_numbers(values)
    if numbers is None:
        i = next((i for i, value in enumerate(values) if _as_numbers([value]) is None), 0)
        raise SetupError(_wrong_return(name, values[i], f" as the reward of completion {i}"))
    return numbers


def _checked(
    name: str, function: Callable, check_signatures: Callable, errors: list[Exception], *, is_async: bool
) -> Callable:
    @contextmanager
    def collect_errors() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            errors.append(error)

    async def call_async(**kwargs):
        with collect_errors():
            check_signatures(tuple(kwargs))
            return check_rewards(name, await function(**kwargs), len(kwargs["completions"]))
        return [0.0] * len(kwargs["completions"])

    def call(**kwargs):
        with collect_errors():
            check_signatures(tuple(kwargs))
            return check_rewards(name, function(**kwargs), len(kwargs["completions"]))
        return [0.0] * len(kwargs["completions"])

    return functools.update_wrapper(call_async if is_async else call, function)


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)


def _why_not_callable(
    name: str, signature: inspect.Signature, keywords: tuple[str, ...], error: TypeError, columns_removed: bool
) -> str:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = {name: p for name, p in signature.parameters.items() if p.kind in by_name}
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in keywords]
    if missing:
        columns = [keyword for keyword in keywords if keyword not in FROM_TRL]
        given = [keyword for keyword in keywords if keyword in FROM_TRL]
        fix = (
            "`remove_unused_columns=True` removed all columns but the prompt; set `remove_unused_columns=False`"
            if columns_removed
            else "Name the column and the parameter alike, and leave `remove_unused_columns=False`"
        )
        return (
            f"The reward function {name!r} needs {' and '.join(map(repr, missing))}, but beside {given} it gets only "
            f"the columns {columns}. {fix}."
        )
    unexpected = [keyword for keyword in keywords if keyword not in parameters]
    if unexpected and not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        return f"The reward function {name!r} does not take {unexpected}, but TRL passes them. Add `**kwargs` to it."
    return (
        f"The reward function {name!r} cannot be called with the keywords {list(keywords)}: {error}. Declare it as in "
        "`def reward(completions, **kwargs)`."
    )


def _as_numbers(values: list) -> list[float] | None:
    try:
        numbers = torch.tensor(values, dtype=torch.float32)  # what TRL does with them
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return numbers.tolist() if numbers.ndim == 1 else None


def _wrong_return(name: str, value: Any, where: str = "") -> str:
    return (
        f"The reward function {name!r} returned {_describe(value)}{where}. Return a list with one number or `None` per "
        "completion."
    )


def _describe(value: Any) -> str:
    return f"a `{type(value).__name__}`, {reprlib.repr(value)}"
