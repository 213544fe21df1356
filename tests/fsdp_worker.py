"""
Run under torchrun by test_fsdp.py: trains each case with the model sharded in each way, and writes what is compared.

    python -m torch.distributed.run --nproc_per_node 2 tests/fsdp_worker.py MODEL_PATH OUTPUT_DIR SHARDING:CASE ...
"""

import sys
from pathlib import Path

import sharded
import torch
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trl_pods.cli.launch import end_process_group

SHARDINGS = {
    "ddp": {},  # none, to compare with
    "transformers": {"model_init_kwargs": {"distributed_config": {"fsdp_size": 2}}},
    "accelerate": {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}},
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
    arguments = {"ddp_backend": "gloo", **SHARDINGS[sharding], **sharded.CASES[case]}
    adapt = {"adapt": with_fsdp_of_accelerate} if sharding == "accelerate" else {}
    trainer = sharded.train(model_path, output_dir / sharding / case, case, arguments, **adapt)
    model = trainer.accelerator.unwrap_model(trainer.model)
    parameters = {name: whole(parameter) for name, parameter in model.named_parameters()}
    result = {
        "is_fsdp2": isinstance(model, FSDPModule),
        "held": sum(held(parameter).numel() for parameter in model.parameters()),
        "all": sum(parameter.numel() for parameter in parameters.values()),
    }
    sharded.save(trainer, output_dir, f"{sharding}.{case}", result, parameters)


def main(model_path: str, output_dir: str, *cases: str) -> None:
    for case in cases:
        train(model_path, Path(output_dir), *case.split(":"))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
