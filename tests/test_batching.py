"""How many rows TRL is shown while the trainer is being built."""

import pytest

from trl_pods import PODSGRPOConfig
from trl_pods.downsampling.sizes import MAX_VLLM_SEQUENCES, sized_for_rollouts


def shown_sequences(tmp_path, num_rollouts: int, **arguments) -> int:
    """What TRL sizes vLLM's `max_num_seqs` by, for 8 prompts."""
    args = PODSGRPOConfig(
        str(tmp_path),
        use_cpu=True,
        bf16=False,
        num_rollouts=num_rollouts,
        num_generations=8,
        per_device_train_batch_size=64,
        **arguments,
    )
    with sized_for_rollouts(args):
        return args.per_device_train_batch_size * args.steps_per_generation


@pytest.mark.parametrize("num_rollouts", [8, 64, 512])
def test_case_60_vllm_is_sized_for_all_rollouts(num_rollouts, tmp_path):
    assert shown_sequences(tmp_path, num_rollouts, use_vllm=True) == 8 * num_rollouts


def test_vllm_is_not_asked_for_more_sequences_than_it_takes(tmp_path):
    assert shown_sequences(tmp_path, 1024, use_vllm=True) == MAX_VLLM_SEQUENCES
    assert shown_sequences(tmp_path, 1024) == 8 * 1024  # without vLLM, the completions table alone depends on it
