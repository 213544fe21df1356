"""
Run under torchrun by test_zero_variance.py: trains each case in each way, and writes rows and parameters.

    python -m torch.distributed.run --nproc_per_node W tests/zero_variance_worker.py MODEL_PATH OUTPUT_DIR W CASE ...
"""

import json
import sys
from pathlib import Path

import tiny
import torch
import trl.trainer.grpo_trainer as host
from distributed_worker import deterministic_rollouts
from peft import LoraConfig
from test_exactness import LOSS_TYPES

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.cli.launch import end_process_group

# 32 kept rows per generation batch: 8 prompts of 4 rollouts, of which half have no variance.
SKIPPED = {f"{loss}_{n}": {"loss_type": loss, "num_rollouts": n} for loss in LOSS_TYPES for n in (4, 6)}
SKIPPED["lora"] = {"num_rollouts": 6}
OTHERS = {
    "dropped": {"num_rollouts": 6, "zero_variance": "drop"},
    "oversampled": {"num_rollouts": 6, "prompt_oversampling": 1.5},
    "none_varies": {"num_rollouts": 6, "learning_rate": 0.1},
}
# Of one prompt that varies, with one row for each process: a shuffle that draws no random numbers.
SAMPLED = {"num_generations": 2, "num_rollouts": 2, "learning_rate": 0.0, "gradient_accumulation_steps": 1}


def reward(completions, target, trainer_state, **kwargs) -> list[float]:
    return [len(set(text)) + value / 100 if value % 2 else 1.0 for text, value in zip(completions, target)]


def of_one_prompt(target, **kwargs) -> list[float]:
    return [float(value % 8 == 1 and i % 2) for i, value in enumerate(target)]


def equal(completions, **kwargs) -> list[float]:
    return [0.1] * len(completions)


class Counting(PODSGRPOTrainer):
    def _compute_loss(self, model, inputs):
        self.trained = [*getattr(self, "trained", []), inputs["completion_ids"].tolist()]
        return super()._compute_loss(model, inputs)

    def _generate_single_turn(self, *args, **kwargs):
        completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
        self.sampled = [*getattr(self, "sampled", []), completion_ids]
        return completion_ids, logprobs


def train(model_path: str, output_dir: Path, case: str, num_processes: int, **arguments) -> None:
    trainer = Counting(
        model=model_path,
        reward_funcs={"none_varies": equal, "sampled": of_one_prompt}.get(case, reward),
        args=PODSGRPOConfig(
            **tiny.default_arguments(
                output_dir,
                per_device_train_batch_size=(8 if case == "sampled" else 16) // num_processes,
                max_steps=4,
                ddp_backend="gloo",
                ddp_timeout=60,
                # Adam would divide by gradients that are zero but for rounding, and so show the rounding.
                **{"optim": "sgd", "learning_rate": 0.01, "max_grad_norm": 0.0, "gradient_accumulation_steps": 2}
                | arguments,
            )
        ),
        train_dataset=tiny.make_dataset(36),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if case == "lora" else None,
        rollout_func=None if case == "sampled" else deterministic_rollouts,
    )
    start = tiny.trained_parameters(trainer)
    trainer.train()
    rank = trainer.accelerator.process_index
    name = f"{case}.{trainer.args.zero_variance}.{num_processes}"
    log = [entry for entry in trainer.state.log_history if "pods/trained_rows" in entry]
    (output_dir / f"{name}.{rank}.json").write_text(
        json.dumps({"trained": trainer.trained, "sampled": getattr(trainer, "sampled", []), "log": log})
    )
    if rank == 0:
        end = tiny.trained_parameters(trainer)
        torch.save({"start": start, "end": end}, output_dir / f"{name}.pt")


def main(model_path: str, output_dir: str, num_processes: str, *cases: str) -> None:
    for zero_variance in ("train", "skip"):
        train(model_path, Path(output_dir), "sampled", int(num_processes), zero_variance=zero_variance, **SAMPLED)
    host.shuffle_sequence_dict = lambda batch: batch  # other rows would come into a micro-batch
    for case in cases:
        arguments = (SKIPPED | OTHERS)[case]
        for zero_variance in ("train", "skip") if case in SKIPPED else (arguments.get("zero_variance", "skip"),):
            train(
                model_path, Path(output_dir), case, int(num_processes), **arguments | {"zero_variance": zero_variance}
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
