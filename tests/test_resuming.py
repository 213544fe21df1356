"""Resuming: bit-identical at any step, in any part of a generation batch; clear errors for what is damaged."""

import json
import re
import shutil
from pathlib import Path

import commands
import pandas
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from trl import GRPOConfig, GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.checks.errors import SetupError
from trl_pods.resume.checkpoints import last_complete_checkpoint
from trl_pods.resume.state import state_path

SIZES = [(1, 1, 1), (4, 1, 1), (2, 2, 1), (3, 2, 2), (1, 1, 2)]


def make_trainer(model_path, output_dir, num_prompts=16, **overrides):
    arguments = {"num_rollouts": 8, "per_device_train_batch_size": 4, "max_steps": 8, "save_steps": 1}
    arguments |= {"save_strategy": "steps", "logging_steps": 2, "beta": 0.1}
    return PODSGRPOTrainer(
        model=model_path,
        reward_funcs=overrides.pop("reward_funcs", tiny.distinct_characters),
        args=PODSGRPOConfig(**tiny.default_arguments(output_dir, **arguments | overrides)),
        train_dataset=tiny.make_dataset(num_prompts),
    )


def logged(trainer):
    return [log for log in tiny.without_seconds(trainer.state.log_history) if "reward" in log]


@pytest.mark.feature("resuming")
@pytest.mark.parametrize("num_rollouts", [4, 8])
@pytest.mark.parametrize(("steps_per_generation", "num_iterations", "accumulation"), SIZES)
@pytest.mark.parametrize("steps", [(2, 5), pytest.param((1, 3, 4, 6, 7), marks=pytest.mark.long)])
def test_case_16_resuming_at_any_step_is_bit_identical(
    steps, steps_per_generation, num_iterations, accumulation, num_rollouts, model_path, tmp_path
):
    arguments = {
        "num_prompts": 5,  # so few that most trainings begin a second epoch
        "num_rollouts": num_rollouts,
        "steps_per_generation": steps_per_generation,
        "num_iterations": num_iterations,
        "gradient_accumulation_steps": accumulation,
    }
    whole = make_trainer(model_path, tmp_path, **arguments)
    whole.train()
    expected = tiny.trained_parameters(whole)
    for step in steps:
        resumed = make_trainer(model_path, tmp_path / "resumed", **arguments, save_strategy="no")
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        found = tiny.trained_parameters(resumed)
        assert all(torch.equal(found[name], expected[name]) for name in expected), step
        assert logged(resumed) == logged(whole), step
        before = step // 2  # logged before, and not trained again: the seconds are those of then
        assert resumed.state.log_history[:before] == whole.state.log_history[:before]


@pytest.mark.parametrize("zero_variance", ["skip", pytest.param("drop", marks=pytest.mark.long)])
def test_resuming_with_prompts_left_out_is_bit_identical(zero_variance, model_path, tmp_path):
    """At every step of generation batches of two optimizer steps; an epoch leaves out a prompt."""

    def reward(completions, target, **kwargs):
        return [len(set(text)) * (number % 3 == 0) for text, number in zip(completions, target, strict=True)]

    arguments = {"steps_per_generation": 2, "max_steps": 6, "save_steps": 1, "reward_funcs": reward}
    arguments |= {"per_device_train_batch_size": 8, "zero_variance": zero_variance, "prompt_oversampling": 1.25}
    arguments |= {"num_prompts": 11, "beta": 0.0}
    whole = make_trainer(model_path, tmp_path / "run", **arguments)
    whole.train()
    expected = tiny.trained_parameters(whole)
    rows = [log["pods/trained_rows"] for log in whole.state.log_history if "pods/trained_rows" in log]
    assert min(rows) < 16 and len(rows) == 3
    for step in range(1, 6):
        resumed = make_trainer(model_path, tmp_path / "resumed", **arguments | {"save_strategy": "no"})
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
        found = tiny.trained_parameters(resumed)
        assert all(torch.equal(found[name], expected[name]) for name in expected), step


def test_another_oversampling_is_refused(model_path, checkpoint):
    with pytest.raises(SetupError, match=r"within a generation batch, with `prompt_oversampling` 1.0 \(now 2\)"):
        resume(model_path, checkpoint, prompt_oversampling=2)


@pytest.fixture
def checkpoint(model_path, tmp_path):
    """A checkpoint in the middle of a generation batch of four optimizer steps."""
    make_trainer(model_path, tmp_path, steps_per_generation=4, max_steps=2, save_steps=2).train()
    return tmp_path / "checkpoint-2"


def resume(model_path, checkpoint, **overrides):
    arguments = {"steps_per_generation": 4, "max_steps": 3, "save_strategy": "no"} | overrides
    trainer = make_trainer(model_path, checkpoint.parent / "resumed", **arguments)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return trainer


def read_state(path) -> tuple[dict, dict[str, torch.Tensor]]:
    tensors = load_file(path)
    return json.loads(tensors.pop("state").numpy().tobytes()), tensors


def test_state_is_plain_data(checkpoint):
    state, names = read_state(state_path(checkpoint, 0))
    assert state["step"] == 2 and len(state["buffered"]) == 4
    assert {"0.completion_ids", "3.advantages", "3.ref_per_token_logps"} <= names.keys()
    assert not list(checkpoint.glob("draft*"))


def test_nothing_is_buffered_where_the_generation_batch_was_used_up(model_path, tmp_path):
    make_trainer(model_path, tmp_path, steps_per_generation=2, max_steps=2, save_steps=2).train()
    state, tensors = read_state(state_path(tmp_path / "checkpoint-2", 0))
    assert state["buffered"] == [] and not tensors


def test_state_of_version_2_is_read(model_path, checkpoint):
    """Version 2 had the JSON in the header of the file."""
    whole = resume(model_path, checkpoint).model.state_dict()
    state, tensors = read_state(state_path(checkpoint, 0))
    save_file(tensors, state_path(checkpoint, 0), metadata={"state": json.dumps(state | {"version": 2})})
    resumed = resume(model_path, checkpoint).model.state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.long
@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_95_texts_that_outgrow_a_header_can_be_saved_and_resumed(num_rollouts, model_path, tmp_path, monkeypatch):
    texts = ["x" * 2**23] * 16  # 128 MB, more than the header of a safetensors file holds

    def save(*args, **kwargs):
        trainer._logs["extra"]["reasoning"].extend(texts)
        return PODSGRPOTrainer._save_checkpoint(trainer, *args, **kwargs)

    trainer = make_trainer(
        *(model_path, tmp_path),
        **{"steps_per_generation": 4, "max_steps": 2, "save_steps": 2, "log_completions": True},
        num_rollouts=num_rollouts,
    )
    monkeypatch.setattr(trainer, "_save_checkpoint", save)
    trainer.train()
    resumed = resume(model_path, tmp_path / "checkpoint-2", log_completions=True, num_rollouts=num_rollouts)
    assert resumed.state.global_step == 3 and list(resumed._logs["extra"]["reasoning"])[-16:] == texts


LONG_TEXTS = """
import sys
from pathlib import Path
from test_resuming import make_trainer, resume, tiny
from trl_pods.cli.launch import end_process_group

TEXT, folder = "x" * 2**24, Path(sys.argv[2])  # 8 of them are 128 MB, more than the header of a safetensors file holds

def reasons(completions, log_extra, **kwargs):
    log_extra("reasoning", [TEXT] * len(completions))
    return tiny.distinct_characters(completions)

arguments = {"num_rollouts": int(sys.argv[3]), "log_completions": True, "num_completions_to_print": 0}
arguments |= {"reward_funcs": reasons, "per_device_train_batch_size": 2, "steps_per_generation": 2, "logging_steps": 10}
arguments |= {"ddp_backend": "gloo", "ddp_timeout": 60, "save_steps": 1}
make_trainer(sys.argv[1], folder, **arguments, max_steps=1).train()
resumed = resume(sys.argv[1], folder / "checkpoint-1", **arguments | {"save_steps": 10, "max_steps": 2})
if resumed.accelerator.is_main_process:
    texts = list(resumed._logs["extra"]["reasoning"])
    assert resumed.state.global_step == 2 and len(texts) >= 8 and set(texts) == {TEXT}, len(texts)
end_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_95_nor_do_they_on_two_processes(num_rollouts, model_path, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LONG_TEXTS)
    commands.torchrun(script, model_path, tmp_path, num_rollouts)


@pytest.mark.parametrize("damage", ["cut", "empty", "rubbish"])
def test_damaged_state_is_an_error_that_says_what_to_do(damage, model_path, checkpoint):
    path = state_path(checkpoint, 0)
    content = {"cut": path.read_bytes()[:-100], "empty": b"", "rubbish": b"rubbish" * 100}[damage]
    path.write_bytes(content)
    with pytest.raises(SetupError, match=r"pods_state_0.safetensors' is damaged: .*Resume from an earlier checkpoint"):
        resume(model_path, checkpoint)


@pytest.mark.parametrize("num_rollouts", [4, 8])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"steps_per_generation": 2}, r"`steps_per_generation` 4 \(now 2\)"),
        ({"num_rollouts": 12}, r"`num_rollouts` \d \(now 12\)"),
        ({"num_generations": 2}, r"`num_generations` 4 \(now 2\)"),
        ({"beta": 0.1}, r"`beta` 0 \(now 0.1\)"),
    ],
)
def test_case_96_other_sizes_are_refused_within_a_generation_batch_alone(
    overrides, message, model_path, tmp_path, num_rollouts
):
    arguments = {"num_rollouts": num_rollouts, "steps_per_generation": 4, "beta": 0.0}
    make_trainer(model_path, tmp_path, max_steps=4, **arguments).train()
    changed = arguments | overrides
    resumed = resume(model_path, tmp_path / "checkpoint-4", max_steps=6, **changed)  # none is open there
    assert resumed.state.global_step == 6
    message += ".*Set what was, or `drop_open_generation_batch` to begin with a new one"
    with pytest.raises(SetupError, match=message):
        resume(model_path, tmp_path / "checkpoint-3", **changed)
    resumed = resume(model_path, tmp_path / "checkpoint-3", max_steps=6, drop_open_generation_batch=True, **changed)
    assert resumed.state.global_step == 6


def test_case_96_an_open_generation_batch_is_dropped_as_trl_drops_it(model_path, tmp_path):
    arguments = {"steps_per_generation": 4, "num_rollouts": 4, "zero_variance": "train"}
    make_trainer(model_path, tmp_path, max_steps=2, **arguments).train()
    resumed = resume(model_path, tmp_path / "checkpoint-2", max_steps=6, drop_open_generation_batch=True, **arguments)
    state_path(tmp_path / "checkpoint-2", 0).unlink()
    oracle = resume(model_path, tmp_path / "checkpoint-2", max_steps=6, **arguments)
    expected = tiny.trained_parameters(oracle)
    assert all(torch.equal(value, expected[name]) for name, value in tiny.trained_parameters(resumed).items())


def test_state_of_another_step_is_refused(model_path, tmp_path):
    make_trainer(model_path, tmp_path, steps_per_generation=4, max_steps=3).train()
    state_path(tmp_path / "checkpoint-2", 0).write_bytes(state_path(tmp_path / "checkpoint-1", 0).read_bytes())
    with pytest.raises(SetupError, match="is damaged: it is of step 1, the checkpoint of 2"):
        resume(model_path, tmp_path / "checkpoint-2")


def test_a_missing_part_of_several_is_named(model_path, checkpoint):
    state_path(checkpoint, 0).rename(state_path(checkpoint, 1))
    with pytest.raises(SetupError, match=r"pods_state_0.safetensors' is missing. Resume from another"):
        resume(model_path, checkpoint)


def test_checkpoint_without_state_goes_on_with_a_new_generation_batch_and_says_so(model_path, checkpoint, caplog):
    state_path(checkpoint, 0).unlink()
    assert resume(model_path, checkpoint).state.global_step == 3
    assert "holds no state of trl_pods" in caplog.text


def test_checkpoint_of_grpo_trainer_can_be_resumed(model_path, tmp_path, caplog):
    arguments = tiny.default_arguments(tmp_path, max_steps=1, save_strategy="steps", save_steps=1, beta=0.1)
    GRPOTrainer(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=GRPOConfig(**arguments),
        train_dataset=tiny.make_dataset(),
    ).train()
    assert resume(model_path, tmp_path / "checkpoint-1", steps_per_generation=1).state.global_step == 3
    assert "holds no state of trl_pods" in caplog.text


def test_true_resumes_from_the_last_checkpoint_that_is_complete(model_path, tmp_path, caplog):
    make_trainer(model_path, tmp_path, max_steps=3).train()
    (tmp_path / "checkpoint-3" / "trainer_state.json").unlink()  # as if the process had been killed while writing
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    trainer = make_trainer(model_path, tmp_path, max_steps=4)
    trainer.train(resume_from_checkpoint=True)
    assert "checkpoint-3' is skipped: it was not written to the end" in caplog.text
    assert [log["step"] for log in trainer.state.log_history if "reward" in log] == [2, 4]


def test_true_without_a_checkpoint_is_an_error(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path)
    with pytest.raises(ValueError, match="holds no complete checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "trainer_state.json").write_text("{")
    with pytest.raises(ValueError, match="holds no complete checkpoint"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.parametrize("content", ["[]", "{}", '{"log_history": {}}', "null"])
def test_a_log_that_is_something_else_is_refused(content, checkpoint, model_path):
    (checkpoint / "trainer_state.json").write_text(content)
    with pytest.raises(ValueError, match=r"its trainer_state.json cannot be read \(it has no `log_history` of steps\)"):
        resume(model_path, checkpoint)


def test_resuming_from_a_checkpoint_of_the_model_alone_warns_that_it_is_not_exact(model_path, tmp_path, caplog):
    make_trainer(model_path, tmp_path, max_steps=1, save_only_model=True).train()
    assert resume(model_path, tmp_path / "checkpoint-1").state.global_step == 3
    assert "holds no state of trl_pods" in caplog.text


@pytest.mark.parametrize("length", [{"max_steps": 3}, {"max_steps": 5}, {"max_steps": -1, "num_train_epochs": 1}])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_that_was_trained_to_its_end_is_not_trained_on(length, accumulation, model_path, tmp_path, caplog):
    caplog.set_level("INFO", "trl_pods")
    arguments = {"num_prompts": 5, "gradient_accumulation_steps": accumulation, "logging_steps": 1, **length}
    whole = make_trainer(model_path, tmp_path, **arguments)
    whole.train()
    resumed = make_trainer(model_path, tmp_path, **arguments)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == whole.state.global_step
    assert caplog.text.count("Nothing was left to train") == 1
    expected, found = tiny.trained_parameters(whole), tiny.trained_parameters(resumed)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert logged(resumed) == logged(whole)


def test_a_run_may_remove_the_checkpoint_that_it_was_resumed_from(model_path, tmp_path):
    make_trainer(model_path, tmp_path, max_steps=2, save_total_limit=1).train()
    make_trainer(model_path, tmp_path, max_steps=4, save_total_limit=1).train(resume_from_checkpoint=True)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]


def test_a_run_beside_checkpoints_of_another_is_warned_of(model_path, tmp_path, caplog):
    make_trainer(model_path, tmp_path, max_steps=2).train()
    assert "of an earlier training" not in caplog.text
    make_trainer(model_path, tmp_path, max_steps=3).train(resume_from_checkpoint=True)
    assert "of an earlier training" not in caplog.text
    make_trainer(model_path, tmp_path, max_steps=1).train()
    assert "holds 'checkpoint-3' of an earlier training, and this one starts from scratch" in caplog.text


def test_a_checkpoint_that_is_written_anew_is_not_complete_before_its_end(model_path, tmp_path, monkeypatch):
    make_trainer(model_path, tmp_path, max_steps=3).train()

    def full(*args, **kwargs):
        raise OSError("no space left")

    trainer = make_trainer(model_path, tmp_path, max_steps=3)
    monkeypatch.setattr(trainer, "save_model", full)
    with pytest.raises(OSError, match="no space left"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_adaptive_entropy_goes_on_where_its_file_was_not_yet_written(model_path, tmp_path):
    arguments = {"use_adaptive_entropy": True, "entropy_target": 10.0, "max_steps": 4}
    whole = make_trainer(model_path, tmp_path, **arguments)
    whole.train()
    (tmp_path / "checkpoint-2" / "entropy_ctrl_state.json").unlink(missing_ok=True)
    resumed = make_trainer(model_path, tmp_path / "resumed", **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.entropy_coef == whole.entropy_coef != whole.args.entropy_coef
    assert logged(resumed) == logged(whole)


def test_a_run_resumed_within_a_generation_batch_leaves_its_completions_table_as_it_was(model_path, tmp_path):
    arguments = {"steps_per_generation": 2, "logging_steps": 1, "log_completions": True, "max_steps": 4}
    make_trainer(model_path, tmp_path, **arguments).train()
    tables = {path: pandas.read_parquet(path) for path in sorted((tmp_path / "completions").iterdir())}
    make_trainer(model_path, tmp_path, **arguments).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert len(tables) == 4
    for path, table in tables.items():
        pandas.testing.assert_frame_equal(pandas.read_parquet(path), table)


def test_a_run_resumed_elsewhere_within_a_generation_batch_writes_the_same_tables(model_path, tmp_path):
    def judge(completions, log_extra, **kwargs):
        log_extra("note", [completion[:2] for completion in completions])
        return tiny.distinct_characters(completions)

    arguments = {"steps_per_generation": 6, "logging_steps": 3, "log_completions": True, "max_steps": 6}
    arguments |= {"reward_funcs": judge}
    make_trainer(model_path, tmp_path, **arguments).train()
    resumed = make_trainer(model_path, tmp_path / "resumed", **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    tables = sorted(path.name for path in (tmp_path / "completions").iterdir())
    assert len(tables) == 2
    for name in tables:
        expected, found = (
            pandas.read_parquet(folder / "completions" / name) for folder in (tmp_path, tmp_path / "resumed")
        )
        pandas.testing.assert_frame_equal(found, expected)


def test_warnings_go_on_counting(model_path, tmp_path, caplog):
    def equal_rewards(completions, **kwargs):
        return [1.0] * len(completions)

    def train(max_steps, **kwargs):
        trainer = PODSGRPOTrainer(
            model=model_path,
            reward_funcs=equal_rewards,
            args=PODSGRPOConfig(
                **tiny.default_arguments(
                    tmp_path, num_rollouts=8, max_steps=max_steps, save_strategy="steps", save_steps=1
                )
            ),
            train_dataset=tiny.make_dataset(),
        )
        trainer.train(**kwargs)

    train(3)
    assert "No learning signal" not in caplog.text
    train(5, resume_from_checkpoint=True)
    assert "No learning signal" in caplog.text  # after 5 generation batches in all


@pytest.fixture(scope="module")
def two_processes(model_path, tmp_path_factory):
    """Folder of a run of two processes, and of what was resumed from its checkpoints."""
    folder = tmp_path_factory.mktemp("two_processes")
    commands.torchrun(Path(__file__).with_name("resuming_worker.py"), model_path, folder)
    return folder


@pytest.mark.long
def test_two_processes_resume_at_any_step_bit_identically(two_processes):
    results = torch.load(two_processes / "results.pt")
    whole = results.pop("whole")
    assert sorted(results) == ["from 1", "from 2", "from 3", "from 4"]
    for start, found in results.items():
        assert all(torch.equal(found[name], whole[name]) for name in whole), start


@pytest.mark.long
def test_case_96_another_number_of_processes_is_refused_within_a_generation_batch_alone(two_processes, model_path):
    arguments = {"per_device_train_batch_size": 4, "steps_per_generation": 3}
    with pytest.raises(SetupError, match=r"`number of processes` 2 \(now 1\)"):
        resume(model_path, two_processes / "run" / "checkpoint-2", **arguments)
    arguments["max_steps"] = 6
    assert resume(model_path, two_processes / "run" / "checkpoint-3", **arguments).state.global_step == 6
    arguments["drop_open_generation_batch"] = True
    assert resume(model_path, two_processes / "run" / "checkpoint-2", **arguments).state.global_step == 6


@pytest.mark.long
def test_case_102_a_checkpoint_of_the_processes_of_one_machine_is_complete(two_processes, tmp_path):
    """With `save_on_each_node` the disk of a second machine holds the files of its own processes alone."""
    checkpoint = shutil.copytree(two_processes / "run" / "checkpoint-3", tmp_path / "checkpoint-3")
    for path in checkpoint.glob("*_0.*"):
        path.unlink()
    assert last_complete_checkpoint(tmp_path) == str(checkpoint)
    state_path(checkpoint, 1).unlink()
    state_path(checkpoint, 0).write_bytes(b"")
    assert last_complete_checkpoint(tmp_path) is None


@pytest.mark.long
def test_both_processes_are_told_that_the_part_of_one_is_damaged(two_processes):
    first, second = ((two_processes / f"refused.{rank}.txt").read_text() for rank in range(2))
    assert second.startswith("SetupError: ")
    assert "pods_state_1.safetensors' is damaged" in second
    assert first == f"SetupError: All processes stop, because process 1 raised {second}"


def test_a_folder_with_another_name_is_no_checkpoint(model_path, tmp_path):
    make_trainer(model_path, tmp_path, max_steps=2).train()
    (tmp_path / "checkpoint-2").rename(tmp_path / "checkpoint-2-broken")
    (tmp_path / "checkpoint-²").mkdir()
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")


@pytest.mark.parametrize("damaged", ["", "half", "folder", "of another process"])
def test_true_passes_over_a_checkpoint_whose_state_of_ours_is_damaged(damaged, checkpoint, caplog):
    shutil.copytree(checkpoint, checkpoint.with_name("checkpoint-1"))
    path = state_path(checkpoint, 0)
    content = path.read_bytes()
    if damaged == "of another process":
        path.rename(state_path(checkpoint, 1))
    else:
        path.unlink()
        path.mkdir() if damaged == "folder" else path.write_bytes(content[: len(content) // 2 if damaged else 0])
    assert last_complete_checkpoint(checkpoint.parent) == str(checkpoint.with_name("checkpoint-1"))
    assert "pods_state_" in caplog.text


def test_a_trainer_that_goes_on_after_an_error_logs_each_step_once(model_path, tmp_path):
    def judge(completions, **kwargs):
        calls.append(len(completions))
        if len(calls) == 6:
            raise RuntimeError("no judge")
        return tiny.distinct_characters(completions)

    def train(trainer, **kwargs):
        trainer.train(**kwargs)
        return logged(trainer)

    calls: list[int] = [0] * 10  # past the one that raises
    arguments = {"max_steps": 6, "logging_steps": 6, "save_steps": 2, "reward_funcs": judge}
    whole = train(make_trainer(model_path, tmp_path / "whole", **arguments))
    calls.clear()
    trainer = make_trainer(model_path, tmp_path / "run", **arguments)
    with pytest.raises(RuntimeError, match="no judge"):
        trainer.train()
    assert train(trainer, resume_from_checkpoint=True) == whole


def test_a_checkpoint_sets_nothing_but_what_it_is_for(model_path, checkpoint):
    path = state_path(checkpoint, 0)
    state, tensors = read_state(path)
    state["entropy_control"] |= {"temperature": 99.0, "hub_model_id": "someone/else"}
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    save_file(tensors | {"state": text}, path)
    trainer = resume(model_path, checkpoint)
    assert trainer.temperature == 1.0 and trainer.hub_model_id != "someone/else"


@pytest.mark.long
def test_processes_that_would_go_on_from_different_checkpoints_stop(two_processes):
    for rank in range(2):
        said = (two_processes / f"disagreed.{rank}.txt").read_text()
        assert re.match(r"ValueError: `resume_from_checkpoint` means another .*checkpoint-3.*checkpoint-4", said), said
