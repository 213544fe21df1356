"""Faults of one process of two: all stop with an error that says what it was, or training goes on. Nothing hangs."""

import json
from pathlib import Path

import commands
import pytest

WORKER = Path(__file__).with_name("fault_worker.py")
# Which process is at fault, the error there, and the steps done before it.
STOPS = {
    "reward_raises": (1, "ValueError: no judge", 1),
    "first_reward_raises": (0, "ValueError: no judge", 1),
    "async_reward_raises": (1, "ValueError: no judge", 0),
    "too_few_rewards": (1, "SetupError: The reward function 'reward' returned 7 rewards, but 8 were expected", 1),
    "short_env_mask": (1, "SetupError: `rollout_func` returned 7 of 'env_mask' for 8 prompts", 0),
    "rule_raises": (0, "RuntimeError: The down-sampling strategy 'fault_worker.rule_raising_on_0' raised", 0),
    "rule_with_rubbish": (0, "SetupError: The down-sampling strategy 'fault_worker.rule_with_rubbish' (", 0),
    "rollouts_raise": (1, "ValueError: no judge", 0),
    "too_few_rollouts": (1, "SetupError: `rollout_func` returned 7 of 'completion_ids' for 8 prompts", 0),
    "empty_completion": (1, "SetupError: `rollout_func` returned a row of 'completion_ids' without a token", 0),
    "no_completions": (1, "SetupError: `rollout_func` returned 0 of 'completion_ids' for 8 prompts", 0),
    "short_logprobs": (1, "SetupError: `rollout_func` returned 1 of 'logprobs' for completion 0", 0),
    "full_disk_for_checkpoints": (1, "SetupError: '", 3),
}
SURVIVED = ["no_numbers", "rule_raises_elsewhere", "unused_logprobs", "nan_logprobs", "full_disk"]
SURVIVED += ["short_column", "short_column_of_all"]


pytestmark = pytest.mark.long  # two processes, with a fault each


@pytest.fixture(scope="module")
def met(model_path, tmp_path_factory):
    """What each process has met, by case: all were trained by the same two processes, one after the other."""
    folder = tmp_path_factory.mktemp("faults")
    commands.torchrun(WORKER, model_path, folder)
    return lambda case: [json.loads((folder / f"{case}.2.{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", STOPS)
def test_a_fault_of_one_process_is_told_on_all(case, met):
    rank, message, steps = STOPS[case]
    at_fault, other = met(case)[rank], met(case)[1 - rank]
    assert at_fault["error"].startswith(message)
    kind = "SetupError" if message.startswith("SetupError") else "RuntimeError"
    assert other["error"].startswith(f"{kind}: All processes stop, because process {rank} raised {message}")
    assert at_fault["steps"] == other["steps"] == steps


@pytest.mark.parametrize("case", SURVIVED)
def test_training_goes_on_after(case, met):
    for found in met(case):
        assert (found["error"], found["steps"], found["is_finite"]) == (None, 3, True)


def test_what_goes_on_is_told(met):
    first, second = (found["warnings"] for found in met("full_disk"))
    assert [line.split(", and so are")[0] for line in first] == ["The completions table of step 2 is lost"]
    assert not second
    (line,) = met("short_column")[1]["warnings"]
    assert line.startswith("The column 'note' of the completions table is lost: `log_extra` was given 1 values for 8")
    assert any("infinite reward" in line for line in met("no_numbers")[0]["warnings"])
