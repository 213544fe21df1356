"""The recipes that come with the package, from a folder without a checkout, and the command line without a command."""

import pytest
from commands import ROOT_RECIPES, run, run_python

from trl_pods.cli.bundled import bundled_recipes, describe


def test_every_recipe_says_its_purpose_and_hardware():
    assert sorted(bundled_recipes()) == sorted(path.stem for path in ROOT_RECIPES.glob("*.yaml"))
    for path in bundled_recipes().values():
        purpose, hardware = describe(path)
        assert purpose.endswith(".") and hardware.endswith(".") and ("CPU" in hardware or "GPU" in hardware)


def test_recipes_are_listed_copied_and_taken_by_name(tmp_path):
    listed = run("recipes", cwd=tmp_path)
    assert listed.returncode == 0 and all(name in listed.stdout for name in bundled_recipes())
    copied = run("recipes", "copy", "quickstart", "mine.yaml", cwd=tmp_path)
    assert copied.returncode == 0, copied.stderr
    assert (tmp_path / "mine.yaml").read_text() == bundled_recipes()["quickstart"].read_text()
    again = run("recipes", "copy", "quickstart", "mine.yaml", cwd=tmp_path)
    assert again.returncode == 2 and "'mine.yaml' exists" in again.stderr
    nowhere = run("recipes", "copy", "quickstart", "no/such/mine.yaml", cwd=tmp_path)
    assert nowhere.returncode == 2 and "cannot be written" in nowhere.stderr and "Traceback" not in nowhere.stderr
    (tmp_path / "qwen2.5-3b_gsm8k_pods").mkdir()  # a folder is no recipe
    tried = run("grpo", "--config", "qwen2.5-3b_gsm8k_pods", "--dry_run", cwd=tmp_path)
    assert tried.returncode == 0 and "64 per prompt" in " ".join(tried.stdout.split()), tried.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("recipes", "copy", "quikstart"), "Did you mean 'quickstart'?"),
        (("grpo", "--config", "quikstart"), "Did you mean 'quickstart'?"),
        (("grppo",), "no command 'grppo'. Did you mean 'grpo'?"),
    ],
)
def test_mistyped_names_are_told_the_nearest(words, message, tmp_path):
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_without_a_command_the_help_is_printed(tmp_path):
    done = run(cwd=tmp_path)
    assert done.returncode == 0 and "recipes" in done.stdout and done.stdout.startswith("usage: trl-pods")
    module = run_python("-m", "trl_pods", cwd=tmp_path)
    assert module.stdout == done.stdout
