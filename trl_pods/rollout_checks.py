"""Checking what a `rollout_func` returns, on all processes before any goes on, with messages that say what is wrong."""

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

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
    """

    @functools.wraps(rollout_func, updated=())
    def call(prompts: list, trainer: Any) -> Any:
        # With vLLM it may generate together with other processes, and must not get out of step with them.
        with nullcontext() if trainer.use_vllm else stopping_together():
            rollouts = rollout_func(prompts, trainer)
        with stopping_together():
            uses_logprobs = trainer.use_vllm or trainer.args.off_policy_mask_threshold is not None
            check_rollouts(rollouts, len(prompts), uses_logprobs=uses_logprobs)
        return rollouts

    return call


def check_rollouts(rollouts: Any, num_prompts: int, *, uses_logprobs: bool = True) -> None:
    """
    Check what a `rollout_func` returned.

    Args:
        rollouts (`Any`):
            A dictionary with `prompt_ids`, `completion_ids` and `logprobs`: one list per prompt, the last of which may
            be `None` in place of all. What else it has is left to TRL.
        num_prompts (`int`):
            Prompts that it was given, n of each in training.
        uses_logprobs (`bool`, *optional*, defaults to `True`):
            Whether the training uses the log-probabilities, so that there must be one for each token.

    Raises:
        SetupError: A key is missing, a list has another length, a completion has no token, or not one log-probability
            for each token.

    Example:

    ```python
    >>> from trl_pods.rollout_checks import check_rollouts

    >>> try:
    ...     check_rollouts({"prompt_ids": [[1], [1]], "completion_ids": [[2]], "logprobs": None}, num_prompts=2)
    ... except ValueError as error:
    ...     print(error)
    `rollout_func` returned 1 of 'completion_ids' for 2 prompts. Return one for each prompt, in their order.

    ```
    """
    missing = [key for key in REQUIRED if not isinstance(rollouts, Mapping) or key not in rollouts]
    if missing:
        raise SetupError(f"`rollout_func` did not return {missing}. Return a dictionary with {list(REQUIRED)}.")
    for key in REQUIRED:
        values = rollouts[key]
        if key == "logprobs" and values is None:
            continue
        found = len(values) if hasattr(values, "__len__") else f"a `{type(values).__name__}`"
        if found != num_prompts:
            raise SetupError(
                f"`rollout_func` returned {found} of {key!r} for {num_prompts} prompts. Return one for each prompt, in "
                "their order."
            )
    logprobs = rollouts["logprobs"] if uses_logprobs else None
    for i, tokens in enumerate(rollouts["completion_ids"]):
        if len(tokens) == 0:
            raise SetupError(
                f"`rollout_func` returned completion {i} without a token. Return at least the one that ends it."
            )
        if logprobs is not None and len(logprobs[i]) != len(tokens):
            raise SetupError(
                f"`rollout_func` returned {len(logprobs[i])} log-probabilities for the {len(tokens)} tokens of "
                f"completion {i}. Return one for each token."
            )
