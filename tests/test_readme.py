"""What the README says, held against the code."""

import re
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import tiny
from trl import GRPOConfig

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer, list_strategies, registry

README = (Path(__file__).parents[1] / "README.md").read_text()


def table_under(heading: str) -> dict[str, tuple[str, ...]]:
    """First cell of each row of the first table under a heading, and the other cells."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): tuple(cells[1:]) for cells in rows}


def test_the_table_of_rules_is_what_the_command_lists():
    assert table_under("Rules") == list_strategies()


def test_the_table_of_fields_is_complete():
    added = {f.name for f in fields(PODSGRPOConfig)} - {f.name for f in fields(GRPOConfig)}
    assert set(table_under("What the arguments mean")) == added | {"num_generations"}


def test_the_table_of_support_is_what_the_tests_are_marked_with():
    folder, marked = Path(__file__).parent, defaultdict(set)
    for path in folder.rglob("test_*.py"):
        for feature in re.findall(r'^@pytest.mark.feature\("(.*)"\)$', path.read_text(), re.MULTILINE):
            marked[feature].add(str(path.relative_to(folder)))
    rows = [line.strip("| ").split(" | ") for line in README.split("## Support\n")[1].split("\n## ")[0].splitlines()]
    table = {cells[0]: cells[1] for cells in rows if len(cells) == 2 and cells[0] not in ("feature", "---")}
    tested = {feature: set(re.findall("`(.*?)`", tests)) for feature, tests in table.items() if "untested" not in tests}
    assert tested == marked
    with_trl_1_10 = re.search(r"OLDEST := ((?:.*\\\n)*.*)", (folder.parent / "Makefile").read_text())[1].split()
    for names in marked.values():
        assert {name for name in names if "vllm" not in name} <= {f"test_{name}.py" for name in with_trl_1_10}


def test_the_strategy_in_the_readme_runs_as_written_and_trains(monkeypatch, model_path, tmp_path):
    monkeypatch.setattr(registry, "_STRATEGIES", dict(registry._built_in()))
    code = re.search(r"```python\n(import torch\n.*?)```", README, re.DOTALL)[1]
    exec(code, {"__name__": "readme"})
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8, down_sampling="near_median"))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    trainer.train()
    assert trainer.state.log_history[0]["pods/variance_gain"] < 1  # it keeps the middle


def test_every_module_is_on_the_map():
    package = Path(__file__).parents[1] / "trl_pods"
    modules = {str(path.relative_to(package.parent)) for path in package.rglob("*.py") if path.name != "__init__.py"}
    assert set(re.findall(r"^(trl_pods/\S+\.py) ", README, re.MULTILINE)) == modules
