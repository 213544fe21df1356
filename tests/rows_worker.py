"""
Run under torchrun by test_rows.py: narrows the rows of each process to its share of the kept ones, and writes them.

    python -m torch.distributed.run --nproc_per_node 2 tests/rows_worker.py OUTPUT_DIR
"""

import math
import pickle
import sys
from pathlib import Path

import torch
from accelerate import PartialState

from trl_pods.cli.launch import end_process_group
from trl_pods.downsampling.rows import keep_rows

NUM_ROWS = 8  # of each process
KEPT = [0, 2, 3, 5, 6, 8, 9, 15]  # five are on the first process, which trains four


def columns() -> dict:
    """Of all rows: numbers of each token, missing ones among them, and what is no number."""
    rows = range(2 * NUM_ROWS)
    return {
        "prompts": [f"prompt {i}" for i in rows],
        "inputs": [{"target": i} for i in rows],
        "prompt_ids": [[151_642 + i] * (i + 1) for i in rows],
        "completion_ids": [list(range(i + 1)) for i in rows],
        "tool_mask": [[j % 2 for j in range(i + 1)] for i in rows],
        "logprobs": [[-i / 7, math.nan, -math.inf, None if i % 2 else -0.1] for i in rows],
        ("extra_fields", "logprobs"): [[-i / 7] for i in rows],
    }


def main(output_dir: str) -> None:
    state = PartialState(cpu=True)
    first = state.process_index * NUM_ROWS
    narrowed = keep_rows(
        {key: values[first : first + NUM_ROWS] for key, values in columns().items()},
        torch.tensor(KEPT),
        num_rows=NUM_ROWS,
        process_index=state.process_index,
        num_processes=2,
    )
    (Path(output_dir) / f"{state.process_index}.pkl").write_bytes(pickle.dumps(narrowed))


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process_group()
