"""
Run under torchrun by test_cases_batches.py: trains groups that straddle processes, and writes what each process saw.

    python -m torch.distributed.run --nproc_per_node 3 tests/batches_worker.py MODEL_PATH OUTPUT_DIR
"""

import json
import os
import sys
from pathlib import Path

from recording import Judge, make_trainer

from trl_pods.cli.launch import end_process_group

# Two groups of 6 over three processes: the second holds the end of one group and the start of the other.
ARGUMENTS = {
    "num_rollouts": 6,
    "num_generations": 3,
    "per_device_train_batch_size": 2,
    "max_completion_length": 12,
    "generation_kwargs": {"suppress_tokens": [0, 1]},  # so that no completion is short, and equal to another by chance
    "max_steps": 3,
    "ddp_backend": "gloo",
    "ddp_timeout": 60,
}


def main(model_path: str, output_dir: str) -> None:
    judge = Judge()
    trainer = make_trainer(model_path, judge, output_dir, **ARGUMENTS)
    trainer.train()
    sampled = [[(number, ids, reward) for (number, ids), reward in call.items()] for call in judge.calls]
    rows = [trainer.rows(inputs) for inputs in trainer.trained]
    trained = [[(row["number"], row["completion"], row["advantage"]) for row in step] for step in rows]
    seen = {"num_rewarded": judge.num_rows, "sampled": sampled, "trained": trained}
    Path(output_dir, f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
