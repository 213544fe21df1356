"""
FSDP2 on two processes: the same kept rows and parameters as under DDP, and GRPO's bits with n = m.

Once sharded by transformers as it loads (`distributed_config`), once by accelerate as under `accelerate launch`. On a
CPU accelerate 1.15 silently uses DDP instead, so there the worker sets its state to what it would be on GPUs.
"""

from pathlib import Path

import commands
import pytest
from sharded import DOWN_SAMPLED, EXACT, assert_n_equal_m_is_grpo, assert_trained_alike, load

pytestmark = pytest.mark.long

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
    not_sharded = assert_trained_alike(results, sharding, case)
    assert not any(rank["is_fsdp2"] for rank in not_sharded)


@pytest.mark.parametrize("sharding", SHARDED)
def test_n_equal_m_is_grpo_bit_for_bit_under_fsdp(sharding, results):
    assert_n_equal_m_is_grpo(results, sharding)
