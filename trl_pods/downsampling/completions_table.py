"""The completions table: TRL's columns for all n rollouts; what cannot be logged ends no training."""

import copy
import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from ..checks.trl_seam import Host
from .selection import Selection

logger = logging.getLogger(__name__)


class CompletionsTable(Host):
    """
    Keeps the rows of the completions table; what cannot be logged is lost, with one warning.

    Overrides `log` (goes on where a table is lost), `evaluate` (a table of its own), `_log_completion_extra`,
    `_log_metric` and `_calculate_rewards` (values of the wrong kind).
    """

    log_completions: bool
    _logs: dict[str, Any]

    def __init__(self, **kwargs):
        self._unlogged: Selection | None = None  # whose texts are not in the table yet
        self._evaluation = ""  # prefix of the metrics of the one in progress
        self._lost: set[str] = set()  # what a warning has told of
        super().__init__(**kwargs)

    def fill_table(self) -> None:
        """Replace the table's rows by all rollouts of the latest generation batch. All processes must call it."""
        if self._unlogged is None:
            return
        selection, self._unlogged = self._unlogged, None
        rewards, rows = selection.rewards_per_func.flatten(0, 1), selection.trained_rows
        advantages = torch.tensor(list(self._logs["advantages"])[-len(rows) :])  # of those that went on, in order
        columns = {
            "prompt": gather_object(selection.prompts),
            "completion": gather_object(selection.completions),
            "advantages": torch.full((len(rewards),), torch.nan).scatter(0, rows, advantages).tolist(),
        }
        if self._is_vlm and self.log_multimodal:
            columns["images"] = gather_object(selection.images or [None] * len(selection.prompts))
        for name, values in columns.items():
            _replace(self._logs[name], values)
        for i, name in enumerate(self.reward_func_names):
            self._logs["rewards"][name].extend(rewards[:, i].tolist())

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        if self.model.training and self.log_completions:
            self.fill_table()
        with self._beside_training() if self._evaluation else nullcontext(), self._tolerating_table_errors():
            super().log(logs, *args, **kwargs)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval") -> dict[str, float]:
        of_training, self._logs = self._logs, {name: copy.copy(rows) for name, rows in self._logs.items()}
        for rows in self._logs.values():
            rows.clear()
        self._evaluation = metric_key_prefix
        try:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        finally:
            self._logs, self._evaluation = of_training, ""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.log_completions:
            for column, values in self._pending_extra_logs.items():
                self._pending_extra_logs[column] = self._one_per_row(column, values, len(prompts))
        return rewards_per_func

    def _one_per_row(self, column: str, values: list, num_rows: int) -> list:
        """The values of a column, those logged last where several functions have logged it."""
        if not values or len(values) % num_rows != 0:
            self._warn_once(
                column,
                f"The column {column!r} of the completions table is lost: `log_extra` was given {len(values)} values "
                f"for {num_rows} rollouts. Pass one value per completion.",
            )
            return [None] * num_rows
        return values[-num_rows:]

    def _log_completion_extra(self, column: str, values: Any) -> None:
        super()._log_completion_extra(column, values if isinstance(values, Iterable) else [])

    def _log_metric(self, name: str, value: Any) -> None:
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError):
            number = math.nan
            self._warn_once(name, f"The metric {name!r} is lost: `log_metric` was given {value!r}. Pass a number.")
        super()._log_metric(name, number)

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._lost:
            logger.warning(message)
        self._lost.add(what)

    def _log_roles(self, kept: list[bool], trained: list[bool]) -> None:
        """Add the table's own columns, and give all processes the same ones, for the host to log with all rows."""
        self._log_completion_extra("kept", kept)
        self._log_completion_extra("trained", trained)
        pending = dict(self._pending_extra_logs)
        self._logs["extra"].clear()
        self._pending_extra_logs.clear()
        for name in sorted(set(gather_object(list(pending)))):
            self._log_completion_extra(name, pending.get(name, [None] * len(kept)))

    @property
    def _table_path(self) -> Path:
        """Where TRL writes the table of this step."""
        return Path(self.args.output_dir) / "completions" / f"completions_{self.state.global_step:05d}.parquet"

    @contextmanager
    def _beside_training(self) -> Iterator[None]:
        """Name the table that is written in the `with` block after the evaluation, beside that of training."""
        path, aside = self._table_path, self._table_path.with_suffix(".training")
        if self.is_world_process_zero() and path.exists():
            path.rename(aside)
        try:
            yield
        finally:
            if self.is_world_process_zero():
                with suppress(FileNotFoundError):
                    path.rename(path.with_name(f"{self._evaluation}_{path.name}"))
                with suppress(FileNotFoundError):
                    aside.rename(path)

    @contextmanager
    def _tolerating_table_errors(self) -> Iterator[None]:
        """
        Log inside the `with` block; where the completions table cannot be shown or written, warn and go on.

        The disk may be full, the console may lack a character, or a column may hold values that do not go together.
        Only the main process writes the table, so the others would wait for one that raised. Nothing new to log means
        no new table: that of the step is written already, or the run was resumed from a checkpoint without its texts.
        """
        metrics, log_completions = self._metrics["train" if self.model.training else "eval"], self.log_completions
        self.log_completions = log_completions and bool(metrics) and bool(self._logs["prompt"])
        try:
            yield
        except Exception as error:
            if not self.log_completions or metrics:  # TRL clears the metrics between the log and the table
                raise
            path = self._table_path
            with suppress(OSError):
                path.unlink()  # what there is of it cannot be read
            self._warn_once(
                type(error).__name__,
                f"The completions table of step {self.state.global_step} is lost, and so are later ones that meet "
                f"the same: {type(error).__name__}: {error}. Make room for {str(path)!r}, give each column values of "
                "one type, and print to a console of UTF-8.",
            )
        finally:
            self.log_completions = log_completions


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
