"""
Resuming exactly, at any step: what TRL's checkpoints leave out, saved beside them.

TRL saves neither its count of micro-batches nor the generation batch that is being trained on, so a run that resumes
within a generation batch samples another one and goes on in other steps than the run that was not stopped. Nor does it
save which order of the prompts an epoch has, so a run that resumes in a later epoch gets that of the first. Here each
process writes a file of its own into the checkpoint: tensors as safetensors, all else as JSON in one more tensor, so
that nothing is unpickled when it is read. (The header of such a file holds 100 MB at most, which texts outgrow.) It is
written before the log of the checkpoint, `trainer_state.json`, and after an older log there is removed; so a checkpoint
that has a log is complete. The orders of past epochs are drawn again.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils.data import Sampler

from ..checks.errors import SetupError
from ..downsampling.completions_table import set_saved_table, table_to_save
from ..resume.checkpoints import PODS_STATE, state_path
from ..runs.atomic import atomic_write
from ..runs.log import STATE

logger = logging.getLogger(__name__)

VERSION = 3  # of what a file holds
STATE_KEY = "state"  # of the tensor that holds the JSON
ENTROPY_CONTROL = ("entropy_coef", "_last_world_entropy")  # which TRL saves too, but after the log


def save_state(trainer: Any, checkpoint: Path | str) -> None:
    """Save what this process needs to go on exactly, all of it or nothing."""
    is_used_up = trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0
    buffered, tensors = _flatten([] if is_used_up else trainer._buffered_inputs)
    state = {
        "version": VERSION,
        "step": trainer._step,
        "global_step": trainer.state.global_step,
        "sizes": _sizes(trainer),
        "metrics": trainer._metrics["train"],
        "learning_signal": trainer._learning_signal.state(),
        "entropy_control": {name: getattr(trainer, name) for name in ENTROPY_CONTROL},
        "buffered": buffered,
        "table": {} if is_used_up else table_to_save(trainer),
    }
    path = state_path(checkpoint, trainer.accelerator.process_index)
    if trainer.args.should_save:
        (path.parent / STATE).unlink(missing_ok=True)  # of an earlier run that came to this step
    with atomic_write(path) as draft:
        text = json.dumps(state, default=_plain).encode()
        save_file(tensors | {STATE_KEY: torch.frombuffer(bytearray(text), dtype=torch.uint8)}, draft)


def load_state(trainer: Any, checkpoint: Path | str) -> None:
    """
    Set a trainer to what [`save_state`] has saved.

    A checkpoint without it, such as one of `GRPOTrainer`, is resumed as TRL does: with a new generation batch. A
    warning says where this is not exact. So is one whose generation batch was used up and whose sizes have changed.
    """
    own = state_path(checkpoint, trainer.accelerator.process_index)
    saved = sorted(Path(checkpoint).glob(PODS_STATE))
    if not saved:
        logger.warning(
            f"The checkpoint {str(checkpoint)!r} holds no state of trl_pods, so training goes on with a new generation "
            "batch, as TRL does. It is exact only where a generation batch was used up."
        )
        return
    path = own if own in saved else saved[0]
    try:
        state, buffered = _read(path, trainer.state.global_step, trainer.accelerator.device)
        changed = _changed(state["sizes"], _sizes(trainer))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise SetupError(
            f"{str(path)!r} is damaged: {error}. Resume from an earlier checkpoint, or remove all {PODS_STATE} beside "
            "it to go on with a new generation batch."
        ) from error
    if path != own and not changed:
        raise SetupError(f"{str(own)!r} is missing. Resume from another checkpoint.")
    if buffered and trainer.args.beta and "ref_per_token_logps" not in buffered[0]:
        changed.append(f"`beta` 0 (now {trainer.args.beta})")
    if buffered and changed and not trainer.args.drop_open_generation_batch:
        raise SetupError(
            f"The checkpoint {str(checkpoint)!r} was saved within a generation batch, with {', '.join(changed)}, so "
            "training cannot go on in it. Set what was, or `drop_open_generation_batch` to begin with a new one."
        )
    if changed or trainer.args.drop_open_generation_batch:  # training begins with a new generation batch
        state, buffered = state | {"step": 0, "table": {}}, []
    trainer._step = state["step"]
    trainer._buffered_inputs = buffered or None
    trainer._metrics["train"].clear()  # of a training that this trainer has not finished
    for name, values in state["metrics"].items():
        trainer._metrics["train"][name].extend(values)
    trainer._learning_signal.load_state(state["learning_signal"])
    set_saved_table(trainer, state["table"])
    for name in ENTROPY_CONTROL:
        setattr(trainer, name, state["entropy_control"][name])


def advance_sampler(sampler: Sampler | None, num_epochs: int) -> None:
    """Draw the orders of epochs that have been trained, so that the next one is that of the epoch after them."""
    if sampler is not None:
        for _ in range(num_epochs):
            next(iter(sampler))


def _sizes(trainer: Any) -> dict[str, float]:
    names = ("per_device_train_batch_size", "steps_per_generation", "num_iterations", "num_generations", "num_rollouts")
    sizes = {name: getattr(trainer.args, name) for name in (*names, "prompt_oversampling")}
    return sizes | {"number of processes": trainer.accelerator.num_processes}


def _changed(saved: dict[str, float], now: dict[str, float]) -> list[str]:
    saved = {"prompt_oversampling": 1.0} | saved  # which checkpoints of 0.1 do not hold
    return [f"`{name}` {saved[name]} (now {now[name]})" for name in now if saved[name] != now[name]]


def _read(path: Path, step: int, device: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A file's state and its micro-batches, if it is one of this version and of this optimizer step."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Version 2 had the state in the header.
        text = tensors.pop(STATE_KEY).numpy().tobytes() if STATE_KEY in tensors else file.metadata()["state"]
    state = json.loads(text)
    if state["version"] not in (2, VERSION):
        raise ValueError(f"it has version {state['version']}, not {VERSION}")
    if state["global_step"] != step:
        raise ValueError(f"it is of step {state['global_step']}, the checkpoint of {step}")
    return state, _unflatten(state["buffered"], tensors, device)


def _plain(value: Any) -> Any:
    """What JSON cannot hold of the columns that reward functions have added to the table."""
    return value.tolist() if isinstance(value, torch.Tensor | np.generic | np.ndarray) else str(value)


def _flatten(batches: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Split micro-batches into plain values and tensors, which the values name."""
    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[name] = value.detach().cpu().contiguous().clone()
            return {"tensor": name}
        if isinstance(value, list | tuple):
            return {"list": [plain(item, f"{name}.{i}") for i, item in enumerate(value)]}
        return {"value": value}

    values = [{key: plain(value, f"{i}.{key}") for key, value in batch.items()} for i, batch in enumerate(batches)]
    return values, tensors


def _unflatten(values: list[dict[str, Any]], tensors: dict[str, torch.Tensor], device: Any) -> list[dict[str, Any]]:
    def restored(entry: dict[str, Any]) -> Any:
        if "tensor" in entry:
            return tensors[entry["tensor"]].to(device)
        if "list" in entry:
            return [restored(item) for item in entry["list"]]
        return entry["value"]

    return [{key: restored(entry) for key, entry in batch.items()} for batch in values]
