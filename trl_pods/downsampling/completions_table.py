"""The completions table: TRL's columns for all n rollouts of each prompt, where TRL has logged the kept ones."""

import logging
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from ..checks.errors import SetupError
from .selection import Selection

logger = logging.getLogger(__name__)


def log_all_rollouts(logs: dict[str, Any], selection: Selection, reward_names: list[str], *, with_images: bool) -> None:
    """
    Replace the rows of the completions table by all rollouts of the generation batch.

    The advantages of dropped rollouts are NaN, which the table shows as empty. Extra columns are left alone: they are
    logged with all rollouts in the first place. To be called by all processes.
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
        _replace(logs[name], values)
    for i, name in enumerate(reward_names):
        logs["rewards"][name].extend(rewards[:, i].tolist())


def table_to_save(trainer: Any) -> dict[str, Any]:
    """Give the columns of the completions table that belong to the generation batch in progress."""
    logs = trainer._logs
    if not (trainer.log_completions and trainer.accelerator.is_main_process) or logs.get("images"):
        return {}
    single = {name: list(logs[name]) for name in ("prompt", "completion", "advantages")}
    return single | {group: {name: list(logs[group][name]) for name in logs[group]} for group in ("rewards", "extra")}


def set_saved_table(trainer: Any, columns: dict[str, Any]) -> None:
    """Set the columns of the completions table."""
    for name, values in columns.items():
        if isinstance(values, dict):
            for column in values:
                _replace(trainer._logs[name][column], values[column])
        else:
            _replace(trainer._logs[name], values)


def _replace(column: deque, values: list) -> None:
    column.clear()
    column.extend(values)


def check_columns(columns: dict[str, list], num_rows: int) -> None:
    """Check the columns that reward functions add to the completions table."""
    for name, values in columns.items():
        if len(values) != num_rows:
            raise SetupError(
                f"`log_extra` was given {len(values)} values for the column {name!r}, but there are {num_rows} "
                "rollouts. Pass one value per completion."
            )


@contextmanager
def tolerate_table_errors(trainer: Any) -> Iterator[None]:
    """
    Go on where the completions table of a step cannot be written, with a warning.

    The disk may be full, or a column may hold values that do not go together, such as numbers and text. Only the main
    process writes the table, so the others would wait for one that raised.
    """
    try:
        yield
    except Exception as error:
        if not any(frame.name == "to_parquet" for frame in traceback.extract_tb(error.__traceback__)):
            raise
        step = trainer.state.global_step
        table = Path(trainer.args.output_dir) / "completions" / f"completions_{step:05d}.parquet"
        logger.warning(
            f"The completions table of step {step} is lost, and training goes on: {error!r}. Make room for "
            f"{str(table)!r}, and give each column values of one type."
        )
        with suppress(OSError):
            table.unlink()  # what there is of it cannot be read


@contextmanager
def without_empty_table(trainer: Any) -> Iterator[None]:
    """
    Write no completions table where there is nothing to put in it.

    A run that was resumed within a generation batch may have a checkpoint without its texts, see [`table_to_save`].
    """
    log_completions = trainer.log_completions
    trainer.log_completions = log_completions and bool(trainer._logs["prompt"])
    try:
        yield
    finally:
        trainer.log_completions = log_completions
