"""Reading what a run has logged: its metrics by step, where its completions tables are, and its checkpoints."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..checks.errors import SetupError

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"  # the log, which is the last that is written of a checkpoint


def read_log(folder: Path | str) -> list[dict[str, Any]]:
    """Read the numbers that a run has logged: its own log or, where that is missing, that of its last checkpoint."""
    path = Path(folder) / STATE
    try:
        return [_numbers(entry) for entry in read_state(folder)["log_history"]]
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        last = last_checkpoint_with_log(folder)
        if last is not None:
            if not is_missing:
                logger.warning(f"{path} cannot be read, so the log of the last checkpoint counts: {error!r}")
            return read_log(last)
        if is_missing:
            raise SetupError(
                f"{str(folder)!r} holds no log ({STATE}) and no checkpoint. Name the `output_dir` of a run that "
                "`trl-pods grpo` finished, or that saved a checkpoint."
            ) from None
        raise SetupError(f"{path} is no log of a training: {error!r}.") from error


def _numbers(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if isinstance(value, int | float)}


def has_log(folder: Path | str) -> bool:
    """Tell whether a run has written its log itself to the end, not only those of checkpoints."""
    return fault_of_log(Path(folder)) is None


def table_paths(folder: Path | str) -> list[Path]:
    """Find the completions tables of a run, in the order of their steps."""
    paths = (Path(folder) / "completions").glob("completions_*.parquet")
    return sorted(paths, key=lambda path: (len(path.name), path.name))  # steps have five digits or more


def read_state(folder: Path | str) -> dict[str, Any]:
    """Read what transformers writes of a training beside its model: the log, and how far it is."""
    state = json.loads((Path(folder) / STATE).read_text())
    entries = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "step" in entry for entry in entries):
        raise ValueError("it has no `log_history` of steps")
    return state


def last_checkpoint_with_log(folder: Path | str) -> str | None:
    """Find the last checkpoint whose log can be read."""
    return last_without_fault(folder, fault_of_log)


def checkpoints(folder: Path | str) -> list[Path]:
    """Find all checkpoints of a run, in the order of their steps."""
    steps = {
        int(match[1]): path
        for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-([0-9]+)", path.name))
    }
    return [steps[step] for step in sorted(steps)]


def last_without_fault(folder: Path | str, fault_of: Callable[[Path], str | None]) -> str | None:
    for checkpoint in reversed(checkpoints(folder)):
        fault = fault_of(checkpoint)
        if fault is None:
            return str(checkpoint)
        logger.warning(f"The checkpoint {str(checkpoint)!r} is skipped: {fault}.")
    return None


def fault_of_log(checkpoint: Path) -> str | None:
    try:
        read_state(checkpoint)
    except FileNotFoundError:
        return f"it was not written to the end ({STATE} is missing)"
    except (OSError, ValueError) as error:
        return f"its {STATE} cannot be read ({error})"
    return None
