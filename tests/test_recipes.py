"""Every recipe: parsed strictly, tried as far as that goes without a GPU or the hub, and equal to its twin."""

import json
import re
from pathlib import Path

import pytest
import samples
import yaml
from commands import recipe, run

from trl_pods.cli import train as grpo
from trl_pods.cli.arguments import RecipeParser

RECIPES = Path(__file__).parents[1] / "recipes"
ALL = sorted(path.name for path in RECIPES.glob("*.yaml"))
FOR_GPUS = [name for name in ALL if "gsm8k" in name or "math" in name]
OF_PODS = {"num_rollouts", "down_sampling", "zero_variance", "output_dir"}
COLUMNS = """---
configs:
- config_name: {config}
  data_files: [{{split: train, path: train.jsonl}}, {{split: test, path: test.jsonl}}]
---
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> dict[str, Path]:
    """Folders with rows in the columns in which GSM8K and MATH are published."""
    folders = {}
    for name, rows, config in (("gsm8k", samples.gsm8k_rows(64), "main"), ("math", samples.math_rows(64), "default")):
        folders[name] = tmp_path_factory.mktemp(name)
        (folders[name] / "README.md").write_text(COLUMNS.format(config=config))
        for split in ("train", "test"):
            (folders[name] / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folders


@pytest.mark.long
def test_the_accelerate_config_for_a_cpu_starts_two_processes(in_tmp, model_path):
    config = str(RECIPES / "accelerate" / "two_cpu_processes.yaml")
    path = recipe(in_tmp, model_path, accelerate_config=config, per_device_train_batch_size=4)
    done = run("grpo", "--config", path, "--max_steps", 1, cwd=in_tmp)
    assert done.returncode == 0, done.stderr
    assert "8 rows trained (4 per prompt), 4 rows per micro-batch and process" in done.stderr


def values_of(name: str) -> dict:
    return yaml.safe_load((RECIPES / name).read_text())


@pytest.mark.parametrize("name", ALL)
def test_it_states_purpose_hardware_launch_and_override(name):
    header = (RECIPES / name).read_text().split("\n\n")[0]
    for part in ("# Hardware: ", "# Launch:   ", "# Override: ", f"--config {name.removesuffix('.yaml')}"):
        assert part in header


@pytest.mark.parametrize("name", [name for name in ALL if name.endswith("_pods.yaml")])
def test_its_twin_differs_in_the_keys_of_pods_alone(name):
    pods, grpo = values_of(name), values_of(name.replace("_pods", "_grpo"))
    assert {key for key in pods.keys() | grpo.keys() if pods.get(key) != grpo.get(key)} - {
        "rollout_batch_size"
    } == OF_PODS
    assert grpo["num_rollouts"] == grpo["num_generations"] == pods["num_generations"]
    assert pods["num_rollouts"] > pods["num_generations"]


@pytest.mark.parametrize("name", FOR_GPUS)
def test_a_dry_run_passes_on_a_tiny_model_and_published_columns(name, published, model_path, in_tmp, capsys):
    data = published["gsm8k" if "gsm8k" in name else "math"]
    paths = ["--model_name_or_path", model_path, "--dataset_name", str(data)]
    grpo.run(["--config", str(RECIPES / name), *paths, "--dry_run"])
    words, values = " ".join(capsys.readouterr().out.split()), values_of(name)
    num_processes = 8 if "8gpu" in name else 1
    rows = values["per_device_train_batch_size"] * values["gradient_accumulation_steps"] * num_processes
    num_prompts = rows // values["num_generations"]
    sampled = num_prompts * values["num_rollouts"]
    assert f"processes {num_processes} " in words
    assert f"Each generation batch: {num_prompts} prompts, {sampled} rollouts sampled" in words
    assert f"{rows} rows trained" in words
    assert "64 train, 64 test" in words
    assert "accuracy_reward, format_reward, tag_count_reward" in words
    assert list(in_tmp.iterdir()) == []


@pytest.mark.parametrize("name", FOR_GPUS)
def test_a_dry_run_on_a_machine_without_the_model_says_what_is_missing(name, in_tmp, capsys):
    grpo.run(["--config", str(RECIPES / name), "--dry_run"])
    words = " ".join(capsys.readouterr().out.split())
    assert f"the model {values_of(name)['model_name_or_path']}, which is not on this machine" in words
    assert "Each generation batch: " in words


@pytest.mark.parametrize("name", ALL)
def test_the_table_of_recipes_lists_it(name):
    pair = re.sub("_(pods|grpo)", "_{pods,grpo}", name)
    assert f"`{pair}`" in (RECIPES / "README.md").read_text()


@pytest.mark.parametrize("name", ALL)
def test_it_is_parsed_strictly(name):
    arguments = ["--use_cpu", "true"] if name in FOR_GPUS else []
    parsed = RecipeParser("trl-pods grpo").parse(["--config", str(RECIPES / name), *arguments])
    assert parsed.training.num_rollouts == values_of(name)["num_rollouts"]
    with pytest.raises(ValueError, match="There is no option `--no_such_option`"):
        RecipeParser("trl-pods grpo").parse(["--config", str(RECIPES / name), "--no_such_option", "1"])
