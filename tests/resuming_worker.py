"""
Run under torchrun by test_resuming.py: trains with checkpoints, resumes from some, and writes the parameters of each.
In the end, one process damages its part of a checkpoint, and each writes how resuming from it was refused, and how it
was where each was to go on from another.

    python -m torch.distributed.run --nproc_per_node 2 tests/resuming_worker.py MODEL_PATH OUTPUT_DIR
"""

import os
import sys
from pathlib import Path

import tiny
import torch

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.cli.launch import end_process_group
from trl_pods.resume.state import state_path

RANK = int(os.environ["RANK"])

# One group straddles the processes; a generation batch lasts three optimizer steps.
ARGUMENTS = {
    "num_generations": 4,
    "num_rollouts": 8,
    "per_device_train_batch_size": 2,
    "steps_per_generation": 3,
    "max_steps": 6,
    "save_steps": 1,
    "ddp_backend": "gloo",
    "ddp_timeout": 60,
}


def train(model_path: str, output_dir: Path, save_strategy: str, checkpoint: str | None = None) -> PODSGRPOTrainer:
    trainer = PODSGRPOTrainer(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=PODSGRPOConfig(**tiny.default_arguments(output_dir, save_strategy=save_strategy, **ARGUMENTS)),
        train_dataset=tiny.make_dataset(4),  # one generation batch per epoch
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def main(model_path: str, output_dir: str) -> None:
    folder = Path(output_dir)
    results = {"whole": train(model_path, folder / "run", "steps")}
    for step in (1, 2, 3, 4):
        checkpoint = str(folder / "run" / f"checkpoint-{step}")
        results[f"from {step}"] = train(model_path, folder / "resumed", "no", checkpoint)
    if results["whole"].accelerator.process_index == 0:
        torch.save({name: tiny.trained_parameters(trainer) for name, trainer in results.items()}, folder / "results.pt")
    checkpoint = folder / "run" / "checkpoint-5"
    if RANK == 1:
        state_path(checkpoint, RANK).write_bytes(b"{")
    (folder / f"refused.{RANK}.txt").write_text(refusal(model_path, folder, checkpoint))
    others = folder / "run" / f"checkpoint-{3 + RANK}"
    (folder / f"disagreed.{RANK}.txt").write_text(refusal(model_path, folder, others))


def refusal(model_path: str, folder: Path, checkpoint: Path) -> str:
    """What this process is told when it is to resume from a checkpoint."""
    try:
        train(model_path, folder / "resumed", "no", str(checkpoint))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "It was not refused."


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
