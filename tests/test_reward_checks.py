"""What reward functions may return, with plain TRL as the oracle, and how they are declared."""

import functools
import math

import numpy as np
import pytest
import tiny
import torch
from recording import make_trainer
from trl import GRPOConfig, GRPOTrainer

from trl_pods.checks import reward_functions as reward_checks
from trl_pods.checks.reward_functions import check_rewards, check_signature

KEYWORDS = ("target", "trainer_state", "log_extra", "log_metric", "prompts", "completions", "completion_ids")

VALUES = [1.0, 0.0, 2.0**24 + 1]


@pytest.mark.parametrize(
    "rewards",
    [
        VALUES,
        tuple(VALUES),
        torch.tensor(VALUES),
        torch.tensor(VALUES, dtype=torch.float64),
        np.array(VALUES),
        np.array([1, 0, 2**24 + 1]),
        [np.float64(value) for value in VALUES],
        [torch.tensor(value) for value in VALUES],
        [True, False, 2**24 + 1],
        (value for value in VALUES),
        map(float, VALUES),
    ],
    ids=lambda rewards: type(rewards).__name__,
)
def test_what_trl_takes_is_taken_with_the_same_values(rewards):
    assert check_rewards("f", rewards, 3) == torch.tensor(VALUES, dtype=torch.float32).tolist()


def test_none_and_nan_are_missing_rewards():
    assert [math.isnan(reward) for reward in check_rewards("f", [None, math.nan, 1], 3)] == [True, True, False]
    assert check_rewards("f", np.array([True, False]), 2) == [1.0, 0.0]
    assert check_rewards("f", [math.inf], 1) == [math.inf]


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (["1.0", "0.0"], r"'f' returned a `str`, '1.0' as the reward of completion 0\. Return a list with one number"),
        ([1.0, [0.0]], r"'f' returned a `list`, \[0.0\] as the reward of completion 1\."),
        ([[1.0], [0.0]], r"returned a `list`, \[1.0\] as the reward of completion 0"),
        ([1.0, 1j], r"returned a `complex`, 1j"),
        ([1.0, {"reward": 1}], r"returned a `dict`"),
        (torch.ones(2, 2), r"returned a `Tensor`.*as the reward of completion 0"),
        (1.0, r"'f' returned a `float`, 1\.0\. Return a list"),
        (torch.tensor(1.0), r"returned a `Tensor`, tensor\(1\.\)\. Return a list"),
        (None, r"returned a `NoneType`, None"),
        ("11", r"returned a `str`, '11'\."),
        ({0: 1.0, 1: 0.0}, r"returned a `dict`, \{0: 1\.0, 1: 0\.0\}"),
        ({0.0, 1.0}, r"returned a `set`"),
        ([1.0], r"'f' returned 1 rewards, but 2 were expected: a `list`, \[1\.0\]\. .*`num_rollouts` of each prompt"),
        ([1.0] * 3, r"returned 3 rewards, but 2 were expected"),
        ([10**400, 1], r"returned a `int`, 10{10,}\.\.\.0+ as the reward of completion 0"),
    ],
)
def test_what_trl_cannot_use_is_refused_with_the_function_the_value_and_the_fix(rewards, message):
    with pytest.raises(ValueError, match=message):
        check_rewards("f", rewards, 2)


def test_a_coroutine_is_refused():
    async def rewards():
        return [1.0]

    with pytest.raises(ValueError, match=r"'f' returned a coroutine.*Declare it as an `async def` function"):
        check_rewards("f", rewards(), 1)


def test_an_error_inside_a_generator_is_its_own():
    def rewards():
        yield 1.0
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        check_rewards("f", rewards(), 2)


class Callable:
    def __call__(self, completions, target, **kwargs):
        return [0.0] * len(completions)


@pytest.mark.parametrize(
    "function",
    [
        lambda **kwargs: [],
        lambda completions, **kwargs: [],
        lambda completions, solution=None, **kwargs: [],
        lambda prompts, completions, completion_ids, target, trainer_state, log_extra, log_metric: [],
        functools.partial(lambda completions, solution, **kwargs: [], solution=1),
        Callable(),
        Callable().__call__,
        functools.wraps(tiny.distinct_characters)(lambda *args, **kwargs: []),
        max,
    ],
)
def test_what_trl_can_call_is_let_through(function):
    check_signature("f", function, KEYWORDS)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda completions, solution, **kwargs: [],
            r"'f' needs 'solution', but beside \['trainer_state', .*'completion_ids'\] it gets only the columns "
            r"\['target'\]\. Name the column .* `remove_unused_columns=False`\.",
        ),
        (lambda completion, answer: [], "'f' needs 'completion' and 'answer'"),
        (
            lambda completions, target: [],
            r"'f' does not take \['trainer_state', 'log_extra', 'log_metric', 'prompts', 'completion_ids'\], but TRL "
            r"passes them\. Add `\*\*kwargs`",
        ),
        (lambda completions, /, **kwargs: [], r"'f' cannot be called with the keywords .*positional.*Declare it as in"),
        (lambda completions, *args: [], r"Add `\*\*kwargs`"),
    ],
)
def test_what_trl_cannot_call_is_refused_with_the_function_and_the_fix(function, message):
    with pytest.raises(ValueError, match=message):
        check_signature("f", function, KEYWORDS)


def test_trl_passes_the_columns_and_the_keywords_that_the_messages_name(model_path, tmp_path):
    seen = set()

    def reward(completions, **kwargs):
        seen.update(kwargs)
        return [0.0] * len(completions)

    make_trainer(model_path, reward, tmp_path, max_steps=1).train()
    assert seen | {"completions"} == set(KEYWORDS)
    assert set(KEYWORDS) - {"target"} == set(reward_checks.FROM_TRL) - {"environments"}


def test_signatures_are_checked_before_any_function_is_called(model_path, tmp_path):
    calls = []

    def expensive(completions, **kwargs):
        calls.append(len(completions))
        return [0.0] * len(completions)

    def later(completions, solution, **kwargs):
        raise AssertionError

    trainer = make_trainer(model_path, [expensive, later], tmp_path)
    with pytest.raises(ValueError, match="'later' needs 'solution'"):
        trainer.train()
    assert not calls


def test_reward_functions_and_their_names_stay_as_they_were(model_path, tmp_path):
    functions = [tiny.distinct_characters, Callable(), functools.partial(tiny.distinct_characters)]
    trainer = make_trainer(model_path, functions, tmp_path)
    trainer.train()
    assert [wrapped.__wrapped__ for wrapped in trainer.reward_funcs] == functions
    assert trainer.reward_func_names == ["distinct_characters", "Callable", "distinct_characters"]


def test_checks_hold_in_evaluation_and_with_n_equal_to_m(model_path, tmp_path):
    def text(completions, **kwargs):
        return ["high"] * len(completions)

    for arguments in ({"num_rollouts": 4}, {"eval_strategy": "steps", "eval_dataset": tiny.make_dataset()}):
        trainer = make_trainer(model_path, text, tmp_path, **arguments)
        with pytest.raises(ValueError, match="'text' returned a `str`, 'high'"):
            trainer.evaluate() if "eval_dataset" in arguments else trainer.train()


@pytest.mark.parametrize("convert", [torch.tensor, np.array, iter, tuple], ids=lambda convert: convert.__name__)
def test_training_is_that_of_trl_whatever_the_type_of_the_rewards(convert, model_path, tmp_path):
    def reward(completions, **kwargs):
        return convert(tiny.distinct_characters(completions))

    oracle = GRPOTrainer(
        model=model_path,
        reward_funcs=reward,
        args=GRPOConfig(**tiny.default_arguments(tmp_path)),
        train_dataset=tiny.make_dataset(),
    )
    oracle.train()
    # Not before, because it sets the seed.
    trainer = make_trainer(model_path, reward, tmp_path, num_rollouts=4, zero_variance="train")
    trainer.train()
    expected = tiny.trained_parameters(oracle)
    for name, parameter in tiny.trained_parameters(trainer).items():
        assert torch.equal(parameter, expected[name]), name
