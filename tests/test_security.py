"""A recipe runs the code that it names and nothing else, and asks for the network only for a name of the hub."""

import os

import commands
import pytest

from trl_pods.checks.errors import SetupError
from trl_pods.cli.arguments import RecipeParser

# Run in front of the command line: whoever asks for an address of the network is told of, and gets none.
GUARD = """\
import socket, sys

def no_network(*args, **kwargs):
    print("ASKED FOR THE NETWORK:", args, file=sys.stderr, flush=True)
    raise socket.gaierror("there is no network here")

def connect(self, address):
    if self.family == socket.AF_UNIX:
        return plainly(self, address)
    no_network(address)

plainly, socket.socket.connect, socket.getaddrinfo = socket.socket.connect, connect, no_network
from trl_pods.cli.main import main
main(sys.argv[1:])
"""


def run_without_network(folder, *arguments):
    (folder / "guarded.py").write_text(GUARD)
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return commands.run_python("guarded.py", *arguments, cwd=folder, env=environment)


@pytest.mark.parametrize(
    "value",
    ["!!python/object/apply:os.mkdir [was_here]", "!!python/name:os.mkdir", "!<tag:yaml.org,2002:python/module:os> x"],
)
@pytest.mark.parametrize("name", ["task_kwargs", "learning_rate", "output_dir"])
def test_yaml_makes_no_objects(name, value, in_tmp):
    recipe = commands.write_recipe(in_tmp, f"{name}: {value}\n")
    with pytest.raises((SetupError, ValueError, SystemExit)):
        RecipeParser().parse(["--config", str(recipe), "--model_name_or_path", "x", "--dataset_name", "x"])
    assert not (in_tmp / "was_here").exists()


def test_training_from_local_files_does_not_ask_for_the_network(model_path, tmp_path):
    done = run_without_network(tmp_path, "grpo", "--config", commands.recipe(tmp_path, model_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "ASKED FOR" not in done.stderr


@pytest.mark.long
def test_a_name_of_the_hub_does(tmp_path, model_path):
    done = run_without_network(
        tmp_path, "grpo", "--config", commands.recipe(tmp_path, model_path), "--model_name_or_path", "some/model"
    )
    assert done.returncode != 0
    assert "ASKED FOR" in done.stderr


def test_a_module_beside_the_recipe_is_not_imported_unless_it_is_named(model_path, tmp_path):
    path = commands.recipe(tmp_path, model_path)
    for name in ("strategies.py", "sitecustom.py", "rewards.py", "trl_pods_plugin.py", "conftest.py"):
        (tmp_path / name).write_text(f"open('imported_{name}', 'w')\n")
    done = commands.run("grpo", "--config", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(tmp_path.glob("imported_*"))


def test_a_checkpoint_holds_nothing_of_ours_that_is_unpickled(model_path, tmp_path):
    saving = ("--save_strategy", "steps", "--save_steps", "1")
    done = commands.run("grpo", "--config", commands.recipe(tmp_path, model_path), *saving, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    files = [path.name for path in (tmp_path / "out" / "checkpoint-1").iterdir() if path.name.startswith("pods")]
    assert files == ["pods_state_0.safetensors"]
