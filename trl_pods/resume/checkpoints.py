"""Checkpoints: which there are, whether one is whole, and which to go on from."""

import json
import logging
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..runs.log import checkpoints, fault_of_log, last_without_fault

logger = logging.getLogger(__name__)

PODS_STATE = "pods_state_*.safetensors"  # one for each process, see `state_path` and `resuming.py`
# What transformers needs to go on as it was, and where a plain training, FSDP and DeepSpeed save it. Where a part is
# missing, transformers goes on without a word: with a new optimizer, or with other random numbers.
_PARTS = {
    "the model": ("model*.safetensors", "adapter_model.safetensors", "*model.bin", "pytorch_model*", "global_step*"),
    "the optimizer": ("optimizer*", "global_step*"),
    "the learning rate scheduler": ("scheduler.pt", "global_step*"),
    "the random generators": ("rng_state*.pth",),
}


def checkpoint_folder(output_dir: str, step: int) -> Path:
    """Say where transformers saves a checkpoint."""
    return Path(output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def state_path(checkpoint: Path | str, process_index: int) -> Path:
    """Say where a process saves its state."""
    return Path(checkpoint) / PODS_STATE.replace("*", str(process_index))


def last_complete_checkpoint(folder: Path | str) -> str | None:
    """Find the last checkpoint that training can go on from."""
    return last_without_fault(folder, lambda checkpoint: find_fault(checkpoint) or _fault_of_pods_states(checkpoint))


def checkpoint_to_resume_from(wanted: Path | str | bool, output_dir: str) -> str:
    """Find the checkpoint that `resume_from_checkpoint` means."""
    if isinstance(wanted, bool):
        last = last_complete_checkpoint(output_dir)
        if last is None:
            raise ValueError(
                f"`resume_from_checkpoint` is true, but `output_dir` ({output_dir!r}) holds no complete checkpoint. "
                "Give the folder of one, or leave it out to start anew."
            )
        return last
    folder = Path(wanted)
    fault = find_fault(folder) if folder.is_dir() else "it is no folder"
    if fault is not None:
        raise ValueError(
            f"`resume_from_checkpoint` means {str(wanted)!r}, from which training cannot go on as it was: {fault}. "
            "Give another checkpoint, or `true` for the last complete one in `output_dir`; to train its model anew, "
            "set `model_name_or_path` to it."
        )
    return str(wanted)


def warn_of_checkpoints(output_dir: str) -> None:
    """Warn where a training begins anew beside checkpoints of an earlier one."""
    earlier = checkpoints(output_dir)
    if earlier:
        logger.warning(
            f"`output_dir` ({output_dir!r}) holds {earlier[-1].name!r} of an earlier training, and this one begins "
            "anew beside it: `resume_from_checkpoint=True` may take the earlier one's, and `save_total_limit` may "
            "remove them. Set `resume_from_checkpoint` to go on, or name another `output_dir`."
        )


def find_fault(checkpoint: Path | str) -> str | None:
    """Tell why transformers cannot go on from a checkpoint as it was."""
    checkpoint = Path(checkpoint)
    return fault_of_log(checkpoint) or _missing_part(checkpoint) or _part_cut_off(checkpoint)


def _missing_part(checkpoint: Path) -> str | None:
    num_processes = len(list(checkpoint.glob(PODS_STATE)))
    generators = [f"rng_state_{i}.pth" for i in range(num_processes)] if num_processes > 1 else []
    parts = _PARTS | {f"the random generators of process {i}": (name,) for i, name in enumerate(generators)}
    for part, patterns in parts.items():
        if not any(path for pattern in patterns for path in checkpoint.glob(pattern)):
            return f"the state of {part} is missing ({' or '.join(patterns)})"
    return _missing_shard(checkpoint)


def _missing_shard(checkpoint: Path) -> str | None:
    for index in checkpoint.glob("*.index.json"):
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{index.name} is damaged ({error!r})"
        missing = sorted(name for name in shards if not (checkpoint / name).is_file())
        if missing:
            return f"the state of the model is missing in part ({missing[0]})"
    if any(checkpoint.glob("model-*-of-*.safetensors")) and not any(checkpoint.glob("*.index.json")):
        return "the state of the model is missing in part (model.safetensors.index.json)"
    return None


def _fault_of_pods_states(checkpoint: Path) -> str | None:
    num_processes = len(list(checkpoint.glob("rng_state_*.pth"))) or 1
    paths = sorted(checkpoint.glob(PODS_STATE))
    expected = [state_path(checkpoint, i) for i in range(num_processes)]
    if paths and set(paths) != set(expected):
        return f"it holds {[path.name for path in paths]}, but {num_processes} processes saved it"
    return _cut_off(paths)


def _cut_off(paths: list[Path]) -> str | None:
    for path in paths:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            return f"{path.name} is damaged ({error})"
    return None


def _part_cut_off(checkpoint: Path) -> str | None:
    """By the ends of the files, without reading them, but for the small ones that say what is in the others."""
    for path in sorted(checkpoint.glob("*config.json")):
        try:
            json.loads(path.read_text())
        except (OSError, ValueError) as error:
            return f"{path.name} is damaged ({error})"
    fault = _cut_off(sorted({*checkpoint.glob("*.safetensors")} - {*checkpoint.glob(f"*{PODS_STATE}")}))
    if fault is not None:
        return fault
    for path in (*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")):
        if not zipfile.is_zipfile(path):  # what `torch.save` writes is one, with its table of contents at the end
            return f"{path.name} is damaged (it is cut off, or no file of PyTorch)"
    return None
