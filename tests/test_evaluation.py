"""Evaluation is TRL's: every completion counts, and none is dropped."""

import pytest
import tiny
from recording import Judge, assert_aligned, expected_score, make_trainer


@pytest.fixture
def judge() -> Judge:
    return Judge()


def evaluate_with(model_path, judge, output_dir, **arguments):
    arguments = {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": tiny.make_dataset(6)} | arguments
    return make_trainer(model_path, judge, output_dir, **arguments)


def assert_all_evaluated(trainer, judge, calls: list[int]) -> None:
    """Every row that the judge saw in these calls is in the loss, and its reward in the logged mean."""
    rows = [row for inputs in trainer.evaluated for row in trainer.rows(inputs)]
    judged = [judge.calls[i] for i in calls]
    assert len(trainer.evaluated) == len(calls)
    assert [(row["number"], row["completion"]) for row in rows] == [key for call in judged for key in call]
    assert [expected_score(row) for row in rows] == [reward for call in judged for reward in call.values()]


@pytest.mark.feature("evaluation")
def test_case_78_evaluation_between_steps_keeps_all_rows(model_path, judge, tmp_path):
    trainer = evaluate_with(
        model_path, judge, tmp_path, num_generations_eval=1, per_device_eval_batch_size=3, eval_on_start=True
    )
    trainer.train()
    # Two batches of 3 rows before training, and after each of two steps of 16.
    assert judge.num_rows == [3, 3, 16, 3, 3, 16, 3, 3]
    assert_all_evaluated(trainer, judge, [0, 1, 3, 4, 6, 7])
    means = [sum([*judge.calls[i].values(), *judge.calls[i + 1].values()]) / 6 for i in (0, 3, 6)]
    assert trainer.logged("eval_reward") == pytest.approx(means, abs=1e-6)
    judge.calls = [judge.calls[2], judge.calls[5]]
    assert_aligned(trainer, judge)


def test_evaluation_groups_have_num_generations_eval_rows(model_path, judge, tmp_path):
    trainer = evaluate_with(
        model_path, judge, tmp_path, num_generations_eval=2, per_device_eval_batch_size=4, eval_steps=2
    )
    trainer.train()
    assert judge.num_rows == [16, 16, 4, 4, 4]
    numbers = [number for call in judge.calls[2:] for number, _ in call]
    assert sorted(numbers) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5] and numbers[::2] == numbers[1::2]
    assert_all_evaluated(trainer, judge, [2, 3, 4])


def test_evaluation_groups_default_to_the_trained_rows(model_path, judge, tmp_path):
    trainer = evaluate_with(model_path, judge, tmp_path, per_device_eval_batch_size=8, eval_steps=2)
    trainer.train()
    assert judge.num_rows == [16, 16, 8, 8, 8]
    assert_all_evaluated(trainer, judge, [2, 3, 4])


def test_case_78_evaluation_batches_that_split_a_group_are_refused(model_path, judge, tmp_path):
    trainer = evaluate_with(model_path, judge, tmp_path, eval_strategy="no", per_device_eval_batch_size=3)
    with pytest.raises(ValueError, match=r"`per_device_eval_batch_size` is 3: .* groups of 4 .*Use a multiple of 4"):
        trainer.evaluate()
    assert judge.num_rows == []


def test_case_78_evaluate_before_training_leaves_training_as_it_was(model_path, judge, tmp_path):
    trainer = evaluate_with(
        model_path, judge, tmp_path, eval_strategy="no", per_device_eval_batch_size=4, num_generations_eval=1
    )
    metrics = trainer.evaluate()
    assert judge.num_rows == [4, 2]
    assert_all_evaluated(trainer, judge, [0, 1])
    assert not any(key.startswith("eval_pods/") for key in metrics)
    trainer.train()
    judge.calls = judge.calls[2:]
    assert_aligned(trainer, judge)
