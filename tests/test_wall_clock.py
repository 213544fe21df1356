"""The wall clock, with a clock that only the reward function moves: exact, and no test of speed."""

import json
from pathlib import Path
from types import SimpleNamespace

import commands
import pytest
import tiny
import torch
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.wall_clock import METRIC, WallClockCallback, is_generation_used_up

SECONDS = 10.0  # what a call of the reward function takes


class Clocked(WallClockCallback):
    """The callback with a clock of the test's, also where transformers makes a new one on resume."""

    now = 0.0

    def __init__(self, **arguments):
        super().__init__(**arguments, clock=lambda: Clocked.now)


def reward(completions, **kwargs):
    Clocked.now += SECONDS
    return tiny.distinct_characters(completions)


def make_trainer(
    model_path, output_dir, wall_clock=None, *, trainer_class=PODSGRPOTrainer, eval_dataset=None, **overrides
):
    config_class = PODSGRPOConfig if trainer_class is PODSGRPOTrainer else GRPOConfig
    trainer = trainer_class(
        model=model_path,
        reward_funcs=reward,
        args=config_class(**tiny.default_arguments(output_dir, max_steps=40) | overrides),
        train_dataset=tiny.make_dataset(),
        eval_dataset=eval_dataset,
    )
    if wall_clock is not None:
        wall_clock.attach(trainer)
    return trainer


def saved_steps(output_dir) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in Path(output_dir).glob("checkpoint-*"))


def evaluated_steps(trainer) -> list[int]:
    return [log["step"] for log in trainer.state.log_history if "eval_reward" in log]


@pytest.mark.parametrize("trainer_class", [PODSGRPOTrainer, GRPOTrainer])
def test_it_stops_saves_and_evaluates_by_seconds(trainer_class, model_path, tmp_path):
    trainer = make_trainer(
        model_path,
        tmp_path,
        Clocked(max_seconds=100, save_seconds=25, eval_seconds=45),
        trainer_class=trainer_class,
        eval_dataset=tiny.make_dataset(4),
    )
    trainer.train()
    assert trainer.state.global_step == 10
    assert saved_steps(tmp_path) == [3, 5, 8, 10]
    assert evaluated_steps(trainer) == [5, 9, 10]


def test_evaluation_is_off_the_clock(model_path, tmp_path):
    started = Clocked.now
    trainer = make_trainer(
        model_path,
        tmp_path,
        Clocked(max_seconds=60, eval_seconds=20),
        eval_dataset={"one": tiny.make_dataset(8), "other": tiny.make_dataset(8)},
        eval_strategy="steps",
        eval_steps=3,
        eval_on_start=True,
    )
    trainer.evaluate()
    trainer.train()
    assert trainer.state.global_step == 6
    seconds = {log["step"]: log[METRIC] for log in trainer.state.log_history}
    assert seconds == {step: step * SECONDS for step in range(7)}
    assert Clocked.now - started > 60 + 4 * SECONDS, "evaluation took no time, so nothing was tested"


def test_the_seconds_are_logged_with_every_entry_and_reported(model_path, tmp_path):
    reported = []

    class Reporter(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            reported.append(logs[METRIC])

    trainer = make_trainer(model_path, tmp_path, max_steps=3)
    trainer.add_callback(Reporter())
    Clocked().attach(trainer)
    trainer.train()
    assert reported == [log[METRIC] for log in trainer.state.log_history] == [10, 20, 30, 30]


@pytest.mark.parametrize("restore", [False, True])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(restore, model_path, tmp_path):
    arguments = {"max_seconds": 100, "save_seconds": 25, "eval_seconds": 45}
    overrides = {
        "eval_dataset": tiny.make_dataset(4),
        "steps_per_generation": 2,
        "restore_callback_states_from_checkpoint": restore,
    }
    whole = make_trainer(model_path, tmp_path / "whole", Clocked(**arguments), **overrides)
    whole.train()
    assert saved_steps(tmp_path / "whole") == [6, 10, 16, 20]

    Clocked.now += 12345.0  # between the runs
    resumed = make_trainer(model_path, tmp_path / "resumed", Clocked(**arguments), **overrides)
    Clocked.now += 12345.0  # setting up
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    assert saved_steps(tmp_path / "resumed") == [10, 16, 20]
    assert evaluated_steps(resumed) == evaluated_steps(whole) == [10, 18, 20]
    for ours, theirs in zip(resumed.state.log_history, whole.state.log_history, strict=True):
        assert ours[METRIC] == theirs[METRIC]
    expected = tiny.trained_parameters(whole)
    for name, parameter in tiny.trained_parameters(resumed).items():
        assert torch.equal(parameter, expected[name]), name


def test_the_checkpoint_holds_the_seconds(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path, Clocked(save_seconds=20), max_steps=2)
    trainer.train()
    state = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["Clocked"]["attributes"] == {"seconds": 20.0, "checked_at": 20.0}


def test_a_second_training_starts_at_zero(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path, Clocked(max_seconds=30))
    for _ in range(2):
        trainer.train()
        assert trainer.state.global_step == 3


def test_it_can_join_a_run_that_began_without_it(model_path, tmp_path):
    make_trainer(model_path, tmp_path, save_strategy="steps", save_steps=2, max_steps=2).train()
    trainer = make_trainer(model_path, tmp_path, Clocked(max_seconds=30, save_seconds=30))
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 5
    assert saved_steps(tmp_path) == [2, 5]


def test_a_run_whose_time_is_over_is_not_trained_further(model_path, tmp_path):
    make_trainer(model_path, tmp_path, Clocked(max_seconds=20, save_seconds=20)).train()
    trainer = make_trainer(model_path, tmp_path, Clocked(max_seconds=20, save_seconds=20))
    with pytest.raises(ValueError, match=r"`max_seconds` is 20, but .* trained for 20\.0 seconds"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.long
def test_processes_with_different_clocks_act_at_the_same_steps(model_path, tmp_path):
    worker = Path(__file__).with_name("wall_clock_worker.py")
    commands.torchrun(worker, model_path, tmp_path)
    logs = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for log in logs:
        assert log[-1]["step"] == 6
        assert [entry["step"] for entry in log if "eval_reward" in entry] == [3, 5, 6]
    assert saved_steps(tmp_path) == [3, 5, 6]


@pytest.mark.parametrize("name", ["max_seconds", "save_seconds", "eval_seconds"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_seconds_must_be_above_zero(name, value):
    with pytest.raises(ValueError, match=f"`{name}` is {value!r}"):
        WallClockCallback(**{name: value})


def test_evaluating_needs_batches_of_whole_groups(model_path, tmp_path):
    with pytest.raises(ValueError, match=r"`per_device_eval_batch_size` is 3: .*Use a multiple of 4"):
        make_trainer(
            model_path,
            tmp_path,
            Clocked(eval_seconds=5),
            eval_dataset=tiny.make_dataset(4),
            per_device_eval_batch_size=3,
        )


def test_evaluating_needs_data(model_path, tmp_path):
    with pytest.raises(ValueError, match=r"`eval_seconds` is 5, but the trainer has no `eval_dataset`"):
        make_trainer(model_path, tmp_path, Clocked(eval_seconds=5))


def test_steps_are_counted_within_the_epoch():
    args = SimpleNamespace(gradient_accumulation_steps=2, steps_per_generation=3, num_iterations=1)
    # 9 micro-batches an epoch, so 5 steps, of which the last trains one.
    assert [step for step in range(1, 11) if is_generation_used_up(args, step, range(9))] == [3, 5, 8, 10]
