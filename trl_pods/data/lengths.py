"""Leaving out prompts that are too long, which TRL does not do."""

import logging
from typing import Any

from datasets import IterableDataset
from transformers import PreTrainedTokenizerBase

from .adapters import AnyDataset

logger = logging.getLogger(__name__)


def drop_long_prompts(dataset: AnyDataset, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int) -> AnyDataset:
    """Leave out the rows whose prompt has too many tokens, and say how many they are."""
    if isinstance(dataset, dict):
        splits = {name: _drop(part, tokenizer, max_prompt_length, f"{name}: ") for name, part in dataset.items()}
        return type(dataset)(splits)
    return _drop(dataset, tokenizer, max_prompt_length, "")


def _drop(dataset: Any, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int, label: str) -> Any:
    settings = {"tokenizer": tokenizer, "max_prompt_length": max_prompt_length}
    kept = dataset.filter(_fits, batched=True, input_columns=["prompt"], fn_kwargs=settings)
    limit = f"longer than `max_prompt_length` ({max_prompt_length:,} tokens)"
    if isinstance(kept, IterableDataset):
        logger.info(f"{label}Leaving out prompts {limit}, uncounted, as the dataset is streamed.")
        return kept
    if len(dataset) and not len(kept):
        raise ValueError(f"{label}All {len(dataset):,} prompts are {limit}. Raise it, or look at the column `prompt`.")
    logger.info(f"{label}Left out {len(dataset) - len(kept):,} of {len(dataset):,} prompts {limit}.")
    return kept


def _fits(prompts: list, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int) -> list[bool]:
    """Count tokens as `GRPOTrainer` tokenizes prompts."""
    if isinstance(prompts[0], str):
        tokens = tokenizer(text=prompts)["input_ids"]
    else:
        tokens = tokenizer.apply_chat_template(
            conversation=prompts, add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
    return [len(ids) <= max_prompt_length for ids in tokens]
