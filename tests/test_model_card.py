"""The model card that is saved with a model."""

import pytest
import tiny
from huggingface_hub import ModelCard
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer

LORA = LoraConfig(r=2, target_modules="all-linear")


def make_trainer(model, output_dir, **overrides):
    arguments = {"peft_config": overrides.pop("peft_config", None)}
    if not isinstance(model, str):
        arguments["processing_class"] = overrides.pop("processing_class")
    return PODSGRPOTrainer(
        model=model,
        reward_funcs=tiny.distinct_characters,
        args=PODSGRPOConfig(**tiny.default_arguments(output_dir, num_rollouts=8) | overrides),
        train_dataset=tiny.make_dataset(),
        **arguments,
    )


@pytest.mark.parametrize("peft_config", [None, LORA], ids=["full", "lora"])
def test_the_card_saved_with_a_checkpoint_says_what_was_done(peft_config, model_path, tmp_path):
    trainer = make_trainer(
        model_path,
        tmp_path / "my-model",
        peft_config=peft_config,
        save_strategy="steps",
        save_steps=1,
        max_steps=1,
        down_sampling="percentile",
    )
    trainer.train()
    card = ModelCard.load(tmp_path / "my-model" / "README.md")
    assert {"trl", "grpo", "pods"} <= set(card.data.tags)
    assert card.data.library_name == ("transformers" if peft_config is None else "peft")
    assert "8 completions were sampled (`num_rollouts`) and 4 of them were kept (`num_generations`)" in card.text
    assert "by the strategy `percentile` (`down_sampling`)" in card.text
    assert "https://huggingface.co/papers/2504.13818" in card.text, "PODS"
    assert "https://huggingface.co/papers/2402.03300" in card.text, "GRPO"
    assert card.text.index("8 completions were sampled") < card.text.index("### Framework versions")
    for citation in ("xu2025pods", "shao2024deepseekmath", "vonwerra2020trl"):
        assert card.text.count(citation) == 1


def test_a_base_model_from_a_folder_is_named_without_its_path(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path / "my-model")
    trainer.create_model_card()
    card = (tmp_path / "my-model" / "README.md").read_text()
    assert "fine-tuned version of the local model `model" in card
    assert 'pipeline("text-generation", model="my-model"' in card
    assert "# Model Card for my-model" in card
    assert "None" not in card
    assert str(tmp_path) not in card
    assert model_path not in card


def test_a_model_made_in_the_script_has_no_name(model_path, tmp_path):
    model = AutoModelForCausalLM.from_config(AutoModelForCausalLM.from_pretrained(model_path).config)
    model.config._name_or_path = ""
    trainer = make_trainer(model, tmp_path, processing_class=AutoTokenizer.from_pretrained(model_path))
    trainer.create_model_card()
    assert "fine-tuned version of a model that was not loaded from the Hub" in (tmp_path / "README.md").read_text()


def test_a_base_model_of_the_hub_and_given_names_stay(model_path, tmp_path):
    trainer = make_trainer(model_path, tmp_path, hub_model_id="someone/my-model")
    trainer.model.config._name_or_path = "Qwen/Qwen2.5-0.5B-Instruct"
    trainer.hub_model_id = "someone/my-model"  # as when it is pushed
    trainer.create_model_card(dataset_name="openai/gsm8k", tags="mine")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.base_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert card.data.datasets == "openai/gsm8k"
    assert {"mine", "pods"} <= set(card.data.tags)
    assert "[Qwen/Qwen2.5-0.5B-Instruct](https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct)" in card.text
    assert 'model="someone/my-model"' in card.text
    assert "# Model Card for my-model" in card.text
