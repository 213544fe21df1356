"""What users of GRPO trainers run into with rewards (issues of TRL and others), one test each, with n > m."""

import asyncio
import json
import math

import pytest
import tiny
import torch
from recording import assert_aligned, expected_score, groups_of, make_trainer, number_in, score
from versions import takes_async_callables

from trl_pods.checks.learning_signal import PATIENCE
from trl_pods.rewards import REWARDS, accuracy_reward, format_reward

Judged = dict[tuple, float | None]


class Recorder:
    """A reward function that keeps what it gave each row, by number in the prompt and completion."""

    def __init__(self, reward_of):
        self.rewards: Judged = {}
        self._reward_of = reward_of

    def __call__(self, prompts, completion_ids, **kwargs):
        rows = [(number_in(prompt), tuple(ids)) for prompt, ids in zip(prompts, completion_ids, strict=True)]
        given = [self._reward_of(i, number, ids) for i, (number, ids) in enumerate(rows)]
        self.rewards |= zip(rows, given, strict=True)
        return given


def trained_rows(trainer) -> list[dict]:
    return [row for inputs in trainer.trained for row in trainer.rows(inputs)]


def warned(caplog, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_case_21_a_function_that_skips_rows_leaves_all_metrics_finite(model_path, tmp_path):
    recorder = Recorder(lambda i, number, ids: None if number % 2 else score(*ids))
    trainer = make_trainer(model_path, [recorder, tiny.distinct_characters], tmp_path, max_steps=4, logging_steps=4)
    trainer.train()
    log = trainer.state.log_history[0]
    assert all(math.isfinite(value) for value in log.values())
    json.dumps(log, allow_nan=False)
    given = [reward for reward in recorder.rewards.values() if reward is not None]
    assert 0 < len(given) < len(recorder.rewards)
    assert log["rewards/Recorder/mean"] == pytest.approx(sum(given) / len(given), abs=0.1)  # averaged over batches


@pytest.mark.parametrize(("unscored_per_group", "unscored_kept"), [(2, 0), (4, 0), (5, 1)])
def test_case_22_rows_without_any_reward_are_kept_last_and_do_not_teach(
    unscored_per_group, unscored_kept, model_path, tmp_path
):
    recorder = Recorder(lambda i, number, ids: None if i % 8 < unscored_per_group else score(*ids))
    trainer = make_trainer(model_path, recorder, tmp_path)
    trainer.train()
    for inputs in trainer.trained:
        for group in groups_of(trainer.rows(inputs)):
            given = [recorder.rewards[row["number"], row["completion"]] for row in group]
            assert given.count(None) == unscored_kept
            assert all((row["advantage"] == 0) == (reward is None) for row, reward in zip(group, given))
    json.dumps(trainer.state.log_history, allow_nan=False)  # a mean over no row is None, as in TRL
    assert all(parameter.isfinite().all() for parameter in tiny.trained_parameters(trainer).values())


def test_case_23_one_missing_reward_does_not_poison_normalize_then_sum(model_path, tmp_path):
    first = Recorder(lambda i, number, ids: None if i == 0 else score(*ids))
    second = Recorder(lambda i, number, ids: 10 * score("second", *ids))
    trainer = make_trainer(model_path, [first, second], tmp_path, multi_objective_aggregation="normalize_then_sum")
    trainer.train()
    rows = trained_rows(trainer)
    assert all(math.isfinite(row["advantage"]) for row in rows) and any(row["advantage"] for row in rows)
    assert all(math.isfinite(loss) for loss in trainer.losses)
    # Selection is on the weighted sum.
    total = {key: (first.rewards[key] or 0.0) + reward for key, reward in second.rewards.items()}
    for inputs in trainer.trained:
        for group in groups_of(trainer.rows(inputs)):
            kept = {row["completion"] for row in group}
            sampled = {ids: reward for (number, ids), reward in total.items() if number == group[0]["number"]}
            assert {max(sampled, key=sampled.__getitem__), min(sampled, key=sampled.__getitem__)} <= kept


@pytest.mark.parametrize("difference", ["one", "fewer", "more"])
@pytest.mark.parametrize("is_async", [False, True])
def test_case_24_a_wrong_number_of_rewards_is_refused(is_async, difference, model_path, tmp_path):
    def miscounting(completions, **kwargs):
        return [1.0] * {"one": 1, "fewer": len(completions) - 1, "more": len(completions) + 1}[difference]

    async def miscounting_later(**kwargs):
        return miscounting(**kwargs)

    number = {"one": 1, "fewer": 15, "more": 17}[difference]
    trainer = make_trainer(model_path, miscounting_later if is_async else miscounting, tmp_path)
    with pytest.raises(ValueError, match=rf"'miscounting\w*' returned {number} rewards, but 16 were expected"):
        trainer.train()


@pytest.mark.parametrize("num_rollouts", [4, 8])
@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda completions, **kwargs: ["1.0"] * len(completions), r"returned a `str`, '1\.0'"),
        (lambda completions, **kwargs: 1.0, r"returned a `float`, 1\.0\. Return a list with one number"),
        (lambda completions, **kwargs: dict.fromkeys(range(len(completions)), 1.0), "returned a `dict`"),
        (lambda completions: [1.0] * len(completions), r"Add `\*\*kwargs`"),
    ],
)
def test_case_26_a_message_names_the_reward_function_and_the_fix(reward, message, num_rollouts, model_path, tmp_path):
    reward.__name__ = "my_reward"
    trainer = make_trainer(model_path, reward, tmp_path, num_rollouts=num_rollouts)
    with pytest.raises(ValueError, match=rf"^The reward function 'my_reward' .*{message}"):
        trainer.train()


@pytest.mark.parametrize("convert", [torch.tensor, iter, tuple], ids=["tensor", "generator", "tuple"])
def test_case_26_other_sequences_of_numbers_work(convert, model_path, tmp_path):
    recorder = Recorder(lambda i, number, ids: score(number, number, ids))

    def reward(**kwargs):
        return convert(recorder(**kwargs))

    trainer = make_trainer(model_path, reward, tmp_path)
    trainer.train()
    assert_aligned(trainer, reward_of=expected_score)


def test_case_26_an_error_of_the_reward_function_is_its_own(model_path, tmp_path):
    def broken(completions, **kwargs):
        return [float("high") for _ in completions]

    trainer = make_trainer(model_path, broken, tmp_path)
    with pytest.raises(ValueError, match=r"^could not convert string to float: 'high'$"):
        trainer.train()


def test_case_27_a_column_that_does_not_reach_the_reward_is_named_with_the_way_out(model_path, tmp_path):
    def needs_target(completions, target, **kwargs):
        return [float(t) for t in target]

    def needs_solution(completions, solution, **kwargs):
        raise AssertionError

    trainer = make_trainer(model_path, needs_target, tmp_path, remove_unused_columns=True)
    with pytest.raises(ValueError, match=r"'needs_target' needs 'target'.*columns \[\].*`remove_unused_columns=False`"):
        trainer.train()
    trainer = make_trainer(model_path, needs_solution, tmp_path)
    with pytest.raises(ValueError, match=r"'needs_solution' needs 'solution'.*only the columns \['target'\]"):
        trainer.train()
    make_trainer(model_path, needs_target, tmp_path).train()  # False is TRL's default


def test_case_29_logs_selection_and_advantages_use_the_same_weighted_sum(model_path, tmp_path):
    first = Recorder(lambda i, number, ids: score("first", *ids))
    second = Recorder(lambda i, number, ids: 3 * score("second", *ids))
    trainer = make_trainer(model_path, [first, second], tmp_path, reward_weights=[2.0, -1.0], max_steps=1)
    trainer.train()
    total = {key: 2 * reward - second.rewards[key] for key, reward in first.rewards.items()}
    assert trainer.logged("reward") == [pytest.approx(sum(total.values()) / 16, rel=1e-4)]
    assert_aligned(trainer, reward_of=lambda row: total[row["number"], row["completion"]])
    for group in groups_of(trainer.rows(trainer.trained[0])):
        kept = {row["completion"] for row in group}
        sampled = {ids: reward for (number, ids), reward in total.items() if number == group[0]["number"]}
        assert {max(sampled, key=sampled.__getitem__), min(sampled, key=sampled.__getitem__)} <= kept


def test_case_29_rewards_that_cancel_carry_no_signal_and_are_shown_so(model_path, tmp_path):
    def opposite(completions, **kwargs):
        return tiny.distinct_characters(completions)

    trainer = make_trainer(
        model_path, [tiny.distinct_characters, opposite], tmp_path, reward_weights=[1.0, -1.0], max_steps=1
    )
    trainer.train()
    assert trainer.logged("reward") == trainer.logged("reward_std") == [0.0]
    assert trainer.logged("frac_reward_zero_std") == trainer.logged("pods/kept_frac_zero_std") == [1.0]
    assert all(row["advantage"] == 0 for row in trained_rows(trainer))


class AsyncReward(Recorder):
    async def __call__(self, **kwargs):
        await asyncio.sleep(0)
        return super().__call__(**kwargs)


@pytest.mark.parametrize("form", ["function", pytest.param("callable object", marks=takes_async_callables)])
def test_case_31_async_rewards_work_inside_a_running_loop_as_in_a_notebook(form, model_path, tmp_path):
    reward = AsyncReward(lambda i, number, ids: score(number, number, ids))

    async def function(**kwargs):
        return await reward(**kwargs)

    async def cell():
        trainer = make_trainer(model_path, function if form == "function" else reward, tmp_path)
        trainer.train()
        assert trainer.async_loop is not asyncio.get_running_loop()
        return trainer

    trainer = asyncio.run(cell())
    assert len(reward.rewards) == 2 * 16
    assert_aligned(trainer, reward_of=expected_score)


@pytest.mark.parametrize("kind", [ConnectionError, TypeError])
def test_case_31_an_exception_of_an_async_reward_surfaces(kind, model_path, tmp_path):
    async def judge(completions, **kwargs):
        raise kind("the judge is down")

    trainer = make_trainer(model_path, [tiny.distinct_characters, judge], tmp_path)
    with pytest.raises(kind, match=r"^the judge is down$"):
        trainer.train()


@pytest.mark.parametrize("conversational", [False, True])
def test_case_32_completions_keep_trls_format_and_built_in_rewards_take_both(conversational, model_path, tmp_path):
    seen = []

    def reward(prompts, completions, **kwargs):
        texts = [completion[0]["content"] if conversational else completion for completion in completions]
        seen.extend(zip(prompts, completions, strict=True))
        return [float(len(set(text))) for text in texts]

    entry = json.dumps({"question": "2 + 2 =", "answer": "4", "metadata": {}})
    dataset = tiny.make_dataset(conversational=conversational)
    dataset = dataset.map(lambda row: {"solution": "#### 4", "task": "basic_arithmetic", "entry": entry})
    functions = [reward, accuracy_reward, *REWARDS.values()]
    trainer = make_trainer(model_path, functions, tmp_path, train_dataset=dataset)
    trainer.train()
    kinds = {(type(prompt), type(completion)) for prompt, completion in seen}
    assert kinds == ({(list, list)} if conversational else {(str, str)})
    assert len(seen) == 2 * 16
    assert any(row["advantage"] for row in trained_rows(trainer))


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_33_a_reward_that_is_constant_by_mistake_is_warned_of_once(num_rollouts, model_path, tmp_path, caplog):
    arguments = {"num_rollouts": num_rollouts, "max_steps": 2 * PATIENCE}
    trainer = make_trainer(model_path, format_reward, tmp_path, **arguments)
    trainer.train()
    [warning] = warned(caplog, "No learning signal")
    assert "mean reward 0)" in warning and "prefills `<think>`" in warning
    assert trainer.logged("frac_reward_zero_std") == [1.0] * 2 * PATIENCE


def test_case_33_kept_rollouts_of_equal_reward_are_warned_of(model_path, tmp_path, caplog):
    best_half = Recorder(lambda i, number, ids: float(i % 8 < 4))
    trainer = make_trainer(model_path, best_half, tmp_path, down_sampling="max_reward", max_steps=PATIENCE)
    trainer.train()
    [warning] = warned(caplog, "No learning signal")
    assert "`down_sampling='max_reward'`" in warning
    assert all(row["advantage"] == 0 for row in trained_rows(trainer))


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_34_completions_that_are_all_cut_are_warned_of_once(num_rollouts, model_path, tmp_path, caplog):
    arguments = {"num_rollouts": num_rollouts, "max_steps": 2 * PATIENCE, "max_completion_length": 1}
    arguments["generation_kwargs"] = {"suppress_tokens": [0, 1]}  # so that no completion ends by itself
    trainer = make_trainer(model_path, tiny.distinct_characters, tmp_path, **arguments)
    trainer.train()
    assert trainer.logged("completions/clipped_ratio") == [1.0] * 2 * PATIENCE
    [warning] = warned(caplog, "max_completion_length")
    assert "`max_completion_length` (1 tokens)" in warning and "Raise `max_completion_length`" in warning
