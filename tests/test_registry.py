"""Strategies by name: registering, finding and listing them."""

import subprocess
import sys
import textwrap

import pytest

from trl_pods import get_strategy, list_strategies, register_strategy, strategies
from trl_pods.strategies import registry


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch):
    monkeypatch.setattr(registry, "_STRATEGIES", dict(registry._built_in()))


def first(rewards, num_kept):
    """Keep the first rollouts. More words."""


def test_a_registered_strategy_is_found_and_listed():
    assert register_strategy("first")(first) is first
    assert get_strategy("first") is first
    assert list_strategies()["first"] == ("Keep the first rollouts. More words.", "test_registry")


def test_the_paper_s_rules_are_built_in():
    assert {"max_variance", "max_reward", "random", "percentile"} <= set(list_strategies())
    assert get_strategy("max_variance") is strategies.max_variance
    assert list(list_strategies()) == sorted(list_strategies())


def test_a_taken_name_is_refused_and_both_owners_named():
    with pytest.raises(ValueError, match=r"'random'.*trl_pods\.strategies\.builtin\.random.*test_registry\.first"):
        register_strategy("random")(first)


def test_the_name_of_a_built_in_rule_is_taken_from_the_start():
    """Also where nothing has been looked up before, so that the built-in rules are not imported yet."""
    code = (
        "from trl_pods import get_strategy, register_strategy\n"
        "try:\n    register_strategy('max_reward')(lambda rewards, num_kept: None)\n"
        "except ValueError as error:\n    assert 'already registered' in str(error)\nelse:\n    raise SystemExit(1)\n"
        "get_strategy('random')"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_functions_made_by_one_function_are_not_the_same():
    def make(number):
        return lambda rewards, num_kept: number

    def make_named(number):
        def rule(rewards, num_kept):
            return number

        return rule

    for factory, name in [(make, "a"), (make_named, "b")]:
        register_strategy(name)(factory(1))
        with pytest.raises(ValueError, match="already registered"):
            register_strategy(name)(factory(2))


def test_wrong_uses_of_the_decorator_are_refused():
    with pytest.raises(TypeError, match=r"not under <function first.*@register_strategy\('name'\)"):
        register_strategy(first)
    with pytest.raises(TypeError, match="'five' is 5, not a function"):
        register_strategy("five")(5)


def test_the_same_function_may_be_registered_again():
    """As when a notebook cell runs twice."""
    register_strategy("first")(first)
    register_strategy("first")(first)
    assert get_strategy("first") is first


def test_two_lambdas_are_not_the_same_function():
    register_strategy("short")(lambda rewards, num_kept: None)
    with pytest.raises(ValueError, match=r"'short' is already registered"):
        register_strategy("short")(lambda rewards, num_kept: None)


def test_a_function_in_place_of_a_name_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"not by <function first.*`register_strategy`"):
        get_strategy(first)


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(
        ValueError,
        match=r"'max_varience'. Did you mean 'max_variance'\?.*"
        r"'max_reward', 'max_variance', 'percentile', 'random'.*register",
    ):
        get_strategy("max_varience")


def test_a_dotted_path_is_imported_also_from_the_current_folder(tmp_path, monkeypatch):
    assert get_strategy("trl_pods.strategies.max_reward") is strategies.max_reward
    (tmp_path / "my_rules.py").write_text("def rule(rewards, num_kept): ...\nnumber = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert get_strategy("my_rules.rule").__name__ == "rule"
    for path, reason in [
        ("my_rules.missing", "missing"),
        ("no_such_module.rule", "no_such_module"),
        ("my_rules.number", "3"),
    ]:
        with pytest.raises(ValueError, match=rf"{path!r}.*{reason}"):
            get_strategy(path)


def test_a_dotted_path_names_a_function_in_a_package(tmp_path, monkeypatch):
    """Also one that has the name of its module, as in `from .keep import keep`; and what its module lacks is named."""
    package = tmp_path / "strategies_in_a_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .keep import keep\n")
    (package / "keep.py").write_text("def keep(rewards, num_kept): ...\n")
    (package / "broken.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert get_strategy("strategies_in_a_package.keep").__name__ == "keep"
    with pytest.raises(ValueError, match="No module named 'no_such_dependency'"):
        get_strategy("strategies_in_a_package.broken.keep")


def test_entry_points_are_listed_and_loaded_one_at_a_time(tmp_path, monkeypatch):
    (tmp_path / "their_rules.py").write_text("def rule(rewards, num_kept): ...\nnumber = 3\n")
    metadata = tmp_path / "their_rules-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-rules\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        textwrap.dedent(
            """\
            [trl_pods.strategies]
            theirs = their_rules:rule
            broken = their_missing_module:rule
            number = their_rules:number
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert get_strategy("theirs").__name__ == "rule"
    assert list_strategies()["broken"] == ("", "the package 'their-rules'")
    with pytest.raises(ValueError, match=r"'broken' of the package 'their-rules'.*their_missing_module"):
        get_strategy("broken")
    with pytest.raises(ValueError, match=r"'number' of the package 'their-rules'.*is 3, not a function"):
        get_strategy("number")
    other = tmp_path / "other_rules-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-rules\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[trl_pods.strategies]\ntheirs = other_rules:rule\n")
    with pytest.raises(ValueError, match=r"'theirs' is offered by the package '.*' and by the package '.*'"):
        get_strategy("theirs")
