"""The recipes' options are known to the older transformers that vLLM needs, too."""

from pathlib import Path

import pytest

from trl_pods.cli.arguments import RecipeParser

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.name)
def test_recipes_are_read(path):
    RecipeParser().parse(["--config", str(path), "--use_cpu", "--bf16", "no"])
