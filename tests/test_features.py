"""TRL's rewards, losses, adapters and data sources keep working with n > m, and every trained row stays whole."""

import asyncio
import math

import pytest
import tiny
import torch
from datasets import IterableDataset
from peft import LoraConfig, PeftModel, get_peft_model
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
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

LORA = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0)


@pytest.fixture
def judge() -> Judge:
    return Judge()


# Rewards


def test_trained_rows_are_the_judged_ones_of_largest_variance(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, max_steps=3)
    trainer.train()
    assert judge.num_rows == [16] * 3
    assert_aligned(trainer, judge)


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


def test_micro_batches_and_iterations_train_the_same_kept_rows(model_path, judge, tmp_path):
    arguments = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "num_iterations": 2, "max_steps": 8}
    trainer = make_trainer(model_path, judge, tmp_path, gradient_accumulation_steps=1, **arguments)
    trainer.train()
    batches = [trainer.rows(inputs) for inputs in trainer.trained]
    assert [len(rows) for rows in batches] == [2] * 8 and len(judge.calls) == 1
    assert batches[:4] == batches[4:]
    groups = groups_of(sum(batches[:4], []))
    assert_advantages(groups, torch.tensor([[expected_score(row) for row in group] for group in groups]))


def test_reward_weights_count_in_selection_and_advantages(model_path, judge, tmp_path):
    def length(completion_ids, **kwargs):
        return [float(len(ids)) for ids in completion_ids]

    trainer = make_trainer(model_path, [judge, length], tmp_path, reward_weights=[2.0, -0.1])
    trainer.train()
    assert_aligned(trainer, reward_of=lambda row: 2 * expected_score(row) - 0.1 * len(row["completion"]))


class AsyncJudge(Judge):
    async def __call__(self, **kwargs):
        await asyncio.sleep(0)
        return super().__call__(**kwargs)


@pytest.mark.parametrize("form", ["function", "callable class"])
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


def make_reward_model(model_path) -> Qwen2ForSequenceClassification:
    torch.manual_seed(1)
    config = Qwen2Config.from_pretrained(model_path, num_labels=1)
    return Qwen2ForSequenceClassification(config).eval()


def test_a_reward_model_scores_all_rollouts(model_path, tmp_path):
    reward_model, tokenizer = make_reward_model(model_path), tiny.make_tokenizer()
    trainer = make_trainer(model_path, reward_model, tmp_path, reward_processing_classes=tokenizer)
    trainer.train()

    def reward_of(row):
        text = f"State the final answer {row['number']}" + tokenizer.decode(row["completion"], skip_special_tokens=True)
        with torch.no_grad():
            return reward_model(**tokenizer(text, return_tensors="pt")).logits.item()

    assert_aligned(trainer, reward_of=reward_of)


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_scale_rewards_applies_to_the_kept_rows(scale_rewards, model_path, judge, tmp_path):
    def advantages_of(rewards):
        centred = rewards - rewards.mean(dim=1, keepdim=True)
        std = {"group": rewards.std(dim=1, keepdim=True), "batch": rewards.std(), "none": 1.0}[scale_rewards]
        return centred / (std + (scale_rewards != "none") * 1e-4)

    trainer = make_trainer(model_path, judge, tmp_path, scale_rewards=scale_rewards)
    trainer.train()
    assert_aligned(trainer, judge, advantages_of=advantages_of)


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


# Models and losses


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"])
def test_every_loss_trains_on_the_kept_rows(loss_type, model_path, judge, tmp_path):
    level = "sequence" if loss_type == "luspo" else "token"
    trainer = make_trainer(model_path, judge, tmp_path, loss_type=loss_type, importance_sampling_level=level)
    before = tiny.trained_parameters(trainer)
    trainer.train()
    assert all(math.isfinite(loss) for loss in trainer.losses)
    assert any(not torch.equal(before[name], after) for name, after in tiny.trained_parameters(trainer).items())
    for inputs in trainer.trained:
        assert inputs["num_items_in_batch"] == inputs["completion_mask"].sum()
    assert_aligned(trainer, judge)


def test_a_new_adapter_trains_and_the_model_under_it_does_not(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, peft_config=LORA, beta=0.1)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    changed = {name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)}
    assert changed and all("lora_" in name for name in changed)
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6) and trainer.logged("kl")[1] > 0
    assert_aligned(trainer, judge)


def test_a_trained_adapter_is_its_own_reference(model_path, judge, tmp_path):
    model = get_peft_model(Qwen2ForCausalLM.from_pretrained(model_path), LORA)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # as after training; they start at 0
            torch.nn.init.normal_(parameter, std=0.1)
    trainer = make_trainer(model, judge, tmp_path, beta=0.1)
    assert isinstance(trainer.model, PeftModel)
    trainer.train()
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6) and trainer.logged("kl")[1] > 0
    assert_aligned(trainer, judge)


def test_reference_log_probabilities_belong_to_their_rows(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, beta=0.1)
    trainer.train()
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6) and trainer.logged("kl")[1] > 0
    reference = Qwen2ForCausalLM.from_pretrained(model_path)
    for inputs in trainer.trained:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            logits = reference(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(dim=-1)
        logps = logits.gather(2, ids[:, 1:, None])[..., 0][:, -inputs["completion_ids"].size(1) :]
        difference = (inputs["ref_per_token_logps"] - logps) * inputs["completion_mask"]
        assert difference.abs().max() < 1e-4
    assert_aligned(trainer, judge)


# Generation


def test_truncated_completions_are_masked_in_their_own_rows(model_path, judge, tmp_path):
    trainer = make_trainer(
        model_path, judge, tmp_path, mask_truncated_completions=True, max_completion_length=24, max_steps=3
    )
    trainer.train()
    masked, ends = [], {trainer._tokenizer.eos_token_id, trainer._tokenizer.pad_token_id}
    for inputs in trainer.trained:
        for row, mask in zip(trainer.rows(inputs), inputs["completion_mask"], strict=True):
            complete = row["completion"][-1] in ends
            assert mask.sum() == (len(row["completion"]) if complete else 0)
            masked.append(not complete)
        assert inputs["num_items_in_batch"] == inputs["completion_mask"].sum()
    assert 0 < sum(masked) < len(masked)
    assert_aligned(trainer, judge)


def test_max_completion_length_cuts_and_padding_fits_the_longest_kept_row(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, max_completion_length=9, max_steps=3)
    trainer.train()
    for inputs in trainer.trained:
        lengths = [len(row["completion"]) for row in trainer.rows(inputs)]
        assert inputs["completion_ids"].size(1) == max(lengths) <= 9
        assert inputs["completion_mask"].sum(dim=1).tolist() == lengths
    assert_aligned(trainer, judge)


def test_continuous_batching_generates_rollouts_in_order(model_path, judge, tmp_path):
    trainer = make_trainer(
        model_path,
        judge,
        tmp_path,
        use_transformers_continuous_batching=True,
        transformers_continuous_batching_config={"num_blocks": 8, "max_batch_tokens": 64},  # or it takes half the memory
        max_completion_length=3,
        max_steps=1,
    )
    trainer.train()
    assert judge.num_rows == [16]
    assert_aligned(trainer, judge)


# Data


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_dataset_gives_whole_groups_of_rollouts(num_workers, model_path, judge, tmp_path):
    dataset = IterableDataset.from_generator(lambda: iter(tiny.make_dataset(6)))
    trainer = make_trainer(
        model_path, judge, tmp_path, train_dataset=dataset, dataloader_num_workers=num_workers, max_steps=3
    )
    trainer.train()
    assert judge.num_rows == [16] * 3
    assert sorted(number for call in judge.calls for number in {number for number, _ in call}) == list(range(6))
    assert_aligned(trainer, judge)


def test_data_workers_give_whole_groups_of_rollouts(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, dataloader_num_workers=2, max_steps=3)
    trainer.train()
    numbers = [number for call in judge.calls for number in {number for number, _ in call}]
    assert len(numbers) == len(set(numbers)) == 6
    assert_aligned(trainer, judge)
