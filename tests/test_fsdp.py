"""
FSDP2 on two processes: the same kept rows and parameters as under DDP, and GRPO's bits with n = m.

Once sharded by transformers as it loads (`distributed_config`), once by accelerate as under `accelerate launch`. On a
CPU accelerate 1.15 silently uses DDP instead, so there the worker sets its state to what it would be on GPUs.
"""

import json
from pathlib import Path

import commands
import pytest
import torch

DOWN_SAMPLED = ["two_groups", "one_group", "generated"]
EXACT = ["grpo", "n_equal_m"]
SHARDED = ["transformers", "accelerate"]


@pytest.fixture(scope="module")
def results(model_path, tmp_path_factory) -> Path:
    """Folder with the results of all cases, sharded and not."""
    output_dir = tmp_path_factory.mktemp("fsdp")
    worker = Path(__file__).with_name("fsdp_worker.py")
    cases = [f"ddp:{case}" for case in DOWN_SAMPLED]
    cases += [f"{sharding}:{case}" for sharding in SHARDED for case in [*DOWN_SAMPLED, *EXACT]]
    commands.torchrun(worker, model_path, output_dir, *cases)
    return output_dir


def load(results: Path, sharding: str, case: str) -> tuple[list[dict], dict]:
    ranks = [json.loads((results / f"{sharding}.{case}.{rank}.json").read_text()) for rank in range(2)]
    return ranks, torch.load(results / f"{sharding}.{case}.pt")


@pytest.mark.parametrize("sharding", SHARDED)
def test_each_process_holds_half_of_the_parameters(sharding, results):
    for case in [*DOWN_SAMPLED, *EXACT]:
        for rank in load(results, sharding, case)[0]:
            assert rank["is_fsdp2"]
            assert 2 * rank["held"] == rank["all"]


@pytest.mark.feature("FSDP2")
@pytest.mark.parametrize("sharding", SHARDED)
@pytest.mark.parametrize("case", DOWN_SAMPLED)
def test_fsdp_trains_the_same_rows_to_the_same_parameters_as_ddp(case, sharding, results):
    not_sharded, expected = load(results, "ddp", case)
    ranks, found = load(results, sharding, case)
    assert not any(rank["is_fsdp2"] for rank in not_sharded)
    assert [rank["kept"] for rank in ranks] == [rank["kept"] for rank in not_sharded]
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("sharding", SHARDED)
def test_n_equal_m_is_grpo_bit_for_bit_under_fsdp(sharding, results):
    grpo, expected = load(results, sharding, "grpo")
    pods, found = load(results, sharding, "n_equal_m")
    assert [rank["kept"] for rank in pods] == [rank["kept"] for rank in grpo]
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
