"""What the README and the docs say, held against the code."""

import ast
import re
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import commands
import pytest
import tiny
import versions
from trl import GRPOConfig

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer, __version__, list_strategies
from trl_pods.strategies import registry

TESTS = Path(__file__).parent
ROOT = TESTS.parent
README = (ROOT / "README.md").read_text()
DOCS = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.md")}


def table_under(heading: str, text: str = README) -> dict[str, tuple[str, ...]]:
    """First cell of each row of the first table under a heading, and the other cells."""
    section = text.split(f"# {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): tuple(cells[1:]) for cells in rows}


def test_the_tables_of_strategies_are_what_the_command_lists():
    assert table_under("Strategies") == list_strategies()
    assert table_under("Strategies", DOCS["strategies"]).keys() == list_strategies().keys()


def test_the_table_of_fields_is_complete():
    added = {f.name for f in fields(PODSGRPOConfig)} - {f.name for f in fields(GRPOConfig)}
    assert set(table_under("Configuration")) == added | {"num_generations"}


def table_of_support() -> dict[str, tuple[str, set[str]]]:
    """Feature -> the versions of TRL and the files of tests, of the rows that are tested."""
    rows = [line.strip("| ").split(" | ") for line in DOCS["compatibility"].split("## Support\n")[1].splitlines()]
    rows = [cells for cells in rows if len(cells) == 3 and cells[0] not in ("feature", "---")]
    return {
        feature: (trl, set(re.findall("`(.*?)`", tests))) for feature, trl, tests in rows if "untested" not in tests
    }


def marked_tests() -> dict[str, list[tuple[str, bool]]]:
    """Feature -> for each test marked with it, its file, and whether TRL 1.10 skips it."""
    marked = defaultdict(list)
    for path in TESTS.rglob("test_*.py"):
        functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        for function in functions:
            decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
            skipped = any(decorator.split("(")[0] in vars(versions) for decorator in decorators)
            for decorator in decorators:
                if feature := re.fullmatch(r"pytest\.mark\.feature\('(.*)'\)", decorator):
                    marked[feature[1]].append((str(path.relative_to(TESTS)), skipped))
    return marked


def test_the_table_of_support_is_what_the_tests_are_marked_with():
    marked = {feature: {file for file, _ in tests} for feature, tests in marked_tests().items()}
    assert {feature: files for feature, (_, files) in table_of_support().items()} == marked


def test_the_table_of_support_names_the_versions_that_the_tests_run_on():
    """The oldest one only where `make test-oldest` runs every test of the feature, and TRL 1.10 skips none of them."""
    makefile = (ROOT / "Makefile").read_text()
    oldest = re.search(r"OLDEST := ((?:.*\\\n)*.*)", makefile)[1].split()
    newest = {
        re.search(r"^trl==(.*)$", (ROOT / name).read_text(), re.MULTILINE)[1]
        for name in ("constraints.txt", "constraints-vllm.txt")
    }
    assert "trl==1.10.0" in makefile and newest == {"1.16.0"}
    on_oldest = {f"test_{name}.py" for name in oldest}
    assert {feature: trl for feature, (trl, _) in table_of_support().items()} == {
        feature: "1.10.0, 1.16.0" if all(file in on_oldest and not skipped for file, skipped in tests) else "1.16.0"
        for feature, tests in marked_tests().items()
    }


def test_every_module_is_on_the_map_and_no_other():
    package = ROOT / "trl_pods"
    files = {str(path.relative_to(package)) for path in package.rglob("*.py") if path.name != "__init__.py"}
    shims = {"trainer.py", "quickstart.py", "start_models.py", "scripts/grpo.py"}
    assert set(table_under("Rooms", DOCS["architecture"])) == files - shims


PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "recipes/README.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    TESTS / "cases.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_its_heading(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" not in link:
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not heading or heading in anchors(target), link


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page):
    folders = "benchmarks|docs|recipes|results|tests|trl_pods"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text())
    assert [path for path in named if not ((ROOT / path).exists() or (page.parent / path).exists())] == []


def test_commands_and_make_targets_that_are_shown_exist():
    shown = "\n".join(re.findall(r"```bash\n(.*?)```", "\n".join(page.read_text() for page in PAGES), re.DOTALL))
    help_text, makefile = commands.run("--help").stdout, (ROOT / "Makefile").read_text()
    for command in set(re.findall(r"^trl-pods (\w+)", shown, re.MULTILINE)):
        assert re.search(rf"^ +{command} ", help_text, re.MULTILINE), command
    for target in set(re.findall(r"^make ([\w-]+)", shown, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_figure_shows_what_the_strategy_keeps_today(tmp_path):
    done = commands.run_python(ROOT / "docs" / "make_figure.py", tmp_path / "figure.svg", timeout=900)
    assert done.returncode == 0, done.stderr
    drawn, committed = (
        re.findall(r">([^<>\n]+)</text>", path.read_text())
        for path in (tmp_path / "figure.svg", ROOT / "docs" / "how_it_works.svg")
    )
    assert "select" in drawn
    assert drawn == committed


def test_every_metric_that_is_logged_is_in_the_docs(model_path, tmp_path):
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    trainer.train()
    logged = {name for name in trainer.state.log_history[0] if name.startswith("pods/")}
    named = table_under("Metrics", DOCS["metrics"]).keys() - {"pods/train_seconds"}
    assert {re.sub("time/.*", "time/<phase>", name) for name in logged} == named


def test_the_changelog_begins_with_this_version_or_what_is_unreleased():
    newest = re.search(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest in ("Unreleased", __version__)


def test_the_strategy_in_the_docs_runs_as_written_and_trains(monkeypatch, model_path, tmp_path):
    monkeypatch.setattr(registry, "_STRATEGIES", dict(registry._built_in()))
    code = re.search(r"```python\n(import torch\n.*?)```", DOCS["strategies"], re.DOTALL)[1]
    exec(code, {"__name__": "readme"})
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8, down_sampling="near_median"))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    trainer.train()
    assert trainer.state.log_history[0]["pods/variance_gain"] < 1  # it keeps the middle


def test_the_example_in_the_readme_trains_with_another_model_and_other_data(model_path, tmp_path):
    code = re.search(r"```python\n(from datasets.*?)```", README, re.DOTALL)[1]
    small = "max_steps=1, logging_steps=1, max_completion_length=6, use_cpu=True, bf16=False, report_to='none'"
    for line, offline in {
        'load_dataset("trl-lib/DeepMath-103K", split="train")': "data",
        '"Qwen/Qwen2.5-0.5B-Instruct"': repr(model_path),
        '"Qwen2.5-0.5B-PODS"': repr(str(tmp_path)),
        "per_device_train_batch_size=16,": f"per_device_train_batch_size=16, {small},",
    }.items():
        assert code.count(line) == 1
        code = code.replace(line, offline)
    data = tiny.make_dataset(conversational=True)
    names = {"data": data.add_column("solution", ["$1$"] * len(data))}
    exec(code, names)
    assert names["trainer"].state.log_history[0]["pods/kept_token_fraction"] < 0.5
