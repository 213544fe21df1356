"""
Checking what a `rollout_func` returns, on all processes before any goes on, with messages that say what is wrong.

What TRL can use passes, as plain lists: of tensors, arrays and tuples, TRL would keep the kind, and a tensor on a GPU.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import chain
from typing import Any

import numpy as np
import torch

from .all_ranks import fail_together
from .errors import SetupError, shown

REQUIRED = ("prompt_ids", "completion_ids", "logprobs")
PER_TOKEN = ("logprobs", "env_mask")  # numbers for each token of a completion; `None` where there are none
_ARRAYS = (torch.Tensor, np.ndarray, np.generic)
_SEQUENCES = (list, tuple, torch.Tensor, np.ndarray)


def checked_rollouts(rollout_func: Callable) -> Callable:
    """Make a `rollout_func` that calls another and checks what it gives."""
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
        with nullcontext() if trainer.use_vllm else fail_together():
            rollouts = rollout_func(prompts, trainer)
        with fail_together():
            uses_logprobs = trainer.use_vllm or trainer.args.off_policy_mask_threshold is not None
            num_tokens = trainer.model.get_input_embeddings().num_embeddings
            return check_rollouts(rollouts, len(prompts), num_tokens=num_tokens, uses_logprobs=uses_logprobs)

    return call


def check_rollouts(rollouts: Any, num_prompts: int, *, num_tokens: int, uses_logprobs: bool = True) -> dict:
    """Check what a `rollout_func` returned."""
    missing = [key for key in REQUIRED if not isinstance(rollouts, Mapping) or key not in rollouts]
    if missing:
        what = f"with {sorted(map(str, rollouts))}" if isinstance(rollouts, Mapping) else f"of `{_kind(rollouts)}`"
        raise SetupError(
            f"`rollout_func` did not return {missing}, but a value {what}. Return a dictionary with {list(REQUIRED)}."
        )
    rollouts = dict(rollouts)
    given = [key for key in PER_TOKEN if rollouts.get(key) is not None]
    for key in ("prompt_ids", "completion_ids", *given):
        rollouts[key] = _rows(key, rollouts[key], num_prompts)
    _check_tokens("prompt", rollouts["prompt_ids"], num_tokens)
    _check_tokens("completion", rollouts["completion_ids"], num_tokens)
    for key in given:
        if uses_logprobs or key != "logprobs":
            _check_per_token(key, rollouts[key], rollouts["completion_ids"])
    return rollouts


def _rows(key: str, values: Any, num_prompts: int) -> list[Any]:
    """One row for each prompt, each a plain list if it is any kind of sequence of numbers."""
    found = len(values) if isinstance(values, _SEQUENCES) else f"a `{_kind(values)}`"
    if found != num_prompts:
        raise SetupError(
            f"`rollout_func` returned {found} of {key!r} for {num_prompts} prompts. Return one for each prompt, in "
            "their order."
        )
    return [_plain(row) for row in values]


def _plain(row: Any) -> Any:
    if isinstance(row, _ARRAYS):
        return row.tolist()
    if isinstance(row, list | tuple) and row and isinstance(row[0], _ARRAYS):
        return [_plain(item) for item in row]
    return list(row) if isinstance(row, tuple) else row


def _check_tokens(name: str, rows: list[Any], num_tokens: int) -> None:
    tokens = _flat(rows)  # at once, because there may be millions
    if tokens is not None and all(map(len, rows)) and _are_tokens(tokens, num_tokens):
        return
    for i, row in enumerate(rows):
        if row == []:
            raise SetupError(f"`rollout_func` returned {name} {i} without a token. Return at least one of each.")
        tokens = _flat([row])
        if tokens is None or not _are_tokens(tokens, num_tokens):
            raise SetupError(
                f"`rollout_func` returned {shown(row)} as {name} {i}. Return a list of token ids, which are whole "
                f"numbers from 0 to {num_tokens - 1}."
            )


def _are_tokens(tokens: np.ndarray, num_tokens: int) -> bool:
    return tokens.dtype.kind in "iu" and bool(((tokens >= 0) & (tokens < num_tokens)).all())


def _check_per_token(key: str, rows: list[Any], completions: list[Any]) -> None:
    for i, (row, tokens) in enumerate(zip(rows, completions, strict=True)):
        numbers = _flat([row])
        if numbers is None or numbers.dtype.kind not in "biuf" or len(numbers) != len(tokens):
            raise SetupError(
                f"`rollout_func` returned {shown(row)} as {key!r} of completion {i}, which has {len(tokens)} tokens. "
                "Return a list with one number for each."
            )


def _flat(rows: list[Any]) -> np.ndarray | None:
    """All that is in the rows, if they are lists of plain values."""
    if not all(isinstance(row, list) for row in rows):
        return None
    try:
        values = np.asarray(list(chain.from_iterable(rows)))
    except ValueError:  # of lists within
        return None
    return values if values.ndim == 1 else None


def _kind(value: Any) -> str:
    return type(value).__name__
