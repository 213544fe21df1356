"""
Run under torchrun by test_deepspeed.py: trains each case, under DDP or one ZeRO stage, and writes what is compared.

    python -m torch.distributed.run --nproc_per_node 2 tests/deepspeed_worker.py MODEL_PATH OUTPUT_DIR SHARDING CASE ...

One sharding per run: transformers and accelerate keep DeepSpeed's configuration for the whole process.
"""

import sys
from pathlib import Path

import deepspeed
import sharded
from deepspeed import DeepSpeedEngine
from deepspeed.runtime.zero import GatheredParameters

from trl_pods.cli.launch import end_process_group

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

CASES = sharded.CASES | {
    "generated_in_shards": {"num_generations": 4, "num_rollouts": 8, "ds3_gather_for_generation": False}
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
    arguments = {**SHARDINGS[sharding], **CASES[case]}
    trainer = sharded.train(model_path, output_dir / sharding / case, case, arguments)
    model = trainer.accelerator.unwrap_model(trainer.model)
    with GatheredParameters(list(model.parameters()), enabled=sharding == "zero3"):
        parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    sharded.save(trainer, output_dir, f"{sharding}.{case}", sharding_of(trainer), parameters)


def main(model_path: str, output_dir: str, sharding: str, *cases: str) -> None:
    for case in cases:
        train(model_path, Path(output_dir), sharding, case)


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
