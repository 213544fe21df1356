"""Every kind of reward that TRL takes works with n > m, and every trained row gets its own reward's advantage."""

import asyncio
import math

import pytest
import tiny
import torch
from recording import (
    Judge,
    assert_advantages,
    assert_aligned,
    expected_score,
    groups_of,
    make_trainer,
    normalized,
    number_in,
    score,
)
from transformers import LlamaConfig, LlamaForSequenceClassification
from versions import takes_async_callables


@pytest.fixture
def judge() -> Judge:
    return Judge()


def test_trained_rows_are_the_judged_ones_of_largest_variance(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, max_steps=3)
    trainer.train()
    assert judge.num_rows == [16] * 3
    assert_aligned(trainer, judge)


@pytest.mark.feature("conversational prompts")
def test_conversational_prompts_reach_rewards_and_training_alike(model_path, judge, tmp_path):
    seen = []

    def messages(prompts, completions, **kwargs):
        seen.extend(zip(prompts, completions, strict=True))
        return [0.0] * len(prompts)

    dataset = tiny.make_dataset(conversational=True)
    trainer = make_trainer(model_path, [judge, messages], tmp_path, train_dataset=dataset)
    trainer.train()
    assert_aligned(trainer, judge)
    prompt, completion = seen[0]
    assert [message["role"] for message in prompt + completion] == ["user", "assistant"]
    assert all(row["text"].endswith("</s><assistant>") for row in trainer.rows(trainer.trained[0]))


def test_reward_weights_count_in_selection_and_advantages(model_path, judge, tmp_path):
    def other(completion_ids, **kwargs):
        return [score("other", *ids) for ids in completion_ids]

    trainer = make_trainer(model_path, [judge, other], tmp_path, reward_weights=[2.0, -1.0])
    trainer.train()
    assert_aligned(trainer, judge, reward_of=lambda row: 2 * expected_score(row) - score("other", *row["completion"]))


class AsyncJudge(Judge):
    async def __call__(self, **kwargs):
        await asyncio.sleep(0)
        return super().__call__(**kwargs)


@pytest.mark.feature("async rewards")
@pytest.mark.parametrize("form", ["function", pytest.param("callable class", marks=takes_async_callables)])
def test_async_rewards_keep_their_rows(form, model_path, judge, tmp_path):
    async def async_function(**kwargs):
        await asyncio.sleep(0)
        return judge(**kwargs)

    judge = AsyncJudge() if form == "callable class" else judge
    trainer = make_trainer(model_path, async_function if form == "function" else judge, tmp_path)
    trainer.train()
    assert_aligned(trainer, judge)


def test_reward_functions_may_skip_rows(model_path, tmp_path):
    def even(prompts, completion_ids, **kwargs):
        rows = [(number_in(prompt), tuple(ids)) for prompt, ids in zip(prompts, completion_ids, strict=True)]
        return [None if number % 2 else score("even", *ids) for number, ids in rows]

    def odd(prompts, completion_ids, **kwargs):
        rows = [(number_in(prompt), tuple(ids)) for prompt, ids in zip(prompts, completion_ids, strict=True)]
        return [score("odd", *ids) if number % 2 else None for number, ids in rows]

    trainer = make_trainer(model_path, [even, odd], tmp_path, max_steps=3)
    trainer.train()
    assert_aligned(trainer, reward_of=lambda row: score(["even", "odd"][row["number"] % 2], *row["completion"]))


def test_a_row_that_no_function_scores_is_kept_last_and_not_trained(model_path, tmp_path):
    def scarce(prompts, completion_ids, **kwargs):  # scores 6 rows of even prompts and 3 of odd ones
        rewards = []
        for i, (prompt, ids) in enumerate(zip(prompts, completion_ids, strict=True)):
            scored = i % 8 >= (5 if number_in(prompt) % 2 else 2)
            rewards.append(score(*ids) if scored else None)
        return rewards

    trainer = make_trainer(model_path, scarce, tmp_path, max_steps=4)
    trainer.train()
    unscored = {0: [], 1: []}
    for inputs in trainer.trained:
        for group in groups_of(trainer.rows(inputs)):
            rewards = torch.tensor([score(*row["completion"]) for row in group])
            advantages = torch.tensor([row["advantage"] for row in group])
            scored = advantages != 0
            unscored[group[0]["number"] % 2].append((~scored).sum().item())
            torch.testing.assert_close(advantages[scored], normalized(rewards[scored][None])[0], rtol=1e-4, atol=1e-4)
    assert set(unscored[0]) == {0} and set(unscored[1]) == {1}


def make_reward_model(model_path) -> LlamaForSequenceClassification:
    torch.manual_seed(1)
    config = LlamaConfig.from_pretrained(model_path, num_labels=1)
    return LlamaForSequenceClassification(config).eval()


@pytest.mark.feature("reward models")
def test_a_reward_model_scores_all_rollouts(model_path, tmp_path):
    reward_model, tokenizer = make_reward_model(model_path), tiny.make_tokenizer()
    trainer = make_trainer(model_path, reward_model, tmp_path, reward_processing_classes=tokenizer)
    trainer.train()

    def reward_of(row):
        text = f"State the final answer {row['number']}" + tokenizer.decode(row["completion"], skip_special_tokens=True)
        with torch.no_grad():
            return reward_model(**tokenizer(text, return_tensors="pt")).logits.item()

    assert_aligned(trainer, reward_of=reward_of)


@pytest.mark.feature("`scale_rewards`")
@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_scale_rewards_applies_to_the_kept_rows(scale_rewards, model_path, judge, tmp_path):
    def advantages_of(rewards):
        centred = rewards - rewards.mean(dim=1, keepdim=True)
        std = {"group": rewards.std(dim=1, keepdim=True), "batch": rewards.std(), "none": 1.0}[scale_rewards]
        return centred / (std + (scale_rewards != "none") * 1e-4)

    trainer = make_trainer(model_path, judge, tmp_path, scale_rewards=scale_rewards)
    trainer.train()
    assert_aligned(trainer, judge, advantages_of=advantages_of)


@pytest.mark.feature("`multi_objective_aggregation`")
def test_normalize_then_sum_leaves_out_a_reward_that_is_none(model_path, judge, tmp_path):
    def fewer(completion_ids, **kwargs):
        return [None if ids[0] % 3 == 0 else score(*ids) for ids in completion_ids]

    trainer = make_trainer(
        model_path, [judge, fewer], tmp_path, multi_objective_aggregation="normalize_then_sum", max_steps=3
    )
    trainer.train()
    num_none = 0
    for inputs in trainer.trained:
        groups = groups_of(trainer.rows(inputs))
        judged = torch.tensor([[expected_score(row) for row in group] for group in groups])
        other = torch.tensor(
            [[r if r is not None else math.nan for r in fewer([row["completion"] for row in g])] for g in groups]
        )
        num_none += other.isnan().sum().item()
        total = normalized(judged) + _nan_normalized(other).nan_to_num(nan=0.0)
        assert_advantages(groups, (total - total.mean()) / (total.std() + 1e-4), advantages_of=lambda rewards: rewards)
    assert num_none > 0


def _nan_normalized(rewards: torch.Tensor) -> torch.Tensor:
    centred = rewards - rewards.nanmean(dim=1, keepdim=True)
    count = (~rewards.isnan()).sum(dim=1, keepdim=True)
    return centred / ((centred.square().nansum(dim=1, keepdim=True) / (count - 1)).sqrt() + 1e-4)
