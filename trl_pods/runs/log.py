"""Reading what a run has logged: its metrics by step, and its completions tables."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import SetupError
from .checkpoints import STATE, last_complete_checkpoint


def read_log(folder: Path | str) -> list[dict[str, Any]]:
    """
    Read the log of a run.

    Args:
        folder (`Path` or `str`):
            The run's `output_dir`, with the log itself (written by `trainer.save_state()`, as `trl-pods grpo` does at
            the end) or with checkpoints, of which the last is read.

    Returns:
        `list[dict[str, Any]]`: What was logged, in order. Each entry has its `step`; those of evaluations have metrics
        that begin with `eval_`.

    Raises:
        SetupError: There is no log, or it cannot be read.
    """
    folder = Path(folder)
    path = folder / STATE
    if not path.exists():
        last = last_complete_checkpoint(folder)
        if last is None:
            raise SetupError(
                f"{str(folder)!r} holds no log ({STATE}) and no checkpoint. Name the `output_dir` of a run that "
                "`trl-pods grpo` finished, or that saved a checkpoint."
            )
        path = Path(last) / STATE
    try:
        return json.loads(path.read_text())["log_history"]
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{path} is no log of a training: {error!r}.") from error


def completions_tables(folder: Path | str) -> Iterator[pd.DataFrame]:
    """
    Read the completions tables of a run, one at a time.

    Args:
        folder (`Path` or `str`):
            The run's `output_dir`.

    Yields:
        `pandas.DataFrame`: The rows of one table, in the order of the steps, with TRL's columns `step`, `prompt`,
        `completion`, one for each reward function, `advantage`, and `kept`. There are none if the run did not set
        `log_completions`.
    """
    for path in table_paths(folder):
        yield pd.read_parquet(path)


def table_paths(folder: Path | str) -> list[Path]:
    """
    Find the completions tables of a run.

    Args:
        folder (`Path` or `str`):
            The run's `output_dir`.

    Returns:
        `list[Path]`: The tables' files, in the order of the steps.
    """
    paths = (Path(folder) / "completions").glob("completions_*.parquet")
    return sorted(paths, key=lambda path: (len(path.name), path.name))  # steps have five digits or more
