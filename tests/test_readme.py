"""What the README says, held against the code."""

import re
from dataclasses import fields
from pathlib import Path

import torch
from trl import GRPOConfig

from trl_pods import PODSGRPOConfig, list_strategies, registry

README = (Path(__file__).parents[1] / "README.md").read_text()


def table_under(heading: str) -> dict[str, str]:
    """First and last cell of each row of the first table under a heading."""
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[-1] for cells in rows}


def test_the_table_of_rules_is_what_the_command_lists():
    assert table_under("Rules") == list_strategies()


def test_the_table_of_fields_is_complete():
    added = {f.name for f in fields(PODSGRPOConfig)} - {f.name for f in fields(GRPOConfig)}
    assert set(table_under("What the arguments mean")) == added | {"num_generations"}


def test_the_strategy_in_the_readme_is_right(monkeypatch):
    monkeypatch.setattr(registry, "_STRATEGIES", dict(registry._built_in()))
    code = re.search(r"```python\n(import torch\n.*?)```", README, re.DOTALL)[1]
    exec(code, {"__name__": "readme"})
    rule = registry.get_strategy("best_and_worst")
    for num_kept in (2, 3, 4, 6):
        kept = rule(torch.tensor([[5.0, 0.0, 4.0, 1.0, 3.0, 2.0]]), num_kept)
        assert len(set(kept[0].tolist())) == num_kept


def test_every_module_is_on_the_map():
    package = Path(__file__).parents[1] / "trl_pods"
    modules = {str(path.relative_to(package.parent)) for path in package.rglob("*.py") if path.name != "__init__.py"}
    assert set(re.findall(r"^(trl_pods/\S+\.py) ", README, re.MULTILINE)) == modules
