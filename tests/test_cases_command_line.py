"""Section A11 of the list of what users run into: the command line and YAML."""

import json
from pathlib import Path

import pytest
import yaml
from commands import recipe, run_python, write_recipe
from trl import GRPOConfig

from trl_pods import PODSGRPOConfig
from trl_pods.checks.errors import SetupError
from trl_pods.cli import train as grpo
from trl_pods.cli.arguments import RecipeParser


def parse(path, *arguments):
    return RecipeParser("trl-pods grpo").parse(["--config", str(path), *arguments])


@pytest.mark.parametrize("written", ["no", '"no"', "No", "off"])
def test_case_80_no_is_a_word_where_a_word_is_wanted(tmp_path, written):
    path = write_recipe(tmp_path, f"use_cpu: yes\nbf16: no\neval_strategy: {written}\nsave_strategy: {written}\n")
    if written == "off":
        with pytest.raises(SetupError, match=r"recipe.yaml:3: `eval_strategy` is 'off', but it must be one of \['no'"):
            parse(path)
        return
    training = parse(path).training
    assert training.eval_strategy == training.save_strategy == "no"
    assert training.use_cpu is True
    assert training.bf16 is False


@pytest.mark.parametrize(("written", "value"), [("on", True), ("off", False), ("Yes", True), ("False", False)])
def test_case_80_a_flag_may_be_written_as_yaml_writes_it(written, value, tmp_path):
    assert parse(write_recipe(tmp_path, f"use_cpu: on\nbf16: {written}\n")).training.bf16 is value
    with pytest.raises(SetupError, match=r"recipe.yaml:1: `bf16` is 'maybe', but it must be true or false"):
        parse(write_recipe(tmp_path, "bf16: maybe\n"))


def test_case_81_one_value_does_where_a_list_is_wanted(tmp_path):
    path = write_recipe(tmp_path, "use_cpu: true\nreward_funcs: my.mod.f\nreward_weights: 0.5\n")
    parsed = parse(path)
    assert parsed.script.reward_funcs == ["my.mod.f"]
    assert parsed.training.reward_weights == [0.5]


def test_case_81_numbers_with_exponents_are_numbers_everywhere(tmp_path):
    text = "use_cpu: true\nlearning_rate: 1e-6\nreward_weights: [1e-1, 1.0]\nlr_scheduler_kwargs: {min_lr: 1e-7}\n"
    training = parse(write_recipe(tmp_path, text)).training
    assert training.learning_rate == 1e-6
    assert training.reward_weights == [0.1, 1.0]
    assert training.lr_scheduler_kwargs == {"min_lr": 1e-7}


def test_case_82_an_unknown_key_is_named_with_its_line_and_the_nearest(tmp_path):
    path = write_recipe(tmp_path, "use_cpu: true\nlerning_rate: 1.0e-6\nnum_proceses: 2\nzzzzzz: 1\n")
    with pytest.raises(SetupError) as stop:
        parse(path)
    assert str(stop.value).splitlines() == [
        f"{path}:2: There is no option `lerning_rate`. Did you mean `learning_rate`?",
        f"{path}:3: There is no option `num_proceses`. Did you mean `num_processes`?",
        f"{path}:4: There is no option `zzzzzz`. `trl-pods grpo --help` lists all.",
    ]


def test_case_82_hyphens_do_as_on_the_command_line(tmp_path):
    assert parse(write_recipe(tmp_path, "use-cpu: true\nlearning-rate: 2e-6\n")).training.learning_rate == 2e-6


@pytest.mark.long
def test_case_82_the_module_run_by_itself_is_as_strict(in_tmp, model_path):
    path = recipe(in_tmp, model_path, lerning_rate=1.0)
    done = run_python("-m", "trl_pods.cli.train", "--config", path, cwd=in_tmp)
    assert done.returncode == 2
    assert "Did you mean `learning_rate`?" in done.stderr
    assert "Traceback" not in done.stderr


def test_case_86_rewards_from_the_current_folder_and_data_from_files(in_tmp, model_path):
    path = recipe(in_tmp, model_path, dataset_name=None)
    values = yaml.safe_load(Path(path).read_text()) | {"datasets": [{"path": "json", "data_files": "data/train.jsonl"}]}
    del values["dataset_name"]
    trainer = grpo.run(["--config", str(write_recipe(in_tmp, yaml.safe_dump(values)))])
    assert trainer.reward_func_names == ["distinct"]
    assert len(trainer.train_dataset) == len((in_tmp / "data/train.jsonl").read_text().splitlines())
    assert trainer.state.global_step == 2


def test_case_87_no_gpu_says_what_to_set(tmp_path):
    with pytest.raises(ValueError, match="Your setup doesn't support bf16/gpu"):
        GRPOConfig(str(tmp_path))  # what TRL says; where it no longer does, this test ends
    with pytest.raises(ValueError, match=r"`bf16` is on by default.*Set `use_cpu` to true"):
        PODSGRPOConfig(str(tmp_path))
    with pytest.raises(SetupError, match=r"recipe.yaml:2: `bf16` is on.*Set `use_cpu` to true"):
        parse(write_recipe(tmp_path, "output_dir: x\nbf16: true\n"))


def test_case_87_a_cpu_recipe_trains_where_there_is_no_gpu(in_tmp, model_path):
    assert grpo.run(["--config", recipe(in_tmp, model_path)]).args.device.type == "cpu"
    assert json.loads((in_tmp / "out/trainer_state.json").read_text())["global_step"] == 2


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("max_completion_length: null", None),
        ("dtype: null", None),
        ("report_to: [tensorboard, wandb]", ["tensorboard", "wandb"]),
        ("include_for_metrics: []", []),
        ("label_names: [x, -y]", ["x", "-y"]),
        ("liger_kernel_config: {rope: true}", {"rope": True}),
        ("run_name: Yes", "Yes"),
    ],
)
def test_case_81_values_that_the_command_line_cannot_say_are_those_of_yaml(tmp_path, written, value):
    parsed = parse(write_recipe(tmp_path, f"use_cpu: true\n{written}\n"))
    name = written.split(":")[0]
    assert getattr(parsed.model if name == "dtype" else parsed.training, name) == value


@pytest.mark.parametrize("written", ["max_steps: null", "output_dir: {a: b}", "reward_funcs: [{a: 1}]"])
def test_case_81_a_value_that_the_option_does_not_take_is_named_with_its_line(tmp_path, written):
    with pytest.raises(SetupError, match=rf"recipe.yaml:2: `{written.split(':')[0]}` is .* not what the option takes"):
        parse(write_recipe(tmp_path, f"use_cpu: true\n{written}\n"))


DICTIONARIES = [*PODSGRPOConfig._VALID_DICT_FIELDS, "liger_kernel_config", "task_kwargs"]


@pytest.mark.parametrize("name", [*DICTIONARIES, "datasets"])
def test_case_97_none_is_none_for_options_that_take_dictionaries(name, tmp_path):
    parsed, null = (parse(write_recipe(tmp_path, f"use_cpu: true\n{name}: {none}\n")) for none in ("None", "null"))
    assert [getattr(part, name) for part in parsed if hasattr(part, name)] == [
        getattr(part, name) for part in null if hasattr(part, name)
    ]


@pytest.mark.parametrize("name", [*DICTIONARIES, "datasets"])
@pytest.mark.parametrize("text", ["some", '"{a: 1}"', "[1]"])
def test_case_97_other_text_for_a_dictionary_is_named_with_its_line(name, text, tmp_path):
    with pytest.raises(SetupError, match=rf"recipe.yaml:2: `{name}` is .*(must be|is not what the option takes)"):
        parse(write_recipe(tmp_path, f"use_cpu: true\n{name}: {text}\n"))
