"""What a run leaves behind: its record, its log by generation batches, its checkpoints."""

import dataclasses

import pytest
import tiny

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.checks.errors import SetupError
from trl_pods.runs.log import last_checkpoint_with_log, read_log
from trl_pods.runs.record import FILE, RunRecord, whole_batches


@pytest.fixture(scope="module")
def run(model_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    arguments = {"num_rollouts": 8, "steps_per_generation": 2, "save_strategy": "steps", "save_steps": 1}
    PODSGRPOTrainer(
        model=model_path,
        reward_funcs=tiny.distinct_characters,
        args=PODSGRPOConfig(**tiny.default_arguments(folder, **arguments)),
        train_dataset=tiny.make_dataset(),
    ).train()
    return folder


def test_training_writes_what_it_was(run, model_path):
    record = RunRecord.read(run)
    assert (record.num_prompts, record.num_rollouts, record.num_generations) == (4, 8, 4)
    assert (record.steps_per_generation, record.gradient_accumulation_steps, record.num_processes) == (2, 1, 1)
    assert record.reward_names == ["distinct_characters"] and record.reward_weights == [1.0]
    assert record.model == model_path and record.device.startswith("cpu")
    assert record.versions.keys() == {"trl_pods", "trl", "transformers", "torch"}


def test_record_is_read_as_it_was_written(run, tmp_path):
    record = RunRecord.read(run)
    record.write(tmp_path / "new")
    assert RunRecord.read(tmp_path / "new") == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"num_prompts": 1}'])
def test_record_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SetupError, match=r"is no record of a run that this version can read"):
        RunRecord.read(tmp_path)


def test_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(SetupError, match=r"holds no pods_run.json"):
        RunRecord.read(tmp_path)


def test_log_is_that_of_the_last_checkpoint_where_training_did_not_end(run):
    assert [entry["step"] for entry in read_log(run) if "loss" in entry] == [1, 2]


def test_log_that_is_cut_off_gives_way_to_that_of_the_last_checkpoint(tmp_path, caplog):
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text('{"log_history": [{"step": 2}]}')
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"step": 2}, {"st')
    assert read_log(tmp_path) == [{"step": 2}]
    assert "trainer_state.json cannot be read, so the log of the last checkpoint counts" in caplog.text


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_log_that_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "trainer_state.json").write_text(text)
    with pytest.raises(SetupError, match=r"is no log of a training"):
        read_log(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ({"steps_per_generation": 1}, [[1], [2], [4], [5]]),
        ({"steps_per_generation": 2}, [[1, 2], [4]]),
        ({"steps_per_generation": 2, "num_iterations": 2}, [[1, 2, 4]]),
        ({"steps_per_generation": 1, "gradient_accumulation_steps": 2}, [[1], [2], [4], [5]]),
    ],
)
def test_entries_are_grouped_by_whole_generation_batches(run, sizes, groups):
    usual = {"steps_per_generation": 1, "gradient_accumulation_steps": 1, "num_iterations": 1}
    record = dataclasses.replace(RunRecord.read(run), **usual | sizes)
    entries = [{"step": step} for step in (1, 2, 4, 5)]
    assert [[entry["step"] for entry in group] for group in whole_batches(entries, record)] == groups


@pytest.mark.parametrize("content", [None, "", '{"log_hist'])
def test_checkpoint_whose_log_is_missing_or_cut_is_passed_over(tmp_path, content, caplog):
    for step in (2, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text('{"log_history": []}')
    assert last_checkpoint_with_log(tmp_path) == str(tmp_path / "checkpoint-10")
    log = tmp_path / "checkpoint-10" / "trainer_state.json"
    log.unlink() if content is None else log.write_text(content)
    assert last_checkpoint_with_log(tmp_path) == str(tmp_path / "checkpoint-2")
    assert "checkpoint-10' is skipped" in caplog.text
    assert last_checkpoint_with_log(tmp_path / "nothing") is None


@pytest.mark.parametrize("entry", ["1", '"x"', "{}", "null"])
def test_a_log_with_something_else_among_its_entries_is_refused(entry, tmp_path):
    (tmp_path / "trainer_state.json").write_text(f'{{"log_history": [{{"step": 1}}, {entry}]}}')
    with pytest.raises(SetupError, match=r"is no log of a training: .*`log_history` of steps"):
        read_log(tmp_path)


def test_what_is_no_number_is_left_out_of_a_log(tmp_path):
    (tmp_path / "trainer_state.json").write_text(
        '{"log_history": [{"step": 1, "reward": "abc", "loss": null, "kl": 2}]}'
    )
    assert read_log(tmp_path) == [{"step": 1, "kl": 2}]
