"""Checking what a `rollout_func` returns, on all processes before any goes on, with messages that say what is wrong."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import numpy as np

from .agreement import stopping_together
from .errors import SetupError

REQUIRED = ("prompt_ids", "completion_ids", "logprobs")


def checked_rollouts(rollout_func: Callable) -> Callable:
    """
    Make a `rollout_func` that calls another and checks what it gives.

    Args:
        rollout_func (`Callable`):
            A `rollout_func` as [`~trl.GRPOTrainer`] takes it.

    Returns:
        `Callable`: One that gives the same, or raises, and then on all processes, see [`stopping_together`].

    Raises:
        SetupError: It cannot be called with prompts and a trainer.
    """
    try:
        inspect.signature(rollout_func).bind([], None)
    except TypeError as error:
        raise SetupError(
            f"`rollout_func` has the signature {inspect.signature(rollout_func)}, but it is called with "
            f"`(prompts, trainer)`: {error}. Take these two and no others."
        ) from None

    @functools.wraps(rollout_func, updated=())
    def call(prompts: list, trainer: Any) -> Any:
        # With vLLM it may generate together with other processes, and must not get out of step with them.
        with nullcontext() if trainer.use_vllm else stopping_together():
            rollouts = rollout_func(prompts, trainer)
        with stopping_together():
            uses_logprobs = trainer.use_vllm or trainer.args.off_policy_mask_threshold is not None
            num_tokens = trainer.model.get_input_embeddings().num_embeddings
            check_rollouts(rollouts, len(prompts), num_tokens=num_tokens, uses_logprobs=uses_logprobs)
        return rollouts

    return call


def check_rollouts(rollouts: Any, num_prompts: int, *, num_tokens: int, uses_logprobs: bool = True) -> None:
    """
    Check what a `rollout_func` returned.

    Args:
        rollouts (`Any`):
            A dictionary with `prompt_ids`, `completion_ids` and `logprobs`: one list per prompt, the last of which may
            be `None` in place of all. What else it has is left to TRL.
        num_prompts (`int`):
            Prompts that it was given, n of each in training.
        num_tokens (`int`):
            Tokens that the model knows; ids are in [0, num_tokens).
        uses_logprobs (`bool`, *optional*, defaults to `True`):
            Whether the training uses the log-probabilities, so that there must be one for each token.

    Raises:
        SetupError: A key is missing, a list has another length, a prompt or a completion has no token or something
            else than tokens, or there is not one log-probability for each token.

    Example:

    ```python
    >>> from trl_pods.rollout_checks import check_rollouts

    >>> try:
    ...     rollouts = {"prompt_ids": [[1], [1]], "completion_ids": [[2]], "logprobs": None}
    ...     check_rollouts(rollouts, num_prompts=2, num_tokens=9)
    ... except ValueError as error:
    ...     print(error)
    `rollout_func` returned 1 of 'completion_ids' for 2 prompts. Return one for each prompt, in their order.

    ```
    """
    missing = [key for key in REQUIRED if not isinstance(rollouts, Mapping) or key not in rollouts]
    if missing:
        what = f"with {sorted(map(str, rollouts))}" if isinstance(rollouts, Mapping) else f"of `{_kind(rollouts)}`"
        raise SetupError(
            f"`rollout_func` did not return {missing}, but a value {what}. Return a dictionary with {list(REQUIRED)}."
        )
    for key in REQUIRED:
        values = rollouts[key]
        if key == "logprobs" and values is None:
            continue
        found = len(values) if hasattr(values, "__len__") else f"a `{_kind(values)}`"
        if found != num_prompts:
            raise SetupError(
                f"`rollout_func` returned {found} of {key!r} for {num_prompts} prompts. Return one for each prompt, in "
                "their order."
            )
    _check_tokens("prompt", rollouts["prompt_ids"], num_tokens)
    _check_tokens("completion", rollouts["completion_ids"], num_tokens)
    if uses_logprobs and rollouts["logprobs"] is not None:
        _check_logprobs(rollouts["logprobs"], rollouts["completion_ids"])


def _check_tokens(name: str, rows: Sequence[Any], num_tokens: int) -> None:
    try:
        tokens = np.asarray(list(chain.from_iterable(rows)))  # at once, because there may be millions
        if all(map(len, rows)) and _are_tokens(tokens, num_tokens):
            return
    except (TypeError, ValueError):  # a row that is no list
        pass
    for i, row in enumerate(rows):
        if hasattr(row, "__len__") and len(row) == 0:
            raise SetupError(f"`rollout_func` returned {name} {i} without a token. Return at least one of each.")
        if not _are_tokens(np.asarray(row), num_tokens):
            shown = repr(row) if len(repr(row)) <= 80 else repr(row)[:77] + "..."
            raise SetupError(
                f"`rollout_func` returned {shown} as {name} {i}. Return a list of token ids, which are whole numbers "
                f"from 0 to {num_tokens - 1}."
            )


def _are_tokens(tokens: np.ndarray, num_tokens: int) -> bool:
    return tokens.ndim == 1 and tokens.dtype.kind in "iu" and bool(((tokens >= 0) & (tokens < num_tokens)).all())


def _check_logprobs(logprobs: Sequence[Any], completions: Sequence[Any]) -> None:
    for i, (of_tokens, tokens) in enumerate(zip(logprobs, completions, strict=True)):
        found = len(of_tokens) if hasattr(of_tokens, "__len__") else f"a `{_kind(of_tokens)}` as"
        if found != len(tokens):
            raise SetupError(
                f"`rollout_func` returned {found} log-probabilities for the {len(tokens)} tokens of completion {i}. "
                "Return one for each token."
            )


def _kind(value: Any) -> str:
    return type(value).__name__
