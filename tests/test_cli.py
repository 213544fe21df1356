"""The command line, run as a person runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import yaml

from trl_pods import cli, list_strategies
from trl_pods.scripts import grpo

ROOT = Path(__file__).parents[1]


def run(*arguments, cwd=None):
    command = [sys.executable, "-m", "trl_pods.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=170)


@pytest.mark.parametrize("arguments", [["--help"], ["strategies", "--help"], ["quickstart", "--help"], ["--version"]])
def test_help_does_not_wait_for_torch(arguments):
    code = (
        "import sys\nfrom trl_pods.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "trl-pods" in done.stdout


def test_strategies_are_listed_with_what_they_keep(capsys):
    cli.main(["strategies"])
    printed = capsys.readouterr().out
    for name in list_strategies():
        assert name in printed


@pytest.mark.parametrize("arguments", [[], ["no_such_command"], ["strategies", "--what"]])
def test_a_wrong_command_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: trl-pods" in capsys.readouterr().err


def recipe(tmp_path, model_path, **overrides) -> str:
    """A recipe that trains the tiny model on local data with a reward from a module in the current folder."""
    (tmp_path / "data").mkdir(exist_ok=True)
    tiny.make_dataset().to_json(tmp_path / "data" / "train.jsonl")
    (tmp_path / "my_rewards.py").write_text(
        "def distinct(completions, **kwargs):\n    return [float(len(set(c))) for c in completions]\n"
    )
    values = tiny.default_arguments(tmp_path / "out", num_rollouts=8)
    values |= {
        "model_name_or_path": model_path,
        "dataset_name": str(tmp_path / "data"),
        "reward_funcs": ["my_rewards.distinct"],
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values | overrides))
    return str(path)


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_recipe_trains_and_saves_model_and_log(in_tmp, model_path):
    trainer = grpo.run(["--config", recipe(in_tmp, model_path), "--max_steps", "3", "--down_sampling", "max_reward"])
    assert trainer.state.global_step == 3
    assert trainer.args.down_sampling == "max_reward"
    assert (in_tmp / "out" / "model.safetensors").exists()
    log = json.loads((in_tmp / "out" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in log if "reward" in entry] == [1, 2, 3]


def test_progress_says_phase_step_reward_and_time_left(in_tmp, model_path):
    done = run("grpo", "--config", recipe(in_tmp, model_path), cwd=in_tmp)
    assert done.returncode == 0, done.stderr
    assert re.search(r"training 1/2 \| updating \| reward \d\.\d+ \| kept 4/8 \| \d+ s, \d+ s left", done.stderr)
    assert re.search(r"training 2/2 .* 0 s left", done.stderr)
    assert "Each generation batch: 2 prompts, 16 rollouts sampled" in done.stderr
    assert "Saved the model and the log" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"reward_funcs": ["no_such_reward"]}, "no reward function 'no_such_reward'"),
        ({"reward_funcs": ["my_rewards.missing"]}, "'my_rewards.missing' cannot be imported"),
        ({"setup_func": "nowhere.prepare"}, "'nowhere.prepare' cannot be imported"),
        ({"model_name_or_path": None}, "Set `model_name_or_path`"),
        ({"dataset_name": None}, "Set `dataset_name` or `datasets`"),
        ({"lerning_rate": 1.0}, "lerning_rate"),
        ({"down_sampling": "max_varience"}, "max_varience"),
    ],
)
def test_a_wrong_recipe_is_refused(in_tmp, model_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        grpo.run(["--config", recipe(in_tmp, model_path, **overrides)])
    assert not (in_tmp / "out").exists()
