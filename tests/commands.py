"""Recipes for the tiny model, and running the command line and workers in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import tiny
import yaml

ROOT_RECIPES = Path(__file__).parents[1] / "recipes"


def run(*arguments, cwd=None, env=None, timeout=900):
    """Run `trl-pods` with the arguments, in a process of its own."""
    command = [sys.executable, "-m", "trl_pods.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout)


def run_python(*arguments, cwd=None, env=None, timeout=900):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=timeout)


def torchrun(worker: Path, *arguments, num_processes=2, timeout=900) -> None:
    """Run a script under torchrun, which finds the modules that the tests find, and check that it succeeds."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", num_processes]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = run_python(*launcher, worker, *arguments, env={**os.environ, "PYTHONPATH": path}, timeout=timeout)
    assert done.returncode == 0, done.stderr[-4000:]


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
