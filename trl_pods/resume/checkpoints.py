"""Checkpoints: where a process saves its state, and which checkpoint to resume from."""

import logging
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..runs.log import checkpoints, fault_of_log, last_without_fault

logger = logging.getLogger(__name__)

PODS_STATE = "pods_state_*.safetensors"  # one for each process, see `state_path` and `state.py`


def checkpoint_folder(output_dir: str, step: int) -> Path:
    """Where transformers saves the checkpoint of an optimizer step."""
    return Path(output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def state_path(checkpoint: Path | str, process_index: int | str) -> Path:
    """Where a process saves its state."""
    return Path(checkpoint) / PODS_STATE.replace("*", str(process_index))


def last_complete_checkpoint(folder: Path | str) -> str | None:
    """The last checkpoint of an `output_dir` that training can resume from, if any; later ones are warned of."""
    return last_without_fault(folder, lambda checkpoint: fault_of_log(checkpoint) or _fault_of_pods_states(checkpoint))


def checkpoint_to_resume_from(wanted: Path | str | bool, output_dir: str) -> str:
    """The folder that `resume_from_checkpoint` means: that of its name, or with `True` the last complete one."""
    if isinstance(wanted, bool):
        last = last_complete_checkpoint(output_dir)
        if last is None:
            raise ValueError(
                f"`resume_from_checkpoint` is true, but `output_dir` ({output_dir!r}) holds no complete checkpoint. "
                "Give the folder of one, or leave it out to start from scratch."
            )
        return last
    folder = Path(wanted)
    fault = fault_of_log(folder) if folder.is_dir() else "it is no folder"
    if fault is not None:
        raise ValueError(
            f"`resume_from_checkpoint` means {str(wanted)!r}, from which training cannot resume: {fault}. Give another "
            "checkpoint, or `true` for the last complete one in `output_dir`; to start from its model, set "
            "`model_name_or_path` to it."
        )
    return str(wanted)


def warn_of_checkpoints(output_dir: str) -> None:
    """Warn where a training starts from scratch beside checkpoints of an earlier one."""
    earlier = checkpoints(output_dir)
    if earlier:
        logger.warning(
            f"`output_dir` ({output_dir!r}) holds {earlier[-1].name!r} of an earlier training, and this one starts "
            "from scratch beside it: `resume_from_checkpoint=True` may take the earlier one's, and `save_total_limit` "
            "may remove them. Set `resume_from_checkpoint` to resume, or name another `output_dir`."
        )


def _fault_of_pods_states(checkpoint: Path) -> str | None:
    # Of the processes that saved it, those of one machine where each has a disk of its own.
    indices = [path.stem.rpartition("_")[2] for path in checkpoint.glob("rng_state_*.pth")] or ["0"]
    paths = sorted(checkpoint.glob(PODS_STATE))
    if paths and set(paths) != {state_path(checkpoint, index) for index in indices}:
        return f"it holds {[path.name for path in paths]}, but the processes {sorted(indices)} saved it"
    for path in paths:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            return f"{path.name} is damaged ({error})"
    return None
