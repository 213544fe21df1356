"""
Checking what a `rollout_func` returns, on all processes before any goes on.

Of tensors, arrays and tuples TRL would keep the kind, and a tensor on a GPU; here they become plain lists.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from .all_ranks import fail_together
from .columns import check_keywords
from .errors import SetupError

REQUIRED = ("prompt_ids", "completion_ids", "logprobs")
PER_TOKEN = ("logprobs", "env_mask")  # numbers for each token of a completion; `None` where there are none


def checked_rollouts(rollout_func: Callable) -> Callable:
    """A `rollout_func` that calls another and returns the same as plain lists, or raises on all processes."""
    try:
        inspect.signature(rollout_func).bind([], None)
    except TypeError as error:
        raise SetupError(
            f"`rollout_func` has the signature {inspect.signature(rollout_func)}, but it is called with "
            f"`(prompts, trainer)`: {error}. Take these two and no others."
        ) from None

    @functools.wraps(rollout_func, updated=())
    def call(prompts: list, trainer: Any) -> dict[str, Any]:
        # With vLLM it may generate together with other processes, and must not get out of step with them.
        with nullcontext() if trainer.use_vllm else fail_together():
            rollouts = rollout_func(prompts, trainer)
        with fail_together():
            uses_logprobs = trainer.use_vllm or trainer.args.off_policy_mask_threshold is not None
            return check_rollouts(rollouts, len(prompts), uses_logprobs=uses_logprobs)

    return call


def check_rollouts(rollouts: Any, num_prompts: int, *, uses_logprobs: bool = True) -> dict[str, Any]:
    """Check that a `rollout_func` returned one row per prompt and, in it, one number per token; give plain lists."""
    missing = [key for key in REQUIRED if not isinstance(rollouts, dict) or key not in rollouts]
    if missing:
        raise SetupError(f"`rollout_func` must return a dictionary with {list(REQUIRED)}, but {missing} are missing.")
    check_keywords("What `rollout_func` returned", rollouts, environments=False)
    given = [key for key in PER_TOKEN if rollouts.get(key) is not None]
    rows = {key: _rows(key, rollouts[key], num_prompts) for key in ("prompt_ids", "completion_ids", *given)}
    for key in given:
        if uses_logprobs or key != "logprobs":
            _check_lengths(key, rows[key], rows["completion_ids"])
    return {**rollouts, **rows}


def _rows(key: str, values: Any, num_prompts: int) -> list[list]:
    if len(values) != num_prompts:
        raise SetupError(
            f"`rollout_func` returned {len(values)} of {key!r} for {num_prompts} prompts. Return one for each prompt, "
            "in their order."
        )
    rows = [_plain(row) for row in values]
    if key.endswith("_ids") and not all(rows):
        raise SetupError(f"`rollout_func` returned a row of {key!r} without a token. Return at least one of each.")
    return rows


def _plain(row: Any) -> list:
    return row.tolist() if hasattr(row, "tolist") else [x.item() if hasattr(x, "item") else x for x in row or ()]


def _check_lengths(key: str, rows: list[list], completions: list[list]) -> None:
    for i, (row, tokens) in enumerate(zip(rows, completions, strict=True)):
        if len(row) != len(tokens):
            raise SetupError(
                f"`rollout_func` returned {len(row)} of {key!r} for completion {i}, which has {len(tokens)} tokens. "
                "Return one number for each."
            )
