"""The command line, run as a person runs it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import recipe, run, run_python, write_recipe
from datasets import Dataset
from safetensors.torch import load_file

from trl_pods import list_strategies
from trl_pods.checks.errors import SetupError
from trl_pods.cli import main as cli
from trl_pods.cli import train as grpo
from trl_pods.cli.arguments import RecipeParser
from trl_pods.cli.dry_run import _describe_data
from trl_pods.cli.options import remember

ROOT = Path(__file__).parents[1]

SLOW_FIRST_PROCESS = """
import os, sys, time
from trl_pods import PODSGRPOTrainer
from trl_pods.cli import train as grpo

save_state = PODSGRPOTrainer.save_state

def save_late(trainer):
    if os.environ["RANK"] == "0":
        time.sleep(5)
    save_state(trainer)

PODSGRPOTrainer.save_state = save_late
grpo.main(sys.argv[1:], "slow")
"""


@pytest.mark.parametrize("arguments", [["--help"], ["strategies", "--help"], ["quickstart", "--help"], ["--version"]])
def test_help_does_not_wait_for_torch(arguments):
    code = (
        "import sys\nfrom trl_pods.cli.main import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "trl-pods" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "--num_rollouts"),
        (["--lerning_rate", "1"], 2, "Did you mean `--learning_rate`?"),
        (["--config", "recipe.yaml"], 2, "recipe.yaml:2: `max_steps` is 'many', but it must be a whole number"),
        (["--config", "recipe.yaml", "--max_steps", "1", "--optim", "adam"], 2, "invalid choice: 'adam'"),
    ],
)
def test_once_the_options_are_known_help_and_errors_do_not_wait_for_torch(arguments, code, said, in_tmp, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_tmp))
    remember(RecipeParser("trl-pods grpo"))
    write_recipe(in_tmp, "seed: 1\nmax_steps: many\nnum_processes: 1\n")
    script = (
        "import sys\nfrom trl_pods.cli.main import main\n"
        f"try:\n    main({['grpo', *arguments]!r})\nexcept SystemExit as stop:\n    assert stop.code == {code}\n"
        "assert 'torch' not in sys.modules"
    )
    done = run_python("-c", script, cwd=in_tmp)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr


def test_the_help_of_grpo_lists_the_options_of_pods_and_of_trl(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["grpo", "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for option in ("--num_rollouts", "--num_generations", "--dataset_adapter", "--dry_run", "--use_vllm", "--config"):
        assert option in printed
    usage, *groups = re.findall(r"^(usage|[a-z][^\n]*|PODS):", printed, flags=re.MULTILINE)
    assert usage == "usage" and printed.count("\n", 0, printed.index("\nPODS:")) < 10
    assert groups == [
        "options",
        "PODS",
        "data, rewards and clocks",
        "model and LoRA, as in TRL",
        "training, as in TRL's GRPOConfig",
    ]
    named = set(re.findall(r"^  (?:-h, )?--(\w+)", printed, flags=re.MULTILINE))
    assert {action.dest for action in RecipeParser()._actions} <= named, "a group lost an option"
    assert "(default: max_variance)" in " ".join(printed.split())


def test_strategies_are_listed_with_what_they_keep(capsys):
    cli.main(["strategies"])
    printed = capsys.readouterr().out
    for name in list_strategies():
        assert name in printed


@pytest.mark.parametrize("arguments", [["no_such_command"], ["strategies", "--what"]])
def test_a_wrong_command_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: trl-pods" in capsys.readouterr().err


def test_a_recipe_trains_and_saves_model_and_log(in_tmp, model_path):
    trainer = grpo.run(["--config", recipe(in_tmp, model_path), "--max_steps", "3", "--down_sampling", "max_reward"])
    assert trainer.state.global_step == 3
    assert trainer.args.down_sampling == "max_reward"
    assert (in_tmp / "out" / "model.safetensors").exists()
    card = (in_tmp / "out" / "README.md").read_text()
    assert "Not All Rollouts are Useful" in card
    assert "None" not in card
    log = json.loads((in_tmp / "out" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in log if "reward" in entry] == [1, 2, 3]


def test_progress_says_phase_step_reward_and_time_left(in_tmp, model_path):
    done = run("grpo", f"--config={recipe(in_tmp, model_path)}", cwd=in_tmp)
    assert done.returncode == 0, done.stderr
    assert re.search(r"training: 100%.*2/2 \[.*, phase=\w+, kept=4/8, reward=\d\.\d+\]", done.stderr)
    assert "Each generation batch: 2 prompts, 16 rollouts sampled" in done.stderr
    assert "Saved the model and the log" in done.stdout


@pytest.mark.long
def test_equal_numbers_train_as_trl_grpo_does(in_tmp, model_path):
    """The same recipe through TRL's own command: the same parameters, bit for bit."""
    path = recipe(in_tmp, model_path, bf16=False)
    values = yaml.safe_load(Path(path).read_text())
    del values["num_rollouts"]
    write_recipe(in_tmp, yaml.safe_dump(values))
    launched = run_python("-m", "trl.cli.main", "grpo", "--config", path, "--output_dir", "trl", cwd=in_tmp)
    assert launched.returncode == 0, launched.stderr
    done = run(
        "grpo", "--config", path, "--output_dir", "pods", "--num_rollouts", 4, "--zero_variance", "train", cwd=in_tmp
    )
    assert done.returncode == 0, done.stderr
    trained, expected = (load_file(in_tmp / name / "model.safetensors") for name in ("pods", "trl"))
    start = load_file(f"{model_path}/model.safetensors")
    assert trained.keys() == expected.keys()
    assert all(trained[name].equal(expected[name]) for name in expected)
    assert any(not trained[name].equal(start[name]) for name in start)


@pytest.mark.long
def test_several_processes_come_from_the_recipe_or_the_command_line(in_tmp, model_path):
    """Two processes on half the batch each do one generation batch of the same size."""
    path = recipe(in_tmp, model_path, num_processes=3, per_device_train_batch_size=4, main_process_port=0)
    done = run("grpo", "--config", path, "--num_processes=2", cwd=in_tmp)
    assert done.returncode == 0, done.stderr
    assert "Each generation batch: 2 prompts, 16 rollouts sampled" in done.stderr
    assert "4 rows per micro-batch and process" in done.stderr
    assert done.stdout.count("Saved the model and the log") == 1
    assert (in_tmp / "out" / "model.safetensors").exists()


@pytest.mark.long
def test_one_process_is_launched_once_and_sees_the_environment_of_the_recipe(in_tmp, model_path):
    path = recipe(in_tmp, model_path, env={"SET_BY_RECIPE": "no"}, mixed_precision="no")
    reward = "import os\n\nassert os.environ['SET_BY_RECIPE'] == 'no'\n"
    (in_tmp / "my_rewards.py").write_text(reward + (in_tmp / "my_rewards.py").read_text())
    done = run("grpo", "--config", path, cwd=in_tmp)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Saved the model and the log") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_processes_that_end_at_different_times_end(in_tmp, model_path):
    """With `trainer.end()` the other process hung for ever in this."""
    (in_tmp / "slow.py").write_text(SLOW_FIRST_PROCESS)
    path = recipe(in_tmp, model_path, per_device_train_batch_size=4)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, "slow.py")
    done = run_python(*launch, "--config", path, cwd=in_tmp)
    assert done.returncode == 0, done.stderr


def launched_with(in_tmp, model_path, *arguments, **overrides) -> list[str]:
    path = recipe(in_tmp, model_path, per_device_train_batch_size=4, **overrides)
    return RecipeParser("trl-pods grpo").parse(["--config", path, *arguments]).launch.arguments


def test_flags_of_the_launcher_are_true_or_false(in_tmp, model_path):
    assert launched_with(in_tmp, model_path, multi_gpu=False, num_processes=2) == ["--num_processes", "2"]
    assert launched_with(in_tmp, model_path, multi_gpu=True) == ["--multi_gpu"]
    with pytest.raises(SetupError, match=r"recipe.yaml:\d+: `multi_gpu` is 'maybe', but it must be true or false"):
        launched_with(in_tmp, model_path, multi_gpu="maybe")


def test_the_command_line_overrides_the_launch_options_of_the_recipe(in_tmp, model_path):
    arguments = ("--accelerate-config", str(ROOT / "recipes" / "accelerate" / "two_cpu_processes.yaml"))
    assert launched_with(in_tmp, model_path, *arguments, accelerate_config="zero2")[0] == "--accelerate_config"
    path = recipe(in_tmp, model_path, accelerate_config="zero2", per_device_train_batch_size=4)
    assert RecipeParser("trl-pods grpo").parse(["--config", path]).launch.num_processes == 8
    assert RecipeParser("trl-pods grpo").parse(["--config", path, *arguments]).launch.num_processes == 2


def test_batch_sizes_are_checked_for_all_processes_before_any_starts(in_tmp, model_path, capsys):
    arguments = ["--config", recipe(in_tmp, model_path, per_device_train_batch_size=1)]
    grpo.run([*arguments, "--num_processes", "4", "--dry_run"])  # 4 x 1 rows hold a group of 4
    assert "1 prompts, 8 rollouts sampled" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SetupError, match="x 3 processes"):
        grpo.run([*arguments, "--num_processes", "3"])


@pytest.mark.long
def test_an_error_in_several_processes_is_said_once(in_tmp, model_path):
    path = recipe(in_tmp, model_path, dataset_train_split="trian", per_device_train_batch_size=4)
    done = run("grpo", "--config", path, "--num_processes", 2, "--main_process_port", 0, cwd=in_tmp)
    assert done.returncode == 1
    assert done.stderr.count("`dataset_train_split` is 'trian'") == 1
    assert "A training process failed. Its error stands above." in done.stderr
    assert "Traceback" not in done.stderr


def test_case_17_resuming_finds_the_last_complete_checkpoint_or_says_that_there_is_none(in_tmp, model_path, caplog):
    path = recipe(in_tmp, model_path, save_strategy="steps", save_steps=1)
    with pytest.raises(ValueError, match=r"recipe.yaml:\d+: .*holds no complete checkpoint"):
        grpo.run(["--config", recipe(in_tmp, model_path, resume_from_checkpoint=True)])
    with pytest.raises(ValueError, match=r"`resume_from_checkpoint` means 'elsewhere', .*it is no folder"):
        grpo.run(["--config", path, "--resume_from_checkpoint", "elsewhere"])
    grpo.run(["--config", recipe(in_tmp, model_path, save_strategy="steps", save_steps=1)])
    (in_tmp / "out" / "checkpoint-9").mkdir()  # saving it was interrupted
    with pytest.raises(ValueError, match=r"checkpoint-9', .*: it was not written to the end"):
        grpo.run(["--config", path, "--resume_from_checkpoint", "out/checkpoint-9"])
    again = ["--config", path, "--max_steps", "3", "--resume_from_checkpoint", "true"]
    trainer = grpo.run(again)
    assert [entry["step"] for entry in trainer.state.log_history if "reward" in entry] == [1, 2, 3]
    assert "checkpoint-9' is skipped: it was not written to the end" in caplog.text


def test_a_dry_run_says_what_would_be_trained_and_trains_nothing(in_tmp, model_path, capsys):
    assert grpo.run(["--config", recipe(in_tmp, model_path, use_peft=True), "--dry_run"]) is None
    words = " ".join(capsys.readouterr().out.split())
    for part in ("rewards distinct", "4 of 8 rollouts", "2 prompts, 16 rollouts sampled", "16 train", "nothing was"):
        assert part in words
    assert not (in_tmp / "out").exists()


def test_a_dry_run_shows_prompts_that_are_lists_of_blocks():
    blocks = [{"type": "image", "text": None}, {"type": "text", "text": "How many\ndogs?"}]
    data = {"train": Dataset.from_list([{"prompt": [{"role": "user", "content": blocks}]}])}
    assert _describe_data(data) == "1 train; the first prompt ends: <image> How many dogs?"


def test_the_recipe_is_not_blamed_for_what_the_command_line_sets(in_tmp, model_path):
    with pytest.raises(SetupError, match=r"^`reward_funcs`: there is no reward function 'nope'"):
        grpo.run(["--config", recipe(in_tmp, model_path), "--reward_funcs", "nope"])


def test_a_dataset_may_be_one_file(in_tmp, model_path):
    path = recipe(in_tmp, model_path, dataset_name=str(in_tmp / "data" / "train.jsonl"))
    assert grpo.run(["--config", path]).state.global_step == 2


def test_questions_without_an_adapter_name_those_that_fit(in_tmp, model_path):
    path = recipe(in_tmp, model_path, dataset_name="questions.jsonl")
    (in_tmp / "questions.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    with pytest.raises(SetupError, match=r"without `prompt`. Set `dataset_adapter` to one of \['gsm8k'"):
        grpo.run(["--config", path])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_processes": 0}, "`num_processes` is 0, but it must be 1 or more"),
        ({"config_file": "nofile"}, "nofile"),
        ({"dataset_name": "."}, "."),
        ({"system_prompt": "Add."}, r"recipe.yaml:\d+: `system_prompt` does nothing without an adapter"),
        ({"task_kwargs": {"size": 3}}, r"recipe.yaml:\d+: `task_kwargs` are for tasks of reasoning-gym"),
        ({"max_prompt_length": 0}, r"recipe.yaml:\d+: `max_prompt_length` is 0"),
        ({"max_seconds": 0}, r"recipe.yaml:\d+: `max_seconds` is 0"),
        ({"eval_seconds": 5}, r"`eval_seconds` needs one to evaluate on"),
        ({"reward_funcs": [{"a": 1}]}, r"recipe.yaml:\d+: `reward_funcs` is"),
        ({"reward_funcs": ["trl_pods.rewards.accuracy_reward"]}, "'accuracy_reward' needs 'solution'"),
        ({"datasets": [{"path": "json", "data_filez": "x"}]}, "data_filez"),
        ({"datasets": [{"path": "json", "data_files": "empty.jsonl"}]}, "The dataset has no rows"),
        ({"model_name_or_path": "."}, r"recipe.yaml:\d+: `model_name_or_path` is '.', which is no model"),
        ({"env": {"A": {"B": "C"}}}, r"recipe.yaml:\d+: `env` is .*must map variables to values"),
        ({"env": {"A=B": "C"}}, r"recipe.yaml:\d+: `env` is .*must map variables to values"),
        ({"reward_funcs": ["no_such_reward"]}, r"recipe.yaml:\d+: .*no reward function 'no_such_reward'"),
        ({"reward_funcs": ["my_rewards.missing"]}, r"recipe.yaml:\d+: .*'my_rewards.missing' cannot be imported"),
        ({"reward_funcs": None}, "nothing to reward"),
        ({"setup_func": "nowhere.prepare"}, r"recipe.yaml:\d+: .*'nowhere.prepare' cannot be imported"),
        ({"model_name_or_path": None}, "Set `model_name_or_path`"),
        ({"model_name_or_path": "./no_model"}, "no_model"),
        ({"dataset_name": None}, "Set `dataset_name` or `datasets`"),
        ({"dataset_train_split": "trian"}, r"recipe.yaml:\d+: .*has the splits \['train'\]"),
        ({"lerning_rate": 1.0}, r"recipe.yaml:\d+: .*`lerning_rate`. Did you mean `learning_rate`"),
        ({"down_sampling": "max_varience"}, r"recipe.yaml:\d+: `down_sampling`: .*'max_varience'"),
        ({"num_rollouts": 3}, r"recipe.yaml:\d+: `num_rollouts` is 3"),
        ({"max_steps": "many"}, r"recipe.yaml:\d+: `max_steps` is 'many', but it must be a whole number"),
        ({"reward_weights": [1.0, 2.0]}, r"Number of reward weights \(2\) must match"),
        ({"optim": "adamw"}, r"recipe.yaml:\d+: `optim` is 'adamw', but it must be a known value, such as \['adamw"),
        ({"num_processes": "two"}, "invalid int value: 'two'"),
        ({"accelerate_config": "zero9"}, "`accelerate_config`: .*zero9"),
        ({"dataset_adapter": "gsm8"}, r"recipe.yaml:\d+: `dataset_adapter` is 'gsm8'.*Did you mean 'gsm8k'"),
        ({"task_kwargs": "[1]"}, r"recipe.yaml:\d+: `task_kwargs` is .* must be a mapping"),
        ({"max_seconds": -1}, r"recipe.yaml:\d+: `max_seconds` is -1"),
    ],
)
def test_a_wrong_recipe_is_refused_with_its_line(in_tmp, model_path, overrides, message):
    (in_tmp / "empty.jsonl").touch()
    with pytest.raises(SetupError, match=message):
        grpo.run(["--config", recipe(in_tmp, model_path, **overrides)])
    assert not (in_tmp / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "a recipe is a mapping"),
        ("a: [1\n", "recipe.yaml:2: this is not valid YAML"),
        ("seed: 1\nmax_steps: 2\nseed: 3\n", "recipe.yaml:3: `seed` was given in line 1 already"),
        ("env: 3\n", "recipe.yaml:1: `env` is '3'"),
        ("output_dir: a\x01\n", "this is not valid YAML"),
        ("task_kwargs: {a: !!python/object/apply:os.system [ls]}\n", "recipe.yaml:1: `task_kwargs` cannot be read"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        grpo.run(["--config", str(write_recipe(tmp_path, text))])


def test_errors_of_a_recipe_are_said_in_the_order_of_its_lines(tmp_path):
    path = tmp_path / "a:b.yaml"
    path.write_text("max_steps: many\n" + 8 * "\n" + "lerning_rate: 1\n")
    with pytest.raises(SetupError, match=r"^.*a:b.yaml:1: `max_steps` .*\n.*a:b.yaml:10: .*`lerning_rate`"):
        RecipeParser().parse(["--config", str(path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config"], "argument --config: expected one argument"),
        (["--config", "nowhere.yaml"], "'nowhere.yaml' cannot be read"),
        (["--lerning_rate", "1"], "Did you mean `--learning_rate`?"),
        (["--max_step", "1"], "Did you mean `--max_steps`?"),
        (["recipe.yaml"], "'recipe.yaml' belongs to no option"),
        (["--num_processes", "2", "foo.py"], "'foo.py' belongs to no option"),
        (["--num_processes", "two"], "invalid int value: 'two'"),
        (["--accelerate_config", "zero9"], "zero9"),
    ],
)
def test_a_wrong_command_line_is_refused_without_a_traceback(arguments, message, capfd):
    with pytest.raises(SystemExit) as stop:
        cli.main(["grpo", *arguments])
    assert stop.value.code == 2
    error = capfd.readouterr().err
    assert error.startswith("trl-pods grpo: error: ")
    assert message in error
    assert "Traceback" not in error


def test_what_a_reward_raises_in_training_is_not_hidden(in_tmp, model_path):
    path = recipe(in_tmp, model_path, reward_funcs=["broken_rewards.broken"])
    (in_tmp / "broken_rewards.py").write_text("def broken(completions, **kwargs):\n    raise KeyError('secret')\n")
    with pytest.raises(KeyError, match="secret"):
        cli.main(["grpo", "--config", path])
