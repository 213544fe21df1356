"""Finding the checkpoint to go on from."""

import json
import logging
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"  # the log, which is the last that is written of a checkpoint


def checkpoint_folder(output_dir: str, step: int) -> Path:
    """
    Say where transformers saves a checkpoint.

    Args:
        output_dir (`str`):
            The run's `output_dir`.
        step (`int`):
            Optimizer steps done.

    Returns:
        `Path`: The folder.
    """
    return Path(output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def last_complete_checkpoint(folder: Path | str) -> str | None:
    """
    Find the last checkpoint that was written to the end.

    Args:
        folder (`Path` or `str`):
            The run's `output_dir`.

    Returns:
        `str`, *optional*: The checkpoint, or `None` if there is none. Later ones that are not complete are named in a
        warning.
    """
    checkpoints = sorted(
        (path for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.name.split("-")[1].isdigit()),
        key=lambda path: int(path.name.split("-")[1]),
    )
    for checkpoint in reversed(checkpoints):
        if _is_complete(checkpoint):
            return str(checkpoint)
        logger.warning(f"The checkpoint {str(checkpoint)!r} was not written to the end, so it is passed over.")
    return None


def checkpoint_to_go_on_from(output_dir: str) -> str:
    """
    Find what `resume_from_checkpoint=True` means.

    Args:
        output_dir (`str`):
            The run's `output_dir`.

    Returns:
        `str`: The last checkpoint that was written to the end.

    Raises:
        ValueError: There is none.
    """
    last = last_complete_checkpoint(output_dir)
    if last is None:
        raise ValueError(
            f"`resume_from_checkpoint` is true, but `output_dir` ({output_dir!r}) holds no complete checkpoint. Give "
            "the folder of one, or leave it out to start anew."
        )
    return last


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE).read_text())
    except (OSError, ValueError):
        return False
    return True
