"""
Checking how reward functions are declared and what they return, with messages that name the function and the fix.

TRL calls reward functions in the middle of `_calculate_rewards`. While it runs, each is replaced by one that calls it
and looks at what it was given and what it gave back. What TRL can use passes with the same values. What a reward
function raises itself is raised unchanged, but only once TRL has gathered the rewards, so that no process waits for one
that is gone: until then its rewards are zeros.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch

from .all_ranks import raise_on_all
from .errors import SetupError, shown

# What TRL passes to every reward function beside the columns of the dataset; the last only if there are any.
FROM_TRL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")


@contextmanager
def checked_rewards(trainer: Any) -> Iterator[None]:
    """Check the reward functions of a trainer while it calculates rewards."""
    raised: list[Exception] = []
    named = list(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True))
    functions = [(name, function) for name, function in named if not isinstance(function, torch.nn.Module)]

    @functools.cache  # once, and for all functions before the first is called, because a call may cost much
    def check_signatures(keywords: tuple[str, ...]) -> None:
        for name, function in functions:
            check_signature(name, function, keywords, columns_removed=trainer.args.remove_unused_columns)

    original = trainer.reward_funcs
    trainer.reward_funcs = [
        function
        if isinstance(function, torch.nn.Module)
        # TRL 1.10 takes no callable object for async (1.16 does: https://github.com/huggingface/trl/pull/7213), and
        # has an event loop to await it in only if something else is async.
        else _checked(
            name, function, check_signatures, raised, is_async=trainer._has_async_funcs and _is_async(function)
        )
        for name, function in named
    ]
    try:
        yield
    finally:
        trainer.reward_funcs = original
    raise_on_all(raised[0] if raised else None)


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
    name: str, function: Callable, check_signatures: Callable, raised: list[Exception], *, is_async: bool
) -> Callable:
    @contextmanager
    def collect_errors() -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raised.append(error)

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

    return call_async if is_async else call


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
    return f"a `{type(value).__name__}`, {shown(value)}"
