"""Recipes for the tiny model, and running the command line as a person runs it."""

import subprocess
import sys
from pathlib import Path

import tiny
import yaml


def run(*arguments, cwd=None, env=None, timeout=170):
    """Run `trl-pods` with the arguments, in a process of its own."""
    command = [sys.executable, "-m", "trl_pods.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout)


def run_python(*arguments, cwd=None, timeout=170):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=timeout
    )


def write_recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def recipe(folder: Path, model_path: str, **overrides) -> str:
    """A recipe that trains the tiny model on local data with a reward from a module in the current folder."""
    (folder / "data").mkdir(exist_ok=True)
    tiny.make_dataset().to_json(folder / "data" / "train.jsonl")
    (folder / "my_rewards.py").write_text(
        "def distinct(completions, **kwargs):\n    return [float(len(set(c))) for c in completions]\n"
    )
    values = tiny.default_arguments(folder / "out", num_rollouts=8)
    values |= {
        "model_name_or_path": model_path,
        "dataset_name": str(folder / "data"),
        "reward_funcs": ["my_rewards.distinct"],
    }
    return str(write_recipe(folder, yaml.safe_dump(values | overrides)))
