"""What the trainer assumes about TRL, one claim at a time, so that a new TRL breaks with a name."""

import ast
import inspect
import textwrap
from collections import deque
from dataclasses import fields

import pytest
import tiny
import torch
from trl import GRPOConfig, GRPOTrainer
from trl.cli.accelerate_config import resolve_accelerate_config_argument
from trl.scripts.grpo import GRPOScriptArguments
from trl.trainer.utils import get_config_model_id, nanstd

from trl_pods import PODSGRPOTrainer
from trl_pods.checks.trl_seam import SEAM, Generated, check_trl, matches


@pytest.fixture(scope="module")
def trainer(model_path, tmp_path_factory):
    """A plain `GRPOTrainer` after two steps with a completions table."""
    args = GRPOConfig(**tiny.default_arguments(tmp_path_factory.mktemp("grpo"), log_completions=True, logging_steps=2))
    trainer = GRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    trainer.log = lambda *args, **kwargs: None  # keep the metrics
    trainer.train()
    return trainer


def test_the_installed_trl_is_supported():
    check_trl()


@pytest.mark.parametrize("method", SEAM)
def test_methods_have_the_parameters_that_the_overrides_have(method):
    found = tuple(inspect.signature(getattr(GRPOTrainer, method)).parameters)
    assert matches(found, SEAM[method]), found


def test_generate_returns_these_items_in_this_order():
    tree = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer._generate)))
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    assert tuple(ast.unparse(item) for item in returned[-1].elts) == Generated._fields


@pytest.mark.parametrize(
    "attribute",
    [
        "environments",
        "log_completions",
        "log_multimodal",
        "multi_objective_aggregation",
        "num_generations",
        "num_generations_eval",
        "reward_func_names",
        "reward_funcs",
        "reward_weights",
        "scale_rewards",
        "_has_async_funcs",
        "_is_vlm",
        "_log_completion_extra",
        "_pending_extra_logs",
        "_tokenizer",
    ],
)
def test_the_trainer_has(trainer, attribute):
    assert hasattr(trainer, attribute)


@pytest.mark.parametrize("column", ["prompt", "completion", "advantages", "images"])
def test_the_completions_table_has_a_column_as_long_as_a_generation_batch(trainer, column):
    assert isinstance(trainer._logs[column], deque)
    assert trainer._logs[column].maxlen == trainer.args.generation_batch_size


@pytest.mark.parametrize("table", ["rewards", "extra"])
def test_the_completions_table_makes_columns_on_demand(trainer, table):
    assert trainer._logs[table]["any"].maxlen == trainer.args.generation_batch_size


@pytest.mark.parametrize(
    "metric",
    [
        "reward",
        "reward_std",
        "frac_reward_zero_std",
        "rewards/distinct_characters/mean",
        "rewards/distinct_characters/std",
    ],
)
def test_a_generation_batch_adds_one_value_to_the_metric(trainer, metric):
    assert len(trainer._metrics["train"][metric]) == 2


def test_a_completed_batch_names_its_rows_and_advantages(trainer):
    row = trainer.train_dataset[0]
    output = trainer._generate_and_score_completions([dict(row) for _ in range(8)])
    assert len(output["prompt_ids"]) == len(output["advantages"]) == 8


def test_nanstd_is_the_sample_standard_deviation_of_what_is_there():
    values = torch.tensor([[1.0, 3.0, float("nan")], [2.0, 2.0, 2.0]])
    assert nanstd(values, dim=1).tolist() == pytest.approx([2**0.5, 0.0])


def test_the_model_s_name_is_in_its_config(trainer, model_path):
    assert get_config_model_id(trainer.model.config) == model_path


def test_the_command_line_of_trl_resolves_the_accelerate_configs_that_it_ships():
    launcher, path, *rest = resolve_accelerate_config_argument(["--accelerate_config", "zero2", "--num_machines", "1"])
    assert launcher == "--config_file" and path.endswith("zero2.yaml")
    assert rest == ["--num_machines", "1"]


def test_the_script_of_trl_has_these_arguments():
    names = {field.name for field in fields(GRPOScriptArguments)}
    assert {"dataset_name", "dataset_config", "dataset_streaming", "dataset_train_split", "dataset_test_split"} <= names
    assert {"reward_funcs", "reward_model_name_or_path"} <= names


def test_the_names_of_a_batch_s_environments_are_in_this_attribute():
    assert "self._batch_environments =" in inspect.getsource(GRPOTrainer)  # set only where there are environments


def test_steps_are_micro_batches_and_the_buffer_holds_those_of_a_generation_batch(model_path, tmp_path):
    args = GRPOConfig(
        **tiny.default_arguments(
            tmp_path, per_device_train_batch_size=4, steps_per_generation=4, gradient_accumulation_steps=2
        )
    )
    trainer = GRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    trainer.train()
    assert (trainer.state.global_step, trainer._step) == (2, 4)
    assert [len(batch["completion_ids"]) for batch in trainer._buffered_inputs] == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_save_checkpoint", ["self", "model", "trial"]),
        ("_load_optimizer_and_scheduler", ["self", "checkpoint"]),
        ("get_eval_dataloader", ["self", "eval_dataset"]),
    ],
)
def test_methods_of_the_trainer_take(method, parameters):
    assert list(inspect.signature(getattr(GRPOTrainer, method)).parameters) == parameters


def test_metrics_make_lists_on_demand(trainer):
    trainer._metrics["train"]["any"].extend([1.0])
    assert trainer._metrics["train"].pop("any") == [1.0]


def test_the_trainer_is_not_built_on_an_unsupported_trl(model_path, tmp_path, monkeypatch):
    def refuse():
        raise ImportError("an unsupported version")

    monkeypatch.setattr("trl_pods.trainers.check_trl", refuse)
    with pytest.raises(ImportError, match="an unsupported version"):
        PODSGRPOTrainer(model_path, tiny.distinct_characters, train_dataset=tiny.make_dataset())


def test_the_log_is_the_last_that_is_written_of_a_checkpoint(model_path, tmp_path):
    args = GRPOConfig(**tiny.default_arguments(tmp_path, save_strategy="steps", save_steps=2))
    trainer = GRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    trainer.train()
    assert trainer._get_output_dir(trial=None) == str(tmp_path)
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "checkpoint-2").iterdir()}
    assert {"model.safetensors", "optimizer.pt", "rng_state.pth"} <= written.keys()
    assert max(written, key=written.get) == "trainer_state.json"
