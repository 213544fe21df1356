"""
Run under torchrun by test_fsdp.py: trains each case with the model sharded in each way, and writes what is compared.

    python -m torch.distributed.run --nproc_per_node 2 tests/fsdp_worker.py MODEL_PATH OUTPUT_DIR SHARDING:CASE ...
"""

import json
import sys
from pathlib import Path

import tiny
import torch
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType
from distributed_worker import deterministic_rollouts, labelled_reward, recording
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

SHARDINGS = {
    "ddp": {},  # none, to compare with
    "transformers": {"model_init_kwargs": {"distributed_config": {"fsdp_size": 2}}},
    "accelerate": {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}},
}

# 8 trained rows per generation batch over both processes. With m = 4 there are P = 2 prompts, with m = 8 only one.
CASES = {
    "two_groups": {"num_generations": 4, "num_rollouts": 8},
    "one_group": {"num_generations": 8, "num_rollouts": 16, "beta": 0.1, "advantage_statistics": "all"},
    "generated": {"num_generations": 4, "num_rollouts": 8, "beta": 0.1},
    "grpo": {"num_generations": 4, "beta": 0.1, "num_iterations": 2, "steps_per_generation": 2},
    "n_equal_m": {
        "num_generations": 4,
        "num_rollouts": 4,
        "beta": 0.1,
        "num_iterations": 2,
        "steps_per_generation": 2,
    },
}


def with_fsdp_of_accelerate(trainer_class):
    """Let accelerate shard on the CPU: its `AcceleratorState` takes an FSDP plugin on GPUs only, and else uses DDP."""

    class Sharded(trainer_class):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            assert self.accelerator.distributed_type == DistributedType.MULTI_CPU, "accelerate shards on the CPU itself"
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True

    return Sharded


def held(parameter: torch.Tensor) -> torch.Tensor:
    """The part of a parameter that this process holds."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def whole(parameter: torch.Tensor) -> torch.Tensor:
    parameter = parameter.detach()
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.clone()


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
            ddp_backend="gloo",
            ddp_timeout=60,
            # Adam would divide by gradients that are zero but for rounding, and so show the rounding.
            optim="adamw_torch" if case in ("grpo", "n_equal_m") else "sgd",
            **SHARDINGS[sharding],
            **arguments,
        )
    )
    trainer_class = recording(GRPOTrainer if is_grpo else PODSGRPOTrainer)
    if sharding == "accelerate":
        trainer_class = with_fsdp_of_accelerate(trainer_class)
    trainer = trainer_class(
        model=model_path,
        reward_funcs=labelled_reward if deterministic else tiny.distinct_characters,
        args=config,
        train_dataset=tiny.make_dataset(),
        rollout_func=deterministic_rollouts if deterministic else None,
    )
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    parameters = {name: whole(parameter) for name, parameter in model.named_parameters()}
    result = {
        "kept": trainer.kept,
        "is_fsdp2": isinstance(model, FSDPModule),
        "held": sum(held(parameter).numel() for parameter in model.parameters()),
        "all": sum(parameter.numel() for parameter in parameters.values()),
    }
    rank = trainer.accelerator.process_index
    (output_dir / f"{sharding}.{case}.{rank}.json").write_text(json.dumps(result))
    if rank == 0:
        torch.save(parameters, output_dir / f"{sharding}.{case}.pt")


def main(model_path: str, output_dir: str, *cases: str) -> None:
    for case in cases:
        train(model_path, Path(output_dir), *case.split(":"))


if __name__ == "__main__":
    main(*sys.argv[1:])
