"""Environments with n > m: the state, the reward and the tools of each stay with its row."""

import pytest
import tiny
import tiny_tools
from datasets import Dataset
from recording import assert_aligned, make_trainer, score, train_with_tools
from versions import ends_turns_at_any_stop_token


class Counter:
    """An environment with a tool; its reward depends on its example and on the calls that it got."""

    def reset(self, target, **kwargs) -> str:
        self.target = target
        self.values = []
        return f" [{target}]"

    def count(self, value: int) -> str:
        """
        Count.

        Args:
            value: A number.

        Returns:
            Nothing much.
        """
        self.values.append(value)
        return f"[{len(self.values)}]"

    def get_reward(self) -> float:
        return score(self.target, *self.values)


class Echo(Counter):
    """An environment that leaves the reward to a reward function; its tool has another name."""

    count = None
    get_reward = None

    def echo(self, value: int) -> str:
        """
        Echo.

        Args:
            value: A number.

        Returns:
            The number.
        """
        self.values.append(value)
        return f"[{value}]"


def reward_of_counter(row: dict) -> float:
    # One call ends a turn, and there are at most two turns with calls.
    return score(row["number"], *tiny_tools.calls_in(row["completion"])[:2])


@pytest.mark.feature("environments")
@ends_turns_at_any_stop_token
def test_an_environment_rewards_its_own_row(tool_model_path, tmp_path):
    trainer = train_with_tools(tool_model_path, None, tmp_path, tool="count", environment_factory=Counter)
    for inputs in trainer.trained:
        for row in trainer.rows(inputs):
            assert f"answer {row['number']} [{row['number']}]</s>" in row["text"]
    assert_aligned(trainer, reward_of=reward_of_counter)


@ends_turns_at_any_stop_token
def test_environments_of_prompts_without_variance_are_left_out(tool_model_path, tmp_path):
    class OfEvenNumbers(Counter):
        def get_reward(self) -> float:
            return 0.5 if self.target % 2 else super().get_reward()

    trainer = train_with_tools(
        *(tool_model_path, None, tmp_path), tool="count", environment_factory=OfEvenNumbers, shuffle_dataset=False
    )
    assert [{row["number"] for row in trainer.rows(inputs)} for inputs in trainer.trained] == [{0}, {2}]
    assert_aligned(trainer, reward_of=reward_of_counter)


@ends_turns_at_any_stop_token
def test_reward_functions_see_the_environment_of_each_rollout(tool_model_path, tmp_path):
    def state(environments, target, completion_ids, **kwargs):
        assert [environment.target for environment in environments] == target
        for environment, ids in zip(environments, completion_ids, strict=True):
            assert tuple(environment.values) == tiny_tools.calls_in(ids)[:2]
        return [score("state", *environment.values) for environment in environments]

    trainer = train_with_tools(tool_model_path, state, tmp_path, tool="count", environment_factory=Counter)

    def reward_of(row):
        return reward_of_counter(row) + score("state", *tiny_tools.calls_in(row["completion"])[:2])

    assert_aligned(trainer, reward_of=reward_of)


@ends_turns_at_any_stop_token
def test_each_row_keeps_the_environment_that_it_names(tool_model_path, tmp_path):
    def judge_echo(environments, completion_ids, **kwargs):
        return [
            score("echo", *ids) if type(environment) is Echo else None
            for environment, ids in zip(environments, completion_ids, strict=True)
        ]

    rows = tiny.make_dataset(conversational=True).to_list()
    dataset = Dataset.from_list([row | {"environment": ["counter", "echo"][row["target"] % 2]} for row in rows])
    trainer = train_with_tools(
        tool_model_path,
        judge_echo,
        tmp_path,
        tool="count",
        train_dataset=dataset,
        environment_factory={"counter": Counter, "echo": Echo},
        max_steps=4,
    )
    for inputs in trainer.trained:
        for row in trainer.rows(inputs):
            tool = ["count", "echo"][row["number"] % 2]
            assert row["text"].startswith(f"<tools>{tool};<user>")

    def reward_of(row):
        return score("echo", *row["completion"]) if row["number"] % 2 else reward_of_counter(row)

    assert_aligned(trainer, reward_of=reward_of)


class Writer(Counter):
    """An environment that writes its own prompt."""

    num_episodes = 0

    def reset(self, **kwargs) -> str:
        self.num_episodes += 1
        return super().reset(self.num_episodes) + f" State the final answer {self.num_episodes}"


def test_an_environment_may_own_the_data(tool_model_path, tmp_path):
    trainer = make_trainer(
        tool_model_path,
        None,
        tmp_path,
        train_dataset=None,
        processing_class=tiny_tools.make_tokenizer("count"),
        environment_factory=Writer,
        max_completion_length=8,
    )
    trainer.train()
    for step, inputs in enumerate(trainer.trained, start=1):
        assert [row["number"] for row in trainer.rows(inputs)] == [step] * 8
    assert trainer.logged("rewards/Writer/mean")[0] > 0
