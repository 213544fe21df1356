"""What README and docs/results.md say of the benchmark of cost, held against its trainings."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_cost, cost_tables
from trl_pods.lab.outcome import compare

ROOT = Path(__file__).parents[1]
SUMMARY = json.loads((bench_cost.FOLDER / "summary.json").read_text())
REGIMES = {regime.name: regime for regime in bench_cost.REGIMES}


def said(path: str) -> str:
    return (ROOT / path).read_text()


def test_the_tables_are_those_of_the_summary():
    regimes = SUMMARY["regimes"]
    assert cost_tables.results_table(regimes) in said("docs/results.md")
    assert cost_tables.full_table(regimes) in said("benchmarks/README.md")
    assert cost_tables.price_table() in said("docs/results.md")


def test_the_sentences_are_those_of_the_summary():
    for path in ("README.md", "docs/results.md"):
        assert cost_tables.headline(SUMMARY["regimes"]) in said(path)
    assert cost_tables.published_cost_ratio() == SUMMARY["l40s_cost_ratio"]
    assert f"c = {SUMMARY['l40s_cost_ratio']:g}." in said("docs/results.md")


def test_every_regime_whose_trainings_are_complete_is_reported():
    complete = {name for name, regime in REGIMES.items() if next(bench_cost.missing(regime), None) is None}
    assert SUMMARY["regimes"].keys() == complete


@pytest.mark.parametrize("name", SUMMARY["regimes"])
def test_the_summary_is_that_of_the_trainings(name):
    curves, rates = cost_tables.final_curves(REGIMES[name])
    assert SUMMARY["regimes"][name]["learning_rates"] == rates
    outcome = compare(curves, cost_tables.baselines(REGIMES[name]), 10.0)
    for method, speedups in SUMMARY["regimes"][name]["speedup"].items():
        found = (outcome.ratios[method], *outcome.intervals[method])
        assert speedups["10"] == [cost_tables.finite(value) for value in found]
