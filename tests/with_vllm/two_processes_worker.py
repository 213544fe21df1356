"""
Run under torchrun by test_two_processes.py: trains with a server or with colocated engines, and writes what it found.

    python -m torch.distributed.run --nproc_per_node 2 two_processes_worker.py MODEL OUTPUT_DIR URL CASE ...

vLLM lays out its processes once, so `colocate` and `tensor_parallel` need a run of their own.
"""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import tiny
import torch
from engine import keep_linear_weights, make_trainer
from recording import Judge
from serving import keep_weights_here, server_arguments

from trl_pods.cli.launch import end_process_group

# One prompt of 32 rollouts, 8 of them kept: each process samples half of the group and trains half of the kept rows.
ARGUMENTS = {
    "num_rollouts": 32,
    "num_generations": 8,
    "per_device_train_batch_size": 4,
    "beta": 0.05,
    "max_steps": 4,
    "ddp_backend": "gloo",
    "ddp_timeout": 120,
}


def train(case: str, model_path: str, output_dir: Path, **arguments) -> None:
    judge = Judge()
    trainer = make_trainer(model_path, judge, output_dir / case, **ARGUMENTS, **arguments)
    trainer.train()
    result = {
        "trained": [trainer.rows(inputs) for inputs in trainer.trained],
        "rewarded": judge.num_rows,
        "rows": dataclasses.asdict(trainer.num_rows),
        "log": trainer.state.log_history,
    }
    if case != "server":
        engine = trainer.vllm_generation.llm.llm_engine
        result["max_num_seqs"] = engine.vllm_config.scheduler_config.max_num_seqs
    rank = trainer.accelerator.process_index
    (output_dir / f"{case}.{rank}.json").write_text(json.dumps(result))
    torch.save(tiny.trained_parameters(trainer), output_dir / f"{case}.{rank}.pt")


def main(model_path: str, output_dir: str, server_url: str, *cases: str) -> None:
    keep_linear_weights()
    arguments = {
        "server": server_arguments(server_url),
        "colocate": {},
        "tensor_parallel": {"vllm_tensor_parallel_size": 2},
    }
    for case in cases:
        with pytest.MonkeyPatch.context() as patch:
            if case == "server":
                keep_weights_here(patch)
            train(case, model_path, Path(output_dir), **arguments[case])


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
