"""
Run under torchrun by test_deepspeed.py: trains each case, under DDP or one ZeRO stage, and writes what is compared.

    python -m torch.distributed.run --nproc_per_node 2 tests/deepspeed_worker.py MODEL_PATH OUTPUT_DIR SHARDING CASE ...

One sharding per run: transformers and accelerate keep DeepSpeed's configuration for the whole process.
"""

import json
import sys
from pathlib import Path

import deepspeed
import tiny
import torch
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.zero import GatheredParameters
from distributed_worker import deterministic_rollouts, labelled_reward, recording
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

# On CPUs DeepSpeed compiles an operator for inference at the start: minutes on a busy machine, and unused here. A run
# that is ended meanwhile leaves a lock behind, for which all later ones would wait for ever.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def zero(stage: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,  # SGD
    }


SHARDINGS = {"ddp": {"ddp_backend": "gloo"}, "zero2": {"deepspeed": zero(2)}, "zero3": {"deepspeed": zero(3)}}

# 8 trained rows per generation batch over both processes. With m = 4 there are P = 2 prompts, with m = 8 only one.
CASES = {
    "two_groups": {"num_generations": 4, "num_rollouts": 8},
    "one_group": {"num_generations": 8, "num_rollouts": 16, "beta": 0.1, "advantage_statistics": "all"},
    "generated": {"num_generations": 4, "num_rollouts": 8, "beta": 0.1},
    "generated_in_shards": {"num_generations": 4, "num_rollouts": 8, "ds3_gather_for_generation": False},
    "grpo": {"num_generations": 4, "beta": 0.1, "num_iterations": 2, "steps_per_generation": 2},
    "n_equal_m": {
        "num_generations": 4,
        "num_rollouts": 4,
        "beta": 0.1,
        "num_iterations": 2,
        "steps_per_generation": 2,
    },
}


def size(tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)


def sharding_of(trainer) -> dict:
    """ZeRO's stage, and how many parameters there are, this process holds, and its optimizer updates."""
    engine = trainer.model_wrapped
    if not isinstance(engine, DeepSpeedEngine):
        return {"stage": 0}
    parameters = list(engine.module.parameters())
    if engine.zero_optimization_stage() == 3:
        all_parameters = sum(parameter.ds_numel for parameter in parameters)
        held = size(parameter.ds_tensor for parameter in parameters)
        updated = size(engine.optimizer.fp32_partitioned_groups_flat)
    else:
        all_parameters = held = size(parameters)
        updated = size(engine.optimizer.single_partition_of_fp32_groups)
    return {"stage": engine.zero_optimization_stage(), "all": all_parameters, "held": held, "updated": updated}


def train(model_path: str, output_dir: Path, sharding: str, case: str) -> None:
    is_grpo = case == "grpo"
    deterministic = case in ("two_groups", "one_group")
    arguments = CASES[case]
    config = (GRPOConfig if is_grpo else PODSGRPOConfig)(
        **tiny.default_arguments(
            output_dir / sharding / case,
            per_device_train_batch_size=4 // arguments.get("steps_per_generation", 1),
            max_steps=4,
            learning_rate=1e-2,
            ddp_timeout=60,
            # Adam would divide by gradients that are zero but for rounding, and so show the rounding.
            optim="adamw_torch" if case in ("grpo", "n_equal_m") else "sgd",
            **SHARDINGS[sharding],
            **arguments,
        )
    )
    trainer = recording(GRPOTrainer if is_grpo else PODSGRPOTrainer)(
        model=model_path,
        reward_funcs=labelled_reward if deterministic else tiny.distinct_characters,
        args=config,
        train_dataset=tiny.make_dataset(),
        rollout_func=deterministic_rollouts if deterministic else None,
    )
    trainer.train()
    rank = trainer.accelerator.process_index
    result = {"kept": trainer.kept, **sharding_of(trainer)}
    (output_dir / f"{sharding}.{case}.{rank}.json").write_text(json.dumps(result))
    model = trainer.accelerator.unwrap_model(trainer.model)
    with GatheredParameters(list(model.parameters()), enabled=sharding == "zero3"):
        parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    if rank == 0:
        torch.save(parameters, output_dir / f"{sharding}.{case}.pt")


def main(model_path: str, output_dir: str, sharding: str, *cases: str) -> None:
    for case in cases:
        train(model_path, Path(output_dir), sharding, case)


if __name__ == "__main__":
    main(*sys.argv[1:])
