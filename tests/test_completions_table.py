"""The completions table, extra columns and extra metrics describe all n rollouts, row by row."""

import io
import math
import re
from pathlib import Path

import pandas as pd
import pytest
import tiny
import torch
from recording import Judge, make_trainer, number_in
from transformers import TrainerCallback


def read_tables(output_dir, names="completions_*.parquet") -> list[pd.DataFrame]:
    return [pd.read_parquet(file) for file in sorted(Path(output_dir, "completions").glob(names))]


def logging_judge(extra_calls=None):
    """A judge that logs its rows' completions as extra columns, `sometimes` in the given calls only."""
    judge = Judge()

    def judge_and_log(prompts, completions, log_extra, log_metric, **kwargs):
        log_extra("echo", [f"{number_in(prompt)}:{completion}" for prompt, completion in zip(prompts, completions)])
        log_metric("longest", float(max(map(len, completions))))
        rewards = judge(prompts=prompts, completions=completions, **kwargs)
        if extra_calls is not None and len(judge.calls) in extra_calls:
            log_extra("sometimes", rewards)
        return rewards

    return judge, judge_and_log


def assert_kept_rows_are_the_trained_ones(trainer, table: pd.DataFrame, inputs: dict) -> None:
    assert table["kept"].dtype == bool
    assert table["advantage"].isna().tolist() == (~table["kept"]).tolist()
    decode = trainer._tokenizer.decode
    trained = sorted(
        (row["number"], decode(row["completion"], skip_special_tokens=True), row["advantage"])
        for row in trainer.rows(inputs)
    )
    kept = table[table["kept"]]
    logged = sorted(zip(kept["prompt"].map(number_in), kept["completion"], kept["advantage"], strict=True))
    assert [row[:2] for row in logged] == [row[:2] for row in trained]
    torch.testing.assert_close([row[2] for row in logged], [row[2] for row in trained])


@pytest.mark.feature("`log_completions`")
@pytest.mark.parametrize("advantage_statistics", ["kept", "all"])
def test_case_46_the_table_holds_all_rollouts_and_trained_advantages(advantage_statistics, model_path, tmp_path):
    judge, judge_and_log = logging_judge()
    trainer = make_trainer(
        model_path,
        judge_and_log,
        tmp_path,
        log_completions=True,
        advantage_statistics=advantage_statistics,
        max_steps=3,
    )
    trainer.train()
    found = read_tables(tmp_path)
    assert [len(table) for table in found] == [16] * 3
    for table, inputs, judged in zip(found, trainer.trained, judge.calls, strict=True):
        assert table["kept"].groupby(table["prompt"]).sum().tolist() == [4, 4]
        assert_kept_rows_are_the_trained_ones(trainer, table, inputs)
        assert table["judge_and_log"].tolist() == pytest.approx(list(judged.values()))
        echo = [f"{number_in(prompt)}:{text}" for prompt, text in zip(table["prompt"], table["completion"])]
        assert table["echo"].tolist() == echo


def test_a_table_of_several_trained_batches_holds_the_generation_batch(model_path, tmp_path):
    judge, judge_and_log = logging_judge()
    arguments = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "max_steps": 8}
    trainer = make_trainer(model_path, judge_and_log, tmp_path, log_completions=True, **arguments)
    trainer.train()
    found = read_tables(tmp_path)
    assert [len(table) for table in found] == [16] * 8
    for step, table in enumerate(found):
        assert table["judge_and_log"].tolist() == pytest.approx(list(judge.calls[step // 4].values()))
        assert table["kept"].sum() == 8


def test_a_column_that_only_some_calls_log_stays_in_line(model_path, tmp_path):
    judge, judge_and_log = logging_judge(extra_calls={1, 3})
    trainer = make_trainer(model_path, judge_and_log, tmp_path, log_completions=True, max_steps=4)
    trainer.train()
    for step, table in enumerate(read_tables(tmp_path), start=1):
        assert ("sometimes" in table) == (step in {1, 3})
        if step in {1, 3}:
            assert table["sometimes"].tolist() == pytest.approx(table["judge_and_log"].tolist())


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_111_an_evaluation_has_a_table_of_its_own(num_rollouts, model_path, tmp_path):
    """Two evaluation batches each, in the midst of a generation batch and at its end."""
    judge, judge_and_log = logging_judge()
    trainer = make_trainer(
        model_path,
        judge_and_log,
        tmp_path,
        num_rollouts=num_rollouts,
        eval_dataset=tiny.make_dataset(6),
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=3,
        num_generations_eval=1,
        log_completions=True,
        steps_per_generation=2,
        per_device_train_batch_size=4,
        max_steps=4,
    )
    trainer.train()
    of_training, of_evaluation = read_tables(tmp_path), read_tables(tmp_path, "eval_completions_*.parquet")
    assert [table["step"][0] for table in of_training] == [table["step"][0] for table in of_evaluation] == [1, 2, 3, 4]
    for table in of_training:
        assert len(table) == 2 * num_rollouts and table["kept"].sum() == 8
    for table in of_evaluation:
        echo = [f"{number_in(prompt)}:{text}" for prompt, text in zip(table["prompt"], table["completion"])]
        assert len(table) == 6 and table["echo"].tolist() == echo
        assert table["kept"].all() and not table["trained"].any() and table["advantage"].notna().all()


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_104_what_cannot_be_logged_is_lost_and_training_goes_on(num_rollouts, model_path, tmp_path, caplog):
    def first(completions, log_extra, log_metric, **kwargs):
        log_extra("note", ["first"] * len(completions))
        log_extra("number", 3)
        log_extra("short", [1])
        log_metric("nothing", None)
        log_metric("text", "many")
        log_metric("right", torch.tensor(2))
        return [float(len(set(completion))) for completion in completions]

    def second(completions, log_extra, **kwargs):
        log_extra("note", (f"second {completion}" for completion in completions))
        return [0.0] * len(completions)

    arguments = {"num_rollouts": num_rollouts, "eval_dataset": tiny.make_dataset(4), "log_completions": True}
    trainer = make_trainer(model_path, [first, second], tmp_path, max_steps=3, **arguments)
    trainer.train()
    trainer.evaluate()
    assert trainer.logged("right") == [2.0] * 3 and trainer.logged("nothing") == [None] * 3
    for table in [*read_tables(tmp_path), *read_tables(tmp_path, "eval_completions_*.parquet")]:
        assert table["note"].tolist() == [f"second {completion}" for completion in table["completion"]]
        assert table["number"].isna().all() and table["short"].isna().all()
    lost = [record.message for record in caplog.records if "is lost" in record.message]
    assert [re.search("'(.*?)'", message).group(1) for message in lost] == ["nothing", "text", "number", "short"]


def test_case_105_a_console_without_the_characters_costs_the_table_and_is_said_once(
    model_path, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="cp1252"))

    def judge(completions, log_extra, **kwargs):
        log_extra("note", ["∑"] * len(completions))  # which the printed table shows
        return [float(len(set(completion))) for completion in completions]

    trainer = make_trainer(model_path, judge, tmp_path, log_completions=True, max_steps=3)
    trainer.train()
    assert trainer.state.global_step == 3
    assert caplog.text.count("completions table") == 1 and "print to a console of UTF-8" in caplog.text


def test_texts_are_gathered_for_tables_that_are_logged(model_path, tmp_path, monkeypatch):
    gathered = []

    def gather(values):
        gathered.append(values)
        return values

    monkeypatch.setattr("trl_pods.downsampling.completions_table.gather_object", gather)
    trainer = make_trainer(model_path, Judge(), tmp_path, log_completions=True, max_steps=4, logging_steps=2)
    trainer.train()
    assert sum(len(values) == 16 for values in gathered) == 2 * 2  # prompts and completions of 2 tables, of 4 batches
    assert [len(table) for table in read_tables(tmp_path)] == [16] * 2


def test_conversational_tables_name_every_rollout(model_path, tmp_path):
    dataset = tiny.make_dataset(conversational=True)
    trainer = make_trainer(model_path, Judge(), tmp_path, train_dataset=dataset, log_completions=True)
    trainer.train()
    for table in read_tables(tmp_path):
        assert len(table) == 16 and table["kept"].sum() == 8
        rewards = {
            (row["number"], row["completion"]): row["advantage"]
            for row in trainer.rows(trainer.trained[table["step"][0] - 1])
        }
        assert sorted(table["advantage"].dropna()) == pytest.approx(sorted(rewards.values()))


def test_log_metric_is_averaged_over_all_rollouts(model_path, tmp_path):
    judge, judge_and_log = logging_judge()
    trainer = make_trainer(model_path, judge_and_log, tmp_path)
    trainer.train()
    assert len(trainer.logged("longest")) == 2 and all(math.isfinite(value) for value in trainer.logged("longest"))
    means = [sum(call.values()) / 16 for call in judge.calls]
    assert trainer.logged("reward") == pytest.approx(means)


def test_a_column_of_numbers_and_text_costs_the_table_and_not_the_run(model_path, tmp_path, caplog):
    def judge(completions, log_extra, **kwargs):
        log_extra("note", ["text", *range(len(completions) - 1)])
        return [float(len(completion)) for completion in completions]

    trainer = make_trainer(model_path, judge, tmp_path, log_completions=True)
    trainer.train()
    assert trainer.state.global_step == 2
    assert "The completions table of step 1 is lost" in caplog.text
    assert "'note'" in caplog.text or "column note" in caplog.text
    assert not list(tmp_path.glob("completions/*.parquet"))


def test_an_error_of_a_logger_is_not_taken_for_a_lost_table(model_path, tmp_path):
    class FullLogger(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            if "train_runtime" in logs:
                raise OSError("no room for the logger")

    trainer = make_trainer(model_path, Judge(), tmp_path, log_completions=True)
    trainer.add_callback(FullLogger())
    with pytest.raises(OSError, match="no room for the logger"):
        trainer.train()
    assert [table["step"][0] for table in read_tables(tmp_path)] == [1, 2]
