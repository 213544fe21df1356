"""The CPU recipes train for real, from the command line: the reward rises in one process and in two."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trl_pods.data import load_task

pytestmark = pytest.mark.long

RECIPES = Path(__file__).parents[1] / "recipes"
TASKS = sorted(path.name[len("cpu_") : -len("_pods.yaml")] for path in RECIPES.glob("cpu_*_pods.yaml"))


def recipe(task: str) -> Path:
    return RECIPES / f"cpu_{task}_pods.yaml"


def start(arguments: list, folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen) -> str:
    try:
        output, _ = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its workers
        output, _ = process.communicate()
        pytest.fail(f"It did not end:\n{output}")
    assert process.returncode == 0, output
    return output


def rewards(folder: Path) -> list[float]:
    """Mean reward over all rollouts, step by step."""
    log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [line["reward"] for line in log if "reward" in line]


def rise(folder: Path) -> float:
    steps = rewards(folder)
    return sum(steps[-10:]) / 10 - sum(steps[:5]) / 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cpu_recipes")


@pytest.fixture(scope="module")
def outputs(folder) -> dict[str, str]:
    """What `trl-pods grpo` prints for each recipe, run side by side; it makes the initial checkpoints."""
    running = {
        task: start(["trl_pods.cli.main", "grpo", "--config", recipe(task), "--max_steps", 50], folder)
        for task in TASKS
    }
    return {task: finish(process) for task, process in running.items()}


@pytest.mark.parametrize("task", TASKS)
def test_the_reward_rises(task, outputs, folder):
    assert "8 prompts, 256 rollouts sampled (32 per prompt), 64 rows trained (8 per prompt)" in outputs[task]
    assert re.search(r"training: 100%.*50/50", outputs[task])
    assert "Warning" not in outputs[task]
    trained = folder / "runs" / f"cpu_{task}" / "pods"
    assert len(rewards(trained)) == 50
    assert rewards(trained)[0] < 0.6
    assert rise(trained) > 0.1


@pytest.mark.usefixtures("outputs")
@pytest.mark.parametrize("task", TASKS)
def test_the_reward_rises_on_two_processes(task, folder):
    trained = folder / "runs" / f"cpu_{task}" / "two"
    launch = ["torch.distributed.run", "--standalone", "--nproc_per_node", 2, "-m", "trl_pods.cli.train"]
    output = finish(start([*launch, "--config", recipe(task), "--max_steps", 25, "--output_dir", trained], folder))
    assert "16 prompts, 512 rollouts sampled (32 per prompt), 128 rows trained (8 per prompt)" in output
    assert rise(trained) > 0.1


@pytest.mark.parametrize("task", TASKS)
def test_answers_fit_the_completion_length(task):
    values = yaml.safe_load(recipe(task).read_text())
    data = load_task(values["dataset_name"], values["task_kwargs"])
    longest = max(len(json.loads(entry)["answer"]) for split in data.values() for entry in split["entry"])
    assert longest + 1 < values["max_completion_length"]  # the end, and one to spare, so that too long is seen
    assert len(data["train"]) == values["task_kwargs"]["size"]
