"""Rows that travel between processes arrive as they were sent."""

import pickle
from pathlib import Path

import commands
import pytest
import torch
from rows_worker import KEPT, columns

from trl_pods.downsampling.rows import pack


@pytest.mark.long
def test_rows_arrive_at_another_process_as_they_were(tmp_path):
    commands.torchrun(Path(__file__).with_name("rows_worker.py"), tmp_path)
    for rank in range(2):
        found = pickle.loads((tmp_path / f"{rank}.pkl").read_bytes())
        own = KEPT[4 * rank : 4 * rank + 4]
        expected = {key: [values[i] for i in own] for key, values in columns().items()}
        found_logps, expected_logps = found.pop("logprobs"), expected.pop("logprobs")
        assert found == expected
        assert {type(x) for key in ("prompt_ids", "tool_mask") for row in found[key] for x in row} == {int}
        for logps, others in zip(found_logps, expected_logps, strict=True):
            assert logps[3:] == [None] if others[3] is None else logps[3] is not None
            assert torch.equal(as_tensor(logps), as_tensor(others))


def as_tensor(logps: list) -> torch.Tensor:
    """What TRL makes of log-probs; NaN is -1 here, which equals itself."""
    return torch.tensor([torch.nan if x is None else x for x in logps]).nan_to_num(nan=-1.0)


def test_numbers_of_tokens_travel_in_four_bytes():
    row = {"completion_ids": [100_000] * 4096, "logprobs": [-0.1] * 4096, "tool_mask": [1] * 4096}
    assert len(pickle.dumps(pack(row))) < 4096 * (4 + 4 + 1) + 1000
