"""Two processes under torchrun that share one prompt's group: an engine in each, one across both, a server for both."""

import json
from pathlib import Path

import commands
import pytest
import torch
from recording import expected_score, normalized
from serving import serve

WORLD_SIZE, NUM_STEPS = 2, 4


@pytest.fixture(scope="module")
def results(vllm_model_path, tmp_path_factory) -> dict:
    """What the worker wrote: for each case, results and parameters of each process; and what the server was asked."""
    folder = tmp_path_factory.mktemp("two_processes")
    worker = Path(__file__).with_name("two_processes_worker.py")
    with serve() as server:
        for cases in (["server", "colocate"], ["tensor_parallel"]):
            arguments = [vllm_model_path, folder, server.url, *cases]
            commands.torchrun(worker, *arguments, num_processes=WORLD_SIZE, timeout=900)
    found = {"asked": server.asked}
    for case in ("server", "colocate", "tensor_parallel"):
        found[case] = [
            (json.loads((folder / f"{case}.{rank}.json").read_text()), torch.load(folder / f"{case}.{rank}.pt"))
            for rank in range(WORLD_SIZE)
        ]
    return found


@pytest.mark.feature("vLLM tensor parallelism")
@pytest.mark.feature("vLLM, colocated")
@pytest.mark.parametrize("case", ["server", "colocate", "tensor_parallel"])
def test_processes_share_the_kept_rows_of_a_group(case, results):
    (first, parameters), (second, others) = results[case]
    for rank in (first, second):
        assert rank["rewarded"] == rank["rows"]["generated"] == [16] * NUM_STEPS
        assert rank["rows"]["policy"] == [4] * NUM_STEPS
        assert set(rank["rows"]["without_gradient"]) == {4}
    for shares in zip(first["trained"], second["trained"], strict=True):
        rows = sum(shares, [])
        assert len({row["number"] for row in rows}) == 1
        rewards = torch.tensor([[expected_score({**row, "completion": tuple(row["completion"])}) for row in rows]])
        advantages = torch.tensor([[row["advantage"] for row in rows]])
        torch.testing.assert_close(advantages, normalized(rewards), rtol=1e-4, atol=1e-4)
    for name in parameters:
        assert torch.equal(parameters[name], others[name]), name


def test_the_server_is_asked_once_for_both_processes(results):
    assert [(len(body["prompt"]), body["n"]) for body in results["asked"]] == [(1, 32)] * NUM_STEPS


@pytest.mark.parametrize("case", ["colocate", "tensor_parallel"])
def test_log_probs_travel_with_the_rows_that_are_exchanged(case, results):
    [log, _] = [rank["log"][:-1] for rank, _ in results[case]]
    differences = [entry["sampling/sampling_logp_difference/mean"] for entry in log]
    print(f"difference of log-probs: {differences}")
    assert len(differences) == NUM_STEPS
    assert max(differences) < 0.02


@pytest.mark.parametrize(("case", "rollouts"), [("colocate", 16), ("tensor_parallel", 32)])
def test_each_engine_holds_the_rollouts_of_its_processes(case, rollouts, results):
    assert [rank["max_num_seqs"] for rank, _ in results[case]] == [rollouts] * WORLD_SIZE
