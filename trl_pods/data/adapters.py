"""Adapters: the columns of published datasets as TRL's `prompt`, and a `solution` for rewards to compare with."""

import logging
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from datasets import Dataset, DatasetDict, Features, IterableDataset, IterableDatasetDict, Value
from transformers import PreTrainedTokenizerBase

from ..answers import last_boxed
from ..checks.columns import check_dataset_prompts
from ..checks.errors import did_you_mean

logger = logging.getLogger(__name__)

AnyDataset = TypeVar("AnyDataset", Dataset, IterableDataset, DatasetDict, IterableDatasetDict)


class Adapter(NamedTuple):
    """Which columns a dataset has, and how its right answers are written."""

    summary: str
    question: str
    answer: str | None  # `None`: its reward columns are there already
    gold: Callable[[str], str | None] = str.strip
    reward_columns: tuple[str, ...] = ()


_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BARE_BOX = re.compile(r"\\boxed\s*(\d|\\frac\s*\d\s*\d|[^\s{$.,]+)")  # what LaTeX takes without braces


def _after_hashes(answer: str) -> str | None:
    _, hashes, gold = answer.rpartition("####")
    return _THOUSANDS.sub("", gold.strip()) if hashes else None


def _boxed(solution: str) -> str | None:
    bare = _BARE_BOX.findall(solution)
    return last_boxed(solution) or (bare[-1] if bare else None)


ADAPTERS = {
    "gsm8k": Adapter(
        "GSM8K: `question`, and a worked `answer` that ends in `#### 72`.", "question", "answer", _after_hashes
    ),
    "math": Adapter(
        r"MATH: `problem`, and a worked `solution` whose last `\boxed{...}` is right.",
        "problem",
        "solution",
        _boxed,
    ),
    "math_500": Adapter("MATH-500: `problem`, and the right `answer` by itself.", "problem", "answer"),
    "question_answer": Adapter("Any dataset with a `question` and the right `answer`.", "question", "answer"),
    "reasoning_gym": Adapter(
        "A task of reasoning-gym by name, made by `load_task`.", "question", None, reward_columns=("task", "entry")
    ),
}


def list_adapters() -> dict[str, str]:
    """List the adapters."""
    return {name: adapter.summary for name, adapter in ADAPTERS.items()}


def check_adapter(name: str) -> None:
    """Check that there is an adapter of that name."""
    if name not in ADAPTERS:
        hint = did_you_mean(name, ADAPTERS, "Choose one of them.")
        raise ValueError(f"`dataset_adapter` is {name!r}, but the adapters are {list(ADAPTERS)}. {hint}")


def adapt(
    dataset: AnyDataset,
    adapter: str,
    *,
    conversational: bool,
    system_prompt: str | None = None,
    question_column: str | None = None,
    answer_column: str | None = None,
) -> AnyDataset:
    """Turn the columns of a published dataset into those that TRL and the rewards take."""
    check_adapter(adapter)
    chosen = ADAPTERS[adapter]
    if answer_column is not None and chosen.answer is None:
        raise ValueError(f"`answer_column` does not go with the adapter {adapter!r}, which has no answers. Remove it.")
    chosen = chosen._replace(question=question_column or chosen.question, answer=answer_column or chosen.answer)
    if isinstance(dataset, dict):
        parts = {
            split: _adapt(part, adapter, chosen, conversational, system_prompt, f" of the split {split!r}")
            for split, part in dataset.items()
        }
        return type(dataset)(parts)
    return _adapt(dataset, adapter, chosen, conversational, system_prompt, "")


def _adapt(
    dataset: Any, name: str, adapter: Adapter, conversational: bool, system_prompt: str | None, where: str
) -> Any:
    features = dataset.features
    # A streaming dataset may tell its columns only when it is read.
    columns = list(features if features is not None else next(iter(dataset.take(1)), {}))
    _check_columns(columns, name, adapter, where)
    if features is not None:
        message = [{"role": Value("string"), "content": Value("string")}]
        made = {"prompt": message if conversational else Value("string")}
        made |= {"solution": Value("string")} if adapter.answer else {}
        features = Features({**features, **made})
    if features is not None and not isinstance(dataset, IterableDataset) and len(dataset) == 0:
        return Dataset.from_dict({column: [] for column in features}, features=features)
    settings: dict[str, Any] = {
        "adapter": name,
        "question": adapter.question,
        "answer": adapter.answer,
        "conversational": conversational,
        "system_prompt": system_prompt,
        "where": where,
    }
    adapted = dataset.map(_convert, with_indices=True, batched=True, fn_kwargs=settings, features=features)
    if adapter.answer and not isinstance(adapted, IterableDataset):
        missing = sum(solution is None for solution in adapted["solution"])
        if missing:
            logger.warning(
                f"No right answer was found in {missing:,} of {len(adapted):,} rows{where} by the adapter {name!r}. "
                "They are kept, but rewards that need `solution` cannot score them."
            )
    return adapted


def check_prompts(dataset: Any) -> None:
    """Check that a dataset has prompts, as TRL needs them."""
    for split, part in dataset.items():
        columns = part.column_names
        if columns is not None and "prompt" not in columns:
            raise ValueError(
                f"The columns of the split {split!r} are {columns}, without `prompt`. {_way_to_prompts(columns)}"
            )


def _way_to_prompts(columns: list[str]) -> str:
    conversations = [column for column in ("messages", "conversations") if column in columns]
    fitting = _fitting(columns)
    if conversations and not fitting:
        return (
            f"No adapter reads whole conversations, as `{conversations[0]}` may hold: make a column `prompt` of each "
            "without its last answer, as a list of messages."
        )
    return "Set `dataset_adapter`" + (
        f" to one of {fitting}." if fitting else f" to one of {list(ADAPTERS)}, or name the columns alike."
    )


def _fitting(columns: list[str]) -> list[str]:
    """Names of the adapters that these columns are enough for."""
    return [name for name, a in ADAPTERS.items() if a.answer and {a.question, a.answer} <= set(columns)]


def _check_columns(columns: list[str], name: str, adapter: Adapter, where: str) -> None:
    needed = [column for column in (adapter.question, adapter.answer, *adapter.reward_columns) if column]
    missing = [column for column in needed if column not in columns]
    if "prompt" in columns and adapter.question != "prompt":
        raise ValueError(
            f"The columns{where} are {columns}: with `prompt`, the dataset is in TRL's format already. Remove "
            "`dataset_adapter`, or set `question_column` to 'prompt' if it holds bare questions."
        )
    if missing:
        fitting = _fitting(columns)
        hint = f"These adapters fit: {fitting}." if fitting else "Set `question_column` and `answer_column`."
        raise ValueError(
            f"The columns{where} are {columns}, but the adapter {name!r} needs {needed}, of which {missing} are "
            f"missing. {hint}"
        )


def _convert(
    batch: dict[str, list],
    rows: list[int],
    adapter: str,
    question: str,
    answer: str | None,
    conversational: bool,
    system_prompt: str | None,
    where: str,
) -> dict[str, list]:
    texts = _texts(batch, question, rows, where)
    columns = {"prompt": [_prompt(text, conversational, system_prompt) for text in texts]}
    if answer is not None:
        gold = ADAPTERS[adapter].gold
        texts = _texts(batch, answer, rows, where, may_be_missing=True)
        columns["solution"] = [None if text is None else gold(text) or None for text in texts]
    return columns


def _prompt(question: str, conversational: bool, system_prompt: str | None) -> Any:
    if conversational:
        system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        return [*system, {"role": "user", "content": question}]
    return ("" if system_prompt is None else system_prompt + "\n\n") + question + "\n"


def _texts(batch: dict[str, list], column: str, rows: list[int], where: str, may_be_missing: bool = False) -> list:
    """The values of a column as text, `None` where one is missing."""
    values = [None if value != value else value for value in batch[column]]  # NaN
    for row, value in zip(rows, values, strict=True):
        if not isinstance(value, str | int | float) and not (value is None and may_be_missing):
            raise ValueError(
                f"The column {column!r}{where} holds {value!r} in row {row}, which is not text. Leave such rows out, "
                "or name another column."
            )
    return [None if value is None else _text(value) for value in values]


def _text(value: str | int | float) -> str:
    return np.format_float_positional(value, trim="-") if isinstance(value, float) else str(value)


def drop_long_prompts(dataset: AnyDataset, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int) -> AnyDataset:
    """Leave out the rows whose prompt has too many tokens, and say how many they are."""
    check_dataset_prompts("dataset", dataset, tokenizer)
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
