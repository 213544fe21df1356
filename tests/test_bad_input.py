"""Bad input: a clear error that names the option, the value and the way out, before anything is generated."""

import json
from pathlib import Path

import commands
import pytest
import tiny
import torch
from datasets import IterableDataset
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer, register_strategy
from trl_pods.checks.batch_sizes import check_rollouts
from trl_pods.checks.trl_seam import check_trl
from trl_pods.config import with_rollouts
from trl_pods.strategies import registry


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_rollouts": 3}, r"`num_rollouts` is 3.*`num_generations` \(4\).*Raise `num_rollouts`"),
        ({"num_rollouts": 0}, r"`num_rollouts` is 0"),
        ({"num_rollouts": 16.0}, r"`num_rollouts` is 16.0, but it must be a whole number"),
        ({"per_device_train_batch_size": 0}, r"`per_device_train_batch_size` is 0.*1 or more"),
        ({"gradient_accumulation_steps": 0}, r"`gradient_accumulation_steps` is 0.*1 or more"),
        ({"steps_per_generation": 0}, r"`steps_per_generation` is 0.*1 or more"),
        ({"num_iterations": 0}, r"`num_iterations` is 0.*1 or more"),
        (
            {"eval_strategy": "steps", "per_device_eval_batch_size": 6, "num_generations": 4},
            "`per_device_eval_batch_size` is 6.*Use a multiple of 4",
        ),
        ({"num_iterations": 1.5}, r"`num_iterations` is 1.5.*a whole number, 1 or more"),
        ({"generation_batch_size": 0}, r"`generation_batch_size` is 0.*1 or more"),
        ({"generation_batch_size": 8.0}, r"`generation_batch_size` is 8.0.*a whole number, 1 or more"),
        ({"rollout_batch_size": 0}, r"`rollout_batch_size` is 0.*a whole number, 1 or more. Set it so"),
        ({"rollout_batch_size": 2.5}, r"`rollout_batch_size` is 2.5.*a whole number, 1 or more"),
        ({"num_generations": 1}, r"`num_generations` is 1.*at least 2"),
        ({"num_generations": None}, r"`num_generations` is None.*a whole number"),
        ({"num_generations": "4"}, r"`num_generations` is '4'.*a whole number"),
        ({"num_generations": 0}, r"`num_generations` is 0.*at least 2"),
        (
            {"num_generations": 4, "num_rollouts": 8, "per_device_train_batch_size": 3},
            r"`num_generations` is 4 \(of `num_rollouts` 8\).*`per_device_train_batch_size` 3 x 1 processes x "
            r"`steps_per_generation` 1 \(`gradient_accumulation_steps` is 1\).*one of \[3\].*a multiple of 4",
        ),
        (
            {
                "num_generations": 3,
                "num_rollouts": 5,
                "per_device_train_batch_size": 1,
                "gradient_accumulation_steps": 8,
            },
            r"one of \[2, 4\].*a multiple of 3",
        ),
        ({"down_sampling": "max_varience"}, r"'max_varience'.*'max_reward', 'max_variance'"),
        ({"down_sampling": "no_such_module.rule"}, r"'no_such_module.rule' cannot be imported"),
        ({"down_sampling_kwargs": {"alpha": 1}}, r"`down_sampling_kwargs` sets \['alpha'\].*'max_variance'"),
        ({"down_sampling_kwargs": '{"alpha": 1}'}, r"`down_sampling_kwargs` sets \['alpha'\]"),
        ({"down_sampling_kwargs": "alpha"}, r"`down_sampling_kwargs` is 'alpha'.*dictionary.*JSON"),
        ({"advantage_statistics": "some"}, r"`advantage_statistics` is 'some'.*'kept' or 'all'"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    ],
)
def test_a_wrong_option_is_refused_when_the_config_is_made(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, **arguments))


def test_rollouts_that_do_not_divide_over_processes_are_refused_with_values_that_do(tmp_path):
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=5))

    class FourProcesses:
        num_rollouts, num_generations, generation_batch_size, world_size = 5, 4, 8, 4
        prompt_oversampling, accelerator_config = 1.0, args.accelerator_config

    check_rollouts(args)
    with pytest.raises(
        ValueError, match=r"`num_rollouts` is 5: 2 prompts .* 4 processes. Use a multiple of 2, such as 4 or 6"
    ):
        check_rollouts(FourProcesses)


def test_a_dataset_smaller_than_a_generation_batch_is_refused(model_path, tmp_path):
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, per_device_train_batch_size=16, num_rollouts=8))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset(3))
    with pytest.raises(ValueError, match=r"`train_dataset` has 3 prompts, but one generation batch takes 4"):
        trainer.train()


def test_an_unknown_selection_reward_lists_the_reward_functions(model_path, tmp_path):
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, selection_reward="accuracy"))
    with pytest.raises(ValueError, match=r"`selection_reward` is 'accuracy'.*\['distinct_characters'\]"):
        PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())


def test_args_of_another_kind_are_refused():
    with pytest.raises(TypeError, match=r"`args` must be a `PODSGRPOConfig` or a `GRPOConfig`, got a `dict`"):
        with_rollouts({"num_generations": 4})


@pytest.mark.parametrize("version", ["0.29.1", "1.9.2", "2.0.0"])
def test_another_trl_is_refused_in_one_sentence(version):
    with pytest.raises(ImportError) as error:
        check_trl(version)
    assert str(error.value) == (
        f"trl {version} is installed, but PODSGRPOTrainer supports trl>=1.10,<2: run `pip install 'trl>=1.10,<2'`."
    )


def test_another_trl_that_lacks_a_name_is_refused_alike():
    lacking = "from trl.trainer import grpo_trainer, utils; trl.__version__ = '1.9.2'; del utils.get_config_model_id"
    done = commands.run_python("-c", f"import trl; {lacking}; from trl_pods import PODSGRPOTrainer")
    assert "ImportError: trl 1.9.2 is installed, but PODSGRPOTrainer supports trl>=1.10,<2" in done.stderr


def test_case_88_a_trl_whose_seam_changed_is_refused_by_the_name_of_the_method():
    class Renamed(GRPOTrainer):
        _generate = None

    class Grown(GRPOTrainer):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list, more): ...

    for trainer, method in [(Renamed, "_generate"), (Grown, "_calculate_rewards")]:
        with pytest.raises(ImportError, match=rf"trl 1.99.0 has changed .*{method}.*: install"):
            check_trl("1.99.0", trainer)


@pytest.fixture
def wrong_rule(monkeypatch):
    """Registers a rule that gives a wrong answer from its second call on."""
    monkeypatch.setattr(registry, "_STRATEGIES", dict(registry._built_in()))
    calls = []

    def register(answer):
        @register_strategy("wrong")
        def wrong(rewards, num_kept):
            calls.append(1)
            return torch.arange(num_kept).expand(len(rewards), -1) if len(calls) == 1 else answer(rewards, num_kept)

    return register


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda rewards, num_kept: torch.zeros(len(rewards), num_kept, dtype=torch.long), ValueError),
        (lambda rewards, num_kept: rewards, ValueError),
        (lambda rewards, num_kept: 1 / 0, RuntimeError),
    ],
)
def test_a_rule_that_fails_in_training_is_named_and_checkpoints_stay(wrong_rule, answer, error, model_path, tmp_path):
    wrong_rule(answer)
    arguments = {"down_sampling": "wrong", "save_strategy": "steps", "save_steps": 1}
    trainer = PODSGRPOTrainer(
        model_path,
        tiny.distinct_characters,
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, **arguments)),
        tiny.make_dataset(),
    )
    with pytest.raises(error, match="'wrong'"):
        trainer.train()
    state = json.loads((Path(tmp_path) / "checkpoint-1" / "trainer_state.json").read_text())
    assert state["global_step"] == 1
    assert (Path(tmp_path) / "checkpoint-1" / "model.safetensors").exists()
    assert trainer.args.generation_batch_size == 8
    assert trainer.num_generations == 4


@pytest.mark.parametrize("unscored", [None, float("nan"), float("inf"), -float("inf")])
def test_rollouts_without_a_finite_reward_do_not_teach(unscored, model_path, tmp_path, caplog):
    """With 3 of 8 scored and m = 4, one unscored row is kept; its advantage is 0 and all metrics are finite."""
    advantages = []

    class Capturing(PODSGRPOTrainer):
        def _compute_loss(self, model, inputs):
            advantages.append(inputs["advantages"].tolist())
            return super()._compute_loss(model, inputs)

    def reward(completions, **kwargs):
        return [float(i) if i % 8 in (2, 4, 5) else unscored for i in range(len(completions))]

    trainer = Capturing(
        model_path,
        reward,
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8)),
        tiny.make_dataset(),
    )
    trainer.train()
    for batch in advantages:
        assert sum(value == 0 for value in batch) == 2
        assert all(abs(value) < 2 for value in batch)
    for log in trainer.state.log_history[:-1]:
        assert torch.tensor([log["reward"], log["grad_norm"], log["pods/kept_reward"]]).isfinite().all()
        assert log["reward"] == log["pods/kept_reward"]
    warned = [record for record in caplog.records if "infinite reward" in record.message]
    assert len(warned) == (unscored in (float("inf"), -float("inf")))


def test_a_reward_function_that_raises_is_heard(model_path, tmp_path):
    def reward(completions, **kwargs):
        raise RuntimeError("the judge is ill")

    trainer = PODSGRPOTrainer(
        model_path, reward, PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8)), tiny.make_dataset()
    )
    with pytest.raises(RuntimeError, match="the judge is ill"):
        trainer.train()


def test_a_wrong_number_of_rewards_is_refused_with_the_number_of_rollouts(model_path, tmp_path):
    trainer = PODSGRPOTrainer(
        model_path,
        lambda completions, **kwargs: [1.0],
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, num_rollouts=8)),
        tiny.make_dataset(),
    )
    with pytest.raises(ValueError, match=r"returned 1 rewards, but 16 were expected"):
        trainer.train()


def test_iterable_data_that_fills_no_batch_is_heard(model_path, tmp_path):
    data = tiny.make_dataset(3)
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, per_device_train_batch_size=16, num_rollouts=8))
    dataset = IterableDataset.from_generator(lambda: iter(data))
    trainer = PODSGRPOTrainer(model_path, tiny.distinct_characters, args, dataset)
    with pytest.raises(ValueError, match="Nothing was trained: `train_dataset` gave fewer prompts than the 4"):
        trainer.train()


def test_a_rule_that_writes_into_its_arguments_spoils_nothing(model_path, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_STRATEGIES", dict(registry._built_in()))

    @register_strategy("vandal")
    def vandal(rewards, num_kept, rewards_per_func, completion_lengths):
        for tensor in (rewards, rewards_per_func, completion_lengths):
            tensor.zero_()
        return torch.arange(num_kept).expand(len(rewards), -1)

    arguments = {"down_sampling": "vandal", "selection_reward": "distinct_characters", "num_rollouts": 8}
    arguments["rollout_batch_size"] = 16  # with these rollouts the first ones' rewards differ
    trainer = PODSGRPOTrainer(
        model_path,
        tiny.distinct_characters,
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, **arguments)),
        tiny.make_dataset(),
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["reward"] > 1
    assert log["grad_norm"] > 0
    assert 0 < log["pods/kept_token_fraction"] < 1


def test_case_76_iterable_data_needs_max_steps(model_path, tmp_path):
    dataset = IterableDataset.from_generator(lambda: iter(tiny.make_dataset()))
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, max_steps=-1))
    with pytest.raises(ValueError, match="max_steps"):
        PODSGRPOTrainer(model_path, tiny.distinct_characters, args, dataset).train()


def test_the_config_class_adds_exactly_the_interface():
    from dataclasses import fields

    added = {f.name: f.default for f in fields(PODSGRPOConfig)}
    inherited = {f.name for f in fields(GRPOConfig)}
    assert {name: default for name, default in added.items() if name not in inherited} == {
        "num_rollouts": None,
        "down_sampling": "max_variance",
        "down_sampling_kwargs": None,
        "advantage_statistics": "kept",
        "selection_reward": None,
        "exclude_truncated": False,
        "zero_variance": "skip",
        "prompt_oversampling": 1.0,
        "drop_open_generation_batch": False,
        "rollout_batch_size": None,
    }
