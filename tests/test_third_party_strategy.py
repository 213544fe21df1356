"""A strategy that another package provides: found, listed, and used by name in real training steps."""

import os
import textwrap
from pathlib import Path

import commands
import pytest

RULE = '''\
import torch


def every_other(rewards, num_kept, *, first=0):
    """Keep every other rollout of the scored ones."""
    keys = torch.where(rewards.isfinite(), (torch.arange(rewards.size(1)) + first) % 2, 2)
    return keys.argsort(dim=1, stable=True)[:, :num_kept]
'''

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "their-rules"
version = "1.2"

[project.entry-points."trl_pods.strategies"]
every_other = "their_rules:every_other"
broken = "their_rules:no_such_function"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """Environment variables with which the package, installed by pip into a folder of its own, is found."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "their_rules.py").write_text(RULE)
    done = commands.run_python("-m", "pip", "install", "--quiet", "--no-deps", "--target", target, source)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(target), "COLUMNS": "160"}


def test_it_is_listed_without_being_imported(environment):
    done = commands.run("strategies", env=environment)
    assert done.returncode == 0, done.stderr
    for name in ("every_other", "broken"):
        assert name in done.stdout
    assert "the package 'their-rules'" in done.stdout


def test_it_keeps_the_contract_and_trains_by_name(environment, model_path, tmp_path):
    code = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import tiny
        from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
        from trl_pods.testing import check_strategy

        check_strategy("every_other", equivariant=False)
        arguments = tiny.default_arguments(
            {str(tmp_path)!r}, num_rollouts=8, down_sampling="every_other", down_sampling_kwargs={{"first": 1}},
            log_completions=True, num_completions_to_print=0,
        )
        trainer = PODSGRPOTrainer(
            {model_path!r}, tiny.distinct_characters, PODSGRPOConfig(**arguments), tiny.make_dataset()
        )
        trainer.train()
        assert list(trainer._logs["extra"]["kept"]) == [False, True] * 8
        """
    )
    done = commands.run_python("-c", code, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_it_trains_from_a_recipe(environment, model_path, tmp_path):
    rule = {"down_sampling": "every_other", "down_sampling_kwargs": {"first": 1}}
    recipe = commands.recipe(tmp_path, model_path, **rule)
    done = commands.run("grpo", "--config", recipe, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_broken_one_names_its_package(environment, tmp_path):
    arguments = f"{str(tmp_path)!r}, use_cpu=True, bf16=False, down_sampling='broken'"
    code = f"from trl_pods import PODSGRPOConfig; PODSGRPOConfig({arguments})"
    done = commands.run_python("-c", code, env=environment)
    assert "'broken' of the package 'their-rules' cannot be loaded from 'their_rules:no_such_function'" in done.stderr
