"""The recipes that come with the package, by name."""

import re
import shutil
from pathlib import Path

from ..checks.errors import SetupError, did_you_mean

PACKAGE = Path(__file__).parents[1]


def bundled_recipes() -> dict[str, Path]:
    """The recipes by name: inside an installed package, or beside the package in a checkout of the repository."""
    installed = PACKAGE / "recipes"
    folder = installed if installed.exists() else PACKAGE.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def recipe_path(name: str) -> str:
    """The path of a recipe: `name` itself where there is such a file, else the bundled recipe of this name."""
    path = Path(name)
    return name if path.exists() and not path.is_dir() else str(bundled_recipes().get(name, name))


def describe(path: Path) -> tuple[str, str]:
    """What a recipe is for, and the hardware that it takes, as its first lines say."""
    head = " ".join(line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines()[:8])
    found = re.match(r"(.+?)\s+Hardware:\s+(.+?)\s+Launch:", head)
    assert found, f"{path} does not begin as recipes do"
    return found[1], re.sub(r"\s+", " ", found[2])


def copy_recipe(name: str, file: str | None) -> Path:
    """Write a bundled recipe to a file, or into the current folder, to edit it."""
    recipes = bundled_recipes()
    if name not in recipes:
        raise SetupError(
            f"No recipe {name!r} comes with trl_pods. {did_you_mean(name, recipes, 'See `trl-pods recipes`.')}"
        )
    target = Path(file or f"{name}.yaml")
    if target.exists():
        raise SetupError(f"{str(target)!r} exists. Name another file after {name!r}.")
    try:
        shutil.copyfile(recipes[name], target)
    except OSError as error:
        raise SetupError(f"{str(target)!r} cannot be written: {error.strerror}. Name another file.") from error
    return target
