"""
Run under torchrun by test_two_processes.py: trains with a server and with colocated engines, and writes what it found.

    python -m torch.distributed.run --nproc_per_node 2 tests/with_vllm/two_processes_worker.py MODEL OUTPUT_DIR URL
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
    if case == "colocate":
        engine = trainer.vllm_generation.llm.llm_engine
        result["max_num_seqs"] = engine.vllm_config.scheduler_config.max_num_seqs
    rank = trainer.accelerator.process_index
    (output_dir / f"{case}.{rank}.json").write_text(json.dumps(result))
    torch.save(tiny.trained_parameters(trainer), output_dir / f"{case}.{rank}.pt")


def main(model_path: str, output_dir: str, server_url: str) -> None:
    keep_linear_weights()
    with pytest.MonkeyPatch.context() as patch:
        keep_weights_here(patch)
        train("server", model_path, Path(output_dir), **server_arguments(server_url))
    train("colocate", model_path, Path(output_dir))


if __name__ == "__main__":
    main(*sys.argv[1:])
