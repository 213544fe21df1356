"""Tools and `rollout_func` with n > m: what happened in a rollout stays with its row."""

import random
import re

import numpy as np
import pytest
import tiny
import tiny_tools
import torch
from recording import Judge, assert_aligned, make_trainer, number_in, score, train_with_tools
from versions import ends_turns_at_any_stop_token

from trl_pods.checks.errors import SetupError
from trl_pods.checks.rollout_func import check_rollouts

# Tools


def times_seven(value: int) -> str:
    """
    Multiply by seven.

    Args:
        value: A number.

    Returns:
        The product.
    """
    return f"[{value * 7}]"


async def times_seven_later(value: int) -> str:
    """
    Multiply by seven.

    Args:
        value: A number.

    Returns:
        The product.
    """
    return times_seven(value)


def assert_tool_mask_marks_what_the_tool_said(trainer) -> int:
    num_results = 0
    for inputs in trainer.trained:
        for row, mask in zip(trainer.rows(inputs), inputs["tool_mask"].tolist(), strict=True):
            tokens = [trainer._tokenizer.decode([token]) for token in row["completion"]]
            mask = mask[: len(tokens)]
            said = "".join(token for token, own in zip(tokens, mask, strict=True) if not own)
            results = re.findall(r"<tool>\[(\d+)\]</s><assistant>", said)
            assert said == "".join(f"<tool>[{result}]</s><assistant>" for result in results)
            calls = tiny_tools.calls_in(row["completion"])[: len(results)]
            assert [int(result) for result in results] == [7 * value for value in calls]
            assert "<tool>[" not in "".join(token for token, own in zip(tokens, mask, strict=True) if own)
            num_results += len(results)
        assert inputs["num_items_in_batch"] == (inputs["completion_mask"] * inputs["tool_mask"]).sum()
    return num_results


@pytest.mark.feature("tools")
@ends_turns_at_any_stop_token
@pytest.mark.parametrize("tool", [times_seven, times_seven_later])
def test_case_73_tool_results_are_masked_in_the_rows_that_called(tool, tool_model_path, tmp_path):
    judge = Judge()
    trainer = train_with_tools(tool_model_path, judge, tmp_path, tool=tool.__name__, tools=[tool])
    assert assert_tool_mask_marks_what_the_tool_said(trainer) > 5
    assert trainer.logged("tools/call_frequency")[0] > 0 and trainer.logged("tools/failure_frequency") == [0, 0]
    assert_aligned(trainer, judge)


@ends_turns_at_any_stop_token
@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_skipped_rows_count_what_the_model_generated(num_rollouts, tool_model_path, tmp_path):
    """Not what tools said: the update is that of all rows."""

    def judge(target, completions, **kwargs):
        return [0.5 if number % 2 else len(str(text)) for number, text in zip(target, completions, strict=True)]

    arguments = {"tool": "times_seven", "tools": [times_seven], "num_rollouts": num_rollouts, "optim": "sgd"}
    arguments |= {"shuffle_dataset": False, "learning_rate": 0.1}
    trained, found = {}, {}
    for zero_variance in ("train", "skip"):
        trainer = train_with_tools(tool_model_path, judge, tmp_path, zero_variance=zero_variance, **arguments)
        found[zero_variance] = tiny.trained_parameters(trainer)
        trained[zero_variance] = [len(inputs["prompt_ids"]) for inputs in trainer.trained]
    assert trained == {"train": [8, 8], "skip": [4, 4]}
    for name, expected in found["train"].items():
        torch.testing.assert_close(found["skip"][name], expected, rtol=0, atol=1e-6)


def test_completion_lengths_count_only_what_the_model_generated(tool_model_path, tmp_path):
    contexts = []

    def lengths(completion_ids, completions, **kwargs):
        own = []
        for ids, messages in zip(completion_ids, completions, strict=True):
            results = [m["content"] for m in messages if m["role"] == "tool"]
            own.append(len(ids) - sum(len(f"<tool>{result}<assistant>") + 1 for result in results))
        contexts.append(own)
        return [float(value) for value in own]

    trainer = train_with_tools(tool_model_path, lengths, tmp_path, tool="times_seven", tools=[times_seven])
    for step, own in enumerate(contexts):
        assert trainer.logged("completions/mean_length")[step] == pytest.approx(sum(own) / 16)
        kept = (trainer.trained[step]["completion_mask"] * trainer.trained[step]["tool_mask"]).sum().item()
        assert trainer.logged("pods/kept_token_fraction")[step] == pytest.approx(kept / sum(own))


# rollout_func


class Rollouts:
    """A `rollout_func` whose every field says which rollout it belongs to."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.num_rollouts = 0
        self.random = random.Random(0)
        self.calls = []

    def completion(self, row_id: int) -> list[int]:
        return self.tokenizer(f"{row_id}" + "abc" * (row_id % 3))["input_ids"] + [self.tokenizer.eos_token_id]

    def env_mask(self, row_id: int) -> list[int]:
        return [int((row_id + i) % 3 > 0) for i in range(len(self.completion(row_id)))]

    def logprobs(self, row_id: int) -> list[float]:
        return [-row_id / 1000] * len(self.completion(row_id))

    def __call__(self, prompts, trainer):
        ids = list(range(self.num_rollouts, self.num_rollouts + len(prompts)))
        self.num_rollouts += len(prompts)
        self.random.shuffle(ids)
        self.calls.append((list(prompts), ids))
        return {
            "prompt_ids": self.tokenizer(list(prompts))["input_ids"],
            "completion_ids": [self.completion(i) for i in ids],
            "logprobs": [self.logprobs(i) for i in ids],
            "env_mask": [self.env_mask(i) for i in ids],
            "row_id": ids,
            "source": "simulator",
        }


@pytest.mark.feature("`rollout_func`")
def test_case_72_rollout_func_fields_stay_with_their_rows(model_path, tmp_path):
    rollouts = Rollouts(tiny.make_tokenizer())

    def judge(row_id, source, completion_ids, target, prompts, **kwargs):
        assert [rollouts.completion(i) for i in row_id] == completion_ids
        assert target == [number_in(prompt) for prompt in prompts]
        assert source == ["simulator"] * 16
        return [score(i, t) for i, t in zip(row_id, target, strict=True)]

    trainer = make_trainer(model_path, judge, tmp_path, rollout_func=rollouts, max_steps=3)
    trainer.train()

    def row_id(row):
        return int(re.match(r"\d+", rollouts.tokenizer.decode(row["completion"])).group())

    assert [len(prompts) for prompts, _ in rollouts.calls] == [16] * 3
    for inputs, (prompts, ids) in zip(trainer.trained, rollouts.calls, strict=True):
        number_of = dict(zip(ids, map(number_in, prompts), strict=True))
        for i, row in enumerate(trainer.rows(inputs)):
            own, length = row_id(row), len(row["completion"])
            assert list(row["completion"]) == rollouts.completion(own) and row["number"] == number_of[own]
            assert inputs["tool_mask"][i, :length].tolist() == rollouts.env_mask(own)
            logps = inputs["sampling_per_token_logps"][i, :length]
            torch.testing.assert_close(logps, torch.tensor(rollouts.logprobs(own)))
        assert inputs["num_items_in_batch"] == (inputs["completion_mask"] * inputs["tool_mask"]).sum()
    assert_aligned(trainer, reward_of=lambda row: score(row_id(row), row["number"]))


RIGHT = {"prompt_ids": [[1, 2], [3]], "completion_ids": [[4, 5], [6]], "logprobs": [[-1.0, -1.0], [-1.0]]}
WRONG = [
    (None, r"must return a dictionary with .*, but \['prompt_ids', 'completion_ids', 'logprobs'\] are missing"),
    ([[1], [2]], "must return a dictionary"),
    ({"prompt_ids": [[1], [1]]}, r"but \['completion_ids', 'logprobs'\] are missing"),
    ({**RIGHT, "completion_ids": [[4, 5], [6], [7]]}, "returned 3 of 'completion_ids' for 2 prompts"),
    ({**RIGHT, "prompt_ids": [[1], []]}, "returned a row of 'prompt_ids' without a token"),
    ({**RIGHT, "completion_ids": [[], [6]]}, "returned a row of 'completion_ids' without a token"),
    ({**RIGHT, "logprobs": [[-1.0], [-1.0]]}, "returned 1 of 'logprobs' for completion 0, which has 2 tokens"),
    ({**RIGHT, "env_mask": [[1, 1]]}, "returned 1 of 'env_mask' for 2 prompts"),
    ({**RIGHT, "env_mask": [[1, 1], [1, 1]]}, "returned 2 of 'env_mask' for completion 1, which has 1 tokens"),
]


@pytest.mark.parametrize(("rollouts", "message"), WRONG)
def test_what_a_rollout_func_returns_is_refused_with_what_it_was(rollouts, message):
    with pytest.raises(SetupError, match=message):
        check_rollouts(rollouts, num_prompts=2)


KINDS = [
    list,
    tuple,
    np.array,
    torch.tensor,
    lambda row: [torch.tensor(value) for value in row],
    lambda row: [np.float64(value) if isinstance(value, float) else np.int64(value) for value in row],
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outer", [list, tuple])
def test_rollouts_of_any_kind_of_sequence_become_lists(kind, outer):
    given = {key: outer(kind(row) for row in rows) for key, rows in RIGHT.items()}
    assert check_rollouts({**given, "more": 1}, num_prompts=2) == {**RIGHT, "more": 1}


@pytest.mark.parametrize("kind", [torch.tensor, np.array, tuple])
def test_rollouts_as_tensors_train_as_those_of_lists(kind, model_path, tmp_path):
    def train(kind):
        seen = []

        def rollouts(prompts, trainer):
            ids = [[5 + i % 7, 6 + i % 3, trainer.processing_class.eos_token_id if i % 2 else 9] for i in range(16)]
            made = {"prompt_ids": [[2, 3]] * 16, "completion_ids": ids, "logprobs": [[-1.0] * 3] * 16}
            return {key: kind(rows) for key, rows in made.items()} | {"env_mask": kind([[1, 0, 1]] * 16)}

        def judge(completion_ids, **kwargs):
            seen.append(completion_ids)
            return [float(ids[0] + ids[1]) for ids in completion_ids]

        trainer = make_trainer(model_path, judge, tmp_path, rollout_func=rollouts, exclude_truncated=True)
        trainer.train()
        return seen, tiny.trained_parameters(trainer), trainer.logged("pods/kept_reward")

    (seen, parameters, kept), (seen_lists, expected, kept_lists) = train(kind), train(list)
    assert seen == seen_lists and kept == kept_lists
    assert all(torch.equal(parameters[name], expected[name]) for name in expected)


@pytest.mark.parametrize("rollout_func", [lambda prompts: None, lambda prompts, trainer, more: None, lambda: None])
def test_a_rollout_func_that_cannot_be_called_is_refused_at_once(rollout_func, model_path, tmp_path):
    with pytest.raises(SetupError, match=r"`rollout_func` has the signature .*`\(prompts, trainer\)`"):
        make_trainer(model_path, Judge(), tmp_path, rollout_func=rollout_func)
