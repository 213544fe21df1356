"""The completions table: TRL's columns for all n rollouts of each prompt, where TRL has logged the kept ones."""

from typing import Any

import torch
from accelerate.utils import gather_object

from .selection import Selection


def log_all_rollouts(logs: dict[str, Any], selection: Selection, reward_names: list[str], *, with_images: bool) -> None:
    """
    Replace the rows of the completions table by all rollouts of the generation batch.

    The advantages of dropped rollouts are NaN, which the table shows as empty. Extra columns are left alone: they are
    logged with all rollouts in the first place. To be called by all processes.

    Args:
        logs (`dict`):
            TRL's columns, whose newest advantages are those of the kept rollouts in order. Changed in place.
        selection ([`Selection`]):
            The generation batch.
        reward_names (`list[str]`):
            Names of the reward functions.
        with_images (`bool`):
            Whether the table shows images.
    """
    rewards = selection.rewards_per_func.flatten(0, 1)
    kept_rows = selection.kept_rows
    kept_advantages = torch.tensor(list(logs["advantages"])[-len(kept_rows) :])
    columns = {
        "prompt": gather_object(selection.prompts),
        "completion": gather_object(selection.completions),
        "advantages": torch.full((len(rewards),), torch.nan).scatter(0, kept_rows, kept_advantages).tolist(),
    }
    if with_images:
        columns["images"] = gather_object(selection.images or [None] * len(selection.prompts))
    for name, values in columns.items():
        logs[name].clear()
        logs[name].extend(values)
    for i, name in enumerate(reward_names):
        logs["rewards"][name].extend(rewards[:, i].tolist())
