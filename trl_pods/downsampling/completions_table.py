"""The completions table: TRL's columns for all n rollouts of each prompt, where TRL has logged the kept ones."""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from .selection import Selection

logger = logging.getLogger(__name__)


def log_all_rollouts(logs: dict[str, Any], selection: Selection, reward_names: list[str], *, with_images: bool) -> None:
    """
    Replace the rows of the completions table by all rollouts of the generation batch. All processes must call it.

    The newest advantages are those of the rollouts that went on, in order; the table shows the others' as empty. Extra
    columns are left alone: they are logged with all rollouts in the first place.
    """
    rewards = selection.rewards_per_func.flatten(0, 1)
    rows = selection.trained_rows
    advantages = torch.tensor(list(logs["advantages"])[-len(rows) :])
    columns = {
        "prompt": gather_object(selection.prompts),
        "completion": gather_object(selection.completions),
        "advantages": torch.full((len(rewards),), torch.nan).scatter(0, rows, advantages).tolist(),
    }
    if with_images:
        columns["images"] = gather_object(selection.images or [None] * len(selection.prompts))
    for name, values in columns.items():
        _replace(logs[name], values)
    for i, name in enumerate(reward_names):
        logs["rewards"][name].extend(rewards[:, i].tolist())


def table_to_save(trainer: Any) -> dict[str, Any]:
    """
    The columns of the completions table that belong to the generation batch in progress, by TRL's names.

    Nothing where this process writes no table, or one with images, which a checkpoint does not hold.
    """
    logs = trainer._logs
    if not (trainer.log_completions and trainer.accelerator.is_main_process) or logs.get("images"):
        return {}
    single = {name: list(logs[name]) for name in ("prompt", "completion", "advantages")}
    return single | {group: {name: list(logs[group][name]) for name in logs[group]} for group in ("rewards", "extra")}


def set_saved_table(trainer: Any, columns: dict[str, Any]) -> None:
    """Set the columns that [`table_to_save`] gave."""
    for name, values in columns.items():
        if isinstance(values, dict):
            for column in values:
                _replace(trainer._logs[name][column], values[column])
        else:
            _replace(trainer._logs[name], values)


def _replace(column: deque, values: list) -> None:
    column.clear()
    column.extend(values)


@contextmanager
def tolerate_table_errors(trainer: Any) -> Iterator[None]:
    """
    Log inside the `with` block; where the completions table cannot be written, warn and go on.

    The disk may be full, or a column may hold values that do not go together, such as numbers and text. Only the main
    process writes the table, so the others would wait for one that raised. Nothing new to log means no new table: that
    of the step is written already, or the run was resumed from a checkpoint without its texts.
    """
    metrics, log_completions = trainer._metrics["train" if trainer.model.training else "eval"], trainer.log_completions
    trainer.log_completions = log_completions and bool(metrics) and bool(trainer._logs["prompt"])
    try:
        yield
    except Exception as error:
        if not trainer.log_completions or metrics:  # TRL clears the metrics between the log and the table
            raise
        _warn_of_lost_table(trainer, error)
    finally:
        trainer.log_completions = log_completions


def _warn_of_lost_table(trainer: Any, error: Exception) -> None:
    step = trainer.state.global_step
    table = Path(trainer.args.output_dir) / "completions" / f"completions_{step:05d}.parquet"
    logger.warning(
        f"The completions table of step {step} is lost, and training goes on: {error!r}. Make room for "
        f"{str(table)!r}, and give each column values of one type."
    )
    with suppress(OSError):
        table.unlink()  # what there is of it cannot be read
