"""TRL's losses, adapters, ways to generate and data sources work with n > m, and every trained row stays whole."""

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
)
from transformers import LlamaForCausalLM

from trl_pods.checks.repeated_hooks import HOOK

LORA = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0)


@pytest.fixture
def judge() -> Judge:
    return Judge()


# Models and losses


@pytest.mark.parametrize("adapter", [None, LORA])
def test_activation_checkpointing_does_not_leave_more_hooks_after_more_steps(adapter, model_path, judge, tmp_path):
    arguments = {"eval_dataset": tiny.make_dataset(4), "eval_strategy": "epoch", "peft_config": adapter}
    left = []
    for num_steps in (1, 6):
        trainer = make_trainer(model_path, judge, tmp_path, max_steps=num_steps, **arguments)
        trainer.train()
        trainer.evaluate()
        assert trainer.model.is_gradient_checkpointing
        hooks = trainer.model.get_input_embeddings()._forward_hooks
        left.append([hook.__name__ for hook in hooks.values()])
    assert left[0] == left[1]
    assert set(left[1]) == {HOOK}


@pytest.mark.feature("`num_iterations`, `steps_per_generation`")
def test_case_09_micro_batches_and_iterations_train_the_same_kept_rows(model_path, judge, tmp_path):
    arguments = {"per_device_train_batch_size": 2, "steps_per_generation": 4, "num_iterations": 2, "max_steps": 8}
    trainer = make_trainer(model_path, judge, tmp_path, gradient_accumulation_steps=1, **arguments)
    trainer.train()
    batches = [trainer.rows(inputs) for inputs in trainer.trained]
    assert [len(rows) for rows in batches] == [2] * 8 and len(judge.calls) == 1
    assert batches[:4] == batches[4:]
    groups = groups_of(sum(batches[:4], []))
    assert_advantages(groups, torch.tensor([[expected_score(row) for row in group] for group in groups]))


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


@pytest.mark.feature("LoRA")
def test_a_new_adapter_trains_and_the_model_under_it_does_not(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, peft_config=LORA, beta=0.1)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    changed = {name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)}
    assert changed and all("lora_" in name for name in changed)
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6) and trainer.logged("kl")[1] > 0
    assert_aligned(trainer, judge)


@pytest.mark.feature("LoRA")
def test_case_54_a_trained_adapter_is_its_own_reference(model_path, judge, tmp_path):
    model = get_peft_model(LlamaForCausalLM.from_pretrained(model_path), LORA)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # as after training; they start at 0
            torch.nn.init.normal_(parameter, std=0.1)
    trainer = make_trainer(model, judge, tmp_path, beta=0.1)
    assert isinstance(trainer.model, PeftModel)
    trainer.train()
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6) and trainer.logged("kl")[1] > 0
    assert_aligned(trainer, judge)


@pytest.mark.feature("`beta` > 0")
def test_reference_log_probabilities_belong_to_their_rows(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, beta=0.1)
    trainer.train()
    assert trainer.logged("kl")[0] == pytest.approx(0, abs=1e-6) and trainer.logged("kl")[1] > 0
    reference = LlamaForCausalLM.from_pretrained(model_path)
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


@pytest.mark.feature("`mask_truncated_completions`")
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
    assert_aligned(trainer)  # which are not those of largest variance, but first the complete ones


def test_max_completion_length_cuts_and_padding_fits_the_longest_kept_row(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, max_completion_length=9, max_steps=3)
    trainer.train()
    for inputs in trainer.trained:
        lengths = [len(row["completion"]) for row in trainer.rows(inputs)]
        assert inputs["completion_ids"].size(1) == max(lengths) <= 9
        assert inputs["completion_mask"].sum(dim=1).tolist() == lengths
    assert_aligned(trainer, judge)


@pytest.mark.feature("continuous batching")
def test_continuous_batching_generates_rollouts_in_order(model_path, judge, tmp_path):
    trainer = make_trainer(
        model_path,
        judge,
        tmp_path,
        use_transformers_continuous_batching=True,
        transformers_continuous_batching_config={
            "num_blocks": 8,
            "max_batch_tokens": 64,
        },  # or it takes half the memory
        max_completion_length=3,
        max_steps=1,
    )
    trainer.train()
    assert judge.num_rows == [16]
    assert_aligned(trainer, judge)


# Data


@pytest.mark.feature("iterable datasets")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_case_76_an_iterable_dataset_gives_whole_groups_of_rollouts(num_workers, model_path, judge, tmp_path):
    dataset = IterableDataset.from_generator(lambda: iter(tiny.make_dataset(6)))
    trainer = make_trainer(
        model_path, judge, tmp_path, train_dataset=dataset, dataloader_num_workers=num_workers, max_steps=3
    )
    trainer.train()
    assert judge.num_rows == [16] * 3
    assert sorted(number for call in judge.calls for number in {number for number, _ in call}) == list(range(6))
    assert_aligned(trainer, judge)


@pytest.mark.feature("data workers")
def test_case_77_data_workers_give_whole_groups_of_rollouts(model_path, judge, tmp_path):
    trainer = make_trainer(model_path, judge, tmp_path, dataloader_num_workers=2, max_steps=3)
    trainer.train()
    numbers = [number for call in judge.calls for number in {number for number, _ in call}]
    assert len(numbers) == len(set(numbers)) == 6
    assert_aligned(trainer, judge)
