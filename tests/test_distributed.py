"""Several real processes under torchrun: the same kept rows and parameters as one, and GRPO's bits with n = m."""

import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import commands
import pandas as pd
import pytest
import torch

DETERMINISTIC = ["two_groups", "one_group", "all_statistics", "random_rule"]
pytestmark = pytest.mark.long
WORLD_SIZES = [2, 4]
CASES = {  # by the number of processes that train them
    1: DETERMINISTIC,
    2: [*DETERMINISTIC, "grpo", "n_equal_m", "grpo_lora", "n_equal_m_lora", "own_randomness", "one_large_group"],
    4: [*DETERMINISTIC, "own_randomness"],
}
WORKER = Path(__file__).with_name("distributed_worker.py")


@pytest.fixture(scope="module")
def results(model_path, tmp_path_factory) -> Callable[[int], Path]:
    """Folder with the results of all cases for a number of processes, which train them when first asked for."""

    @functools.cache
    def trained_by(world_size: int) -> Path:
        output_dir = tmp_path_factory.mktemp(f"by_{world_size}")
        commands.torchrun(WORKER, model_path, output_dir, *CASES[world_size], num_processes=world_size)
        return output_dir

    return trained_by


def load(results, case: str, world_size: int) -> tuple[list[dict], dict]:
    folder = results(world_size)
    ranks = [json.loads((folder / f"{case}.{world_size}.{rank}.json").read_text()) for rank in range(world_size)]
    return ranks, torch.load(folder / f"{case}.{world_size}.pt")


@pytest.mark.feature("several processes")
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("case", DETERMINISTIC)
def test_processes_train_the_same_rows_to_the_same_parameters(case, world_size, results):
    [single], expected = load(results, case, 1)
    ranks, found = load(results, case, world_size)
    for step, rows in enumerate(single["kept"]):
        shares = [rank["kept"][step] for rank in ranks]
        assert {len(share) for share in shares} == {8 // world_size}, "a rank trains another number of rows"
        together = Counter(tuple(row) for share in shares for row in share)
        assert together == Counter(map(tuple, rows)), "other rows were kept"
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-7, msg=name)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_rule_with_randomness_of_its_own_keeps_the_same_rows_on_all_processes(world_size, results):
    ranks, _ = load(results, "own_randomness", world_size)
    for shares in zip(*(rank["kept"] for rank in ranks), strict=True):
        rows = {tuple(row) for share in shares for row in share}
        assert len(rows) == 8, "a row is trained twice, or one is lost"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_metrics_do_not_depend_on_the_number_of_processes(world_size, results):
    [single], _ = load(results, "two_groups", 1)
    several, _ = load(results, "two_groups", world_size)
    described = ("reward", "pods/kept", "pods/variance", "pods/trained_rows")
    names = [name for name in single["log"][0] if name.startswith(described)]
    assert {"reward", "pods/variance_gain", "pods/kept_token_fraction"} <= set(names)
    for expected, found in zip(single["log"][:-1], several[0]["log"][:-1], strict=True):
        assert {n: found[n] for n in names} == pytest.approx({n: expected[n] for n in names}, abs=1e-6)


def exchanged(case: str, world_size: int, results) -> list[list[dict]]:
    """What the processes sent of the kept rows, for each generation batch."""
    ranks, _ = load(results, case, world_size)
    return list(zip(*(rank["exchanged"] for rank in ranks), strict=True))


def test_no_rows_are_exchanged_where_no_group_straddles(results):
    assert exchanged("two_groups", 2, results) == []


@pytest.mark.parametrize(("case", "world_size"), [("one_group", 2), ("one_group", 4), ("one_large_group", 2)])
def test_no_more_than_the_kept_rows_is_exchanged_however_many_are_sampled(case, world_size, results):
    batches = exchanged(case, world_size, results)
    assert 0 < len(batches) <= 4  # of four; by chance, each process may hold its share
    for sent in batches:
        assert sum(share["rows"] for share in sent) == 8
        largest = max(share["largest row"] for share in sent)
        assert sum(share["bytes"] for share in sent) <= 8 * largest + 100 * world_size


@pytest.mark.parametrize("world_size", [1, *WORLD_SIZES])
def test_completions_table_of_several_processes_is_aligned(world_size, results):
    folder = results(world_size) / "random_rule" / "completions"
    table = pd.read_parquet(sorted(folder.glob("*.parquet"))[-1])
    assert len(table) == 16
    assert table["kept"].sum() == 8
    assert (table["label"] == table["completion"]).all()
    assert (table["advantage"].notna() == table["kept"]).all()


@pytest.mark.parametrize(("grpo", "pods"), [("grpo", "n_equal_m"), ("grpo_lora", "n_equal_m_lora")])
def test_n_equal_m_is_grpo_bit_for_bit_on_two_processes(grpo, pods, results):
    _, expected = load(results, grpo, 2)
    _, found = load(results, pods, 2)
    for name in expected:
        assert torch.equal(expected[name], found[name]), name


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_no_thread_of_gloo_is_left_to_abort_a_process_at_its_end(world_size, results):
    for rank in range(world_size):
        threads = json.loads((results(world_size) / f"threads.{world_size}.{rank}.json").read_text())
        assert [name for name in threads["training"] if "gloo" in name]
        assert not [name for name in threads["ended"] if "gloo" in name]
