"""Columns of datasets and of the completions table: names that are not taken, and prompts that have tokens."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase

# What TRL passes to every reward function beside the columns of the dataset; the last only if there are any.
FROM_TRL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
# Columns of the completions table, of which the last two are ours.
_TABLE = ("step", "prompt", "completion", "advantage", "kept", "trained")


def check_names(trainer: Any) -> None:
    """Check that no column takes the place of what TRL passes to reward functions, and no reward that of a column."""
    if trainer.log_completions and (taken := [name for name in trainer.reward_func_names if name in _TABLE]):
        raise ValueError(
            f"The reward functions {taken} have the names of columns of the completions table, which one of both would "
            "overwrite. Rename them, or set `log_completions` to false."
        )
    if trainer.args.remove_unused_columns or all(isinstance(func, nn.Module) for func in trainer.reward_funcs):
        return  # none are passed
    for name in ("train_dataset", "eval_dataset"):
        for where, part in _parts(name, getattr(trainer, name)):
            check_keywords(where, part.column_names or (), environments=trainer.environment_factories is not None)


def check_keywords(where: str, names: Iterable[str], *, environments: bool) -> None:
    """
    Check that none of the names is a keyword by which TRL calls reward functions.

    Columns `completion` and `completion_ids` TRL leaves out on purpose: those of the rollouts take their place.
    """
    keywords = [keyword for keyword in FROM_TRL if keyword != "completion_ids"]
    taken = [name for name in names if name in keywords and (environments or name != "environments")]
    if taken:
        raise ValueError(
            f"{where} has the columns {taken}, but TRL passes something else to reward functions by these names. "
            "Rename or remove them."
        )


def check_dataset_prompts(
    name: str, dataset: Any, tokenizer: PreTrainedTokenizerBase, *, with_rows: bool = True
) -> None:
    """Check that a dataset has prompts, and that each of its rows, unless it is streamed, has one with tokens."""
    for where, part in _parts(name, dataset):
        if part.column_names is not None and "prompt" not in part.column_names:
            raise ValueError(f"{where} has the columns {part.column_names}, without `prompt`. Name the prompts' so.")
        if with_rows and isinstance(part, Dataset):
            _check_rows(where, part, tokenizer)


def _parts(name: str, dataset: Any) -> list[tuple[str, Any]]:
    if isinstance(dataset, dict):
        return [(f"`{name}` {split!r}", part) for split, part in dataset.items()]
    return [] if dataset is None else [(f"`{name}`", dataset)]


def _check_rows(where: str, dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    if _first_without_tokens(dataset.data.column("prompt"), tokenizer) is None:
        return
    # The dataset may be a selection of that.
    row = _first_without_tokens(dataset.select_columns("prompt").with_format("arrow")[:]["prompt"], tokenizer)
    if row is not None:
        raise ValueError(
            f"Row {row} of {where} has the prompt {dataset[row]['prompt']!r}, from which nothing can be generated: a "
            "prompt is a text that has tokens, or a list of messages. Fill or remove such rows."
        )


def _first_without_tokens(prompts: pa.ChunkedArray, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The first row that holds no prompt, found without making Python objects of all."""
    bad = pc.is_null(prompts)
    if pa.types.is_string(prompts.type) or pa.types.is_large_string(prompts.type):
        blank = pc.unique(prompts.filter(pc.equal(pc.utf8_trim_whitespace(prompts), "")))
        without = [text for text in blank.to_pylist() if not tokenizer(text=text)["input_ids"]]
        bad = pc.or_(bad, pc.is_in(prompts, pa.array(without, prompts.type)))
    elif pa.types.is_list(prompts.type) or pa.types.is_large_list(prompts.type):
        bad = pc.or_kleene(bad, pc.equal(pc.list_value_length(prompts), 0))
    elif pa.types.is_primitive(prompts.type):
        return 0 if len(prompts) else None
    row = pc.index(bad, True).as_py()
    return None if row < 0 else row
