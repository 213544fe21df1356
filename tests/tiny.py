"""The tiny model, tokenizer, data and reward that the tests train with; everything is made here, offline."""

from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;!?+-*/=<>()[]{}'\"_|\n"

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if think %}<think>{% endif %}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, `<pad>` and `</s>` beside them."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "</s>", "<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, config_class: type = LlamaConfig, **config
) -> PreTrainedModel:
    """A random two-layer model for a tokenizer's vocabulary; `config` says what differs from the usual one."""
    torch.manual_seed(seed)
    usual = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.3,  # far enough from uniform for completions to differ in probability
    }
    return AutoModelForCausalLM.from_config(config_class(**usual | config))


def save_model(path: Path, **arguments) -> str:
    """Write a model of [`make_model`] and its tokenizer to a folder, and return the folder's name."""
    tokenizer = make_tokenizer()
    make_model(tokenizer, **arguments).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def make_dataset(num_prompts: int = 16, conversational: bool = False) -> Dataset:
    """Prompts with one further column, `target`."""
    prompts = [f"State the final answer {i}" for i in range(num_prompts)]
    if conversational:
        return Dataset.from_dict(
            {"prompt": [[{"role": "user", "content": p}] for p in prompts], "target": list(range(num_prompts))}
        )
    return Dataset.from_dict({"prompt": prompts, "target": list(range(num_prompts))})


def text_of(completion) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def distinct_characters(completions, **kwargs) -> list[float]:
    """A reward with many values: the number of different characters."""
    return [float(len(set(text_of(completion)))) for completion in completions]


def default_arguments(output_dir, **overrides) -> dict:
    """Arguments for a training of a fraction of a second per step on the CPU."""
    arguments = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-3,
    }
    return arguments | overrides


def without_seconds(history: list[dict]) -> list[dict]:
    """What was logged but seconds, and the loss, of which transformers forgets the steps since the last log."""
    untold = ("loss", "grad_norm", "step_time", "train_", "pods/time", "pods/cost_ratio")
    untold += ("pods/sampled_tokens", "pods/trained_tokens", "pods/peak_memory")
    return [{key: value for key, value in log.items() if not key.startswith(untold)} for log in history]


def trained_parameters(trainer) -> dict[str, torch.Tensor]:
    """A copy of the parameters that the trainer updates."""
    named = trainer.accelerator.unwrap_model(trainer.model).named_parameters()
    return {name: parameter.detach().clone() for name, parameter in named if parameter.requires_grad}
