"""
ZeRO-2 and ZeRO-3 of DeepSpeed, two processes: kept rows and parameters as under DDP; GRPO's bits with n = m.

DeepSpeed is not installed with the other packages, so `make test-deepspeed` runs these.
"""

from pathlib import Path

import commands
import pytest
import sharded
from sharded import EXACT, assert_n_equal_m_is_grpo, assert_trained_alike, load

pytest.importorskip("deepspeed")

DOWN_SAMPLED = [*sharded.DOWN_SAMPLED, "generated_in_shards"]
STAGES = [2, 3]


@pytest.fixture(scope="module")
def results(model_path, tmp_path_factory) -> Path:
    """Folder with the results of all cases, under DDP and under both stages."""
    output_dir = tmp_path_factory.mktemp("deepspeed")
    worker = Path(__file__).with_name("deepspeed_worker.py")
    for sharding in ["ddp", *(f"zero{stage}" for stage in STAGES)]:
        cases = DOWN_SAMPLED if sharding == "ddp" else [*DOWN_SAMPLED, *EXACT]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DS_ACCELERATOR", "cpu")
            commands.torchrun(worker, model_path, output_dir, sharding, *cases)
    return output_dir


@pytest.mark.parametrize("stage", STAGES)
def test_each_process_updates_half_of_the_parameters(stage, results):
    for case in [*DOWN_SAMPLED, *EXACT]:
        for rank in load(results, f"zero{stage}", case)[0]:
            assert rank["stage"] == stage
            assert 2 * rank["updated"] == rank["all"]
            assert rank["held"] == rank["updated" if stage == 3 else "all"]


@pytest.mark.feature("DeepSpeed ZeRO-2, ZeRO-3")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", DOWN_SAMPLED)
def test_case_58_zero_trains_the_same_rows_to_the_same_parameters_as_ddp(case, stage, results):
    not_sharded = assert_trained_alike(results, f"zero{stage}", case)
    assert not any(rank["stage"] for rank in not_sharded)


@pytest.mark.parametrize("stage", STAGES)
def test_n_equal_m_is_grpo_bit_for_bit_under_zero(stage, results):
    assert_n_equal_m_is_grpo(results, f"zero{stage}")
