"""
Run by test_kills.py: a training that is ended by a signal in the named phase of its fourth step, or resumed.

    python tests/kill_worker.py MODEL_PATH OUTPUT_DIR PHASE SIGNAL
    python tests/kill_worker.py MODEL_PATH OUTPUT_DIR
"""

import itertools
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import tiny
import torch
from transformers import TrainerState

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.cli.launch import end_process_group
from trl_pods.resume import state as resuming

LAST = int(os.environ.get("WORLD_SIZE", "1")) - 1  # the process that is ended


def make_trainer(model_path: str, output_dir: Path, **overrides) -> PODSGRPOTrainer:
    """Six steps, two for each generation batch, with a checkpoint after each."""
    arguments = {"num_rollouts": 8, "per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 6}
    arguments |= {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    if "RANK" in os.environ:
        arguments |= {"ddp_backend": "gloo", "ddp_timeout": 60}
    return PODSGRPOTrainer(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=PODSGRPOConfig(**tiny.default_arguments(output_dir, **arguments | overrides)),
        train_dataset=tiny.make_dataset(),
    )


def end_in(phase: str, trainer: PODSGRPOTrainer, end) -> None:
    """Let `end` be called in the named phase."""

    def end_after_half_of(path) -> None:
        """As where a file was being written."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"global_step": 4, "log_hi')
        end()

    def end_after_a_file_of(folder, *args, **kwargs) -> None:
        next(Path(folder).iterdir()).unlink()
        end()

    owner, name, call, act = {
        "generate": (trainer, "_generate_single_turn", 2, end),
        "reward": (trainer, "_calculate_rewards", 3, end),  # which is asked for the kept rows, too
        "update": (trainer.accelerator, "backward", 4, end),
        "state": (resuming, "save_file", 4, lambda tensors, path, **kwargs: end_after_half_of(path)),
        "weights": (trainer, "save_model", 4, end),
        "optimizer": (trainer, "_save_optimizer_and_scheduler", 4, end),
        "log": (TrainerState, "save_to_json", 4, lambda state, path: end_after_half_of(path)),
        "rotation": (shutil, "rmtree", 2, end_after_a_file_of),
    }[phase]
    original, calls = getattr(owner, name), itertools.count(1)

    def counted(*args, **kwargs):
        if next(calls) == call:
            act(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def main(model_path: str, output_dir: str, phase: str | None = None, signal_name: str | None = None) -> None:
    trainer = make_trainer(model_path, Path(output_dir))
    if phase and trainer.accelerator.process_index == LAST:
        end_in(phase, trainer, lambda *args, **kwargs: os.kill(os.getpid(), getattr(signal, signal_name)))
    trainer.train(resume_from_checkpoint=True if list(Path(output_dir).glob("checkpoint-*")) else None)
    if trainer.accelerator.is_main_process:
        torch.save(tiny.trained_parameters(trainer), Path(output_dir) / "trained.pt")
        (Path(output_dir) / "log.json").write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
