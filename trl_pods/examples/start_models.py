"""
Initial checkpoints for the recipes that run on a CPU: small, made offline, and right only some of the time.

A Llama of 100,000 parameters is fine-tuned on right answers, then corrupted with wrong labels mixed into them. What it
has learned is still in it, so reinforcement learning can bring it back in a minute.
"""

import itertools
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from rich.console import Console
from rich.progress import track
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)

from ..data import adapt, load_task

MADE_FOR = "start_model.json"  # in the model's folder: the task that it was made for


class Problem(NamedTuple):
    """A prompt, and the right answer to it."""

    prompt: str
    answer: str


def prepare(model_path: str, task: str, task_kwargs: dict[str, Any] | None = None) -> None:
    """
    Make the initial checkpoint of a reasoning-gym task where it is missing. Recipes name this as their `setup_func`.

    It takes half a minute on one core if questions and answers are short, and hours if they are long.
    """
    folder, made_for = Path(model_path), {"task": task, "task_kwargs": task_kwargs or {}}
    if folder.exists():
        _check_made_for(folder, made_for)
        return
    problems = problems_of(task, task_rows(task, task_kwargs))
    with made_whole(folder) as draft:
        make_start_model(
            draft,
            problems,
            wrong_answer=shuffled_or_another,
            seed=(task_kwargs or {}).get("seed", 0),
            num_fine_tuned=250,
            num_corrupted=80,
            share_right=0.5,
        )
        (draft / MADE_FOR).write_text(json.dumps(made_for, default=str) + "\n")


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """
    Give a folder to fill in the `with` block, which becomes the wanted one at its end. So one that is there is whole.
    """
    draft = folder.with_name(f"{folder.name}.draft-{os.getpid()}")
    try:
        draft.mkdir(parents=True, exist_ok=True)
        yield draft
        if not folder.exists():  # else another process was faster
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def task_rows(task: str, task_kwargs: dict[str, Any] | None = None) -> Dataset:
    """Load what an initial checkpoint is fine-tuned on."""
    return adapt(load_task(task, task_kwargs)["train"], "reasoning_gym", conversational=False)


def problems_of(task: str, rows: Dataset) -> list[Problem]:
    """Take prompts and right answers from the rows of a task."""
    answers = [json.loads(entry)["answer"] for entry in rows["entry"]]
    if None in answers:
        raise ValueError(f"The problems of the task {task!r} come without answers. Choose another task.")
    return [Problem(prompt, answer) for prompt, answer in zip(rows["prompt"], answers, strict=True)]


@torch.no_grad()
def sample_answers(model_path: str | Path, prompts: list[str], max_new_tokens: int) -> list[str]:
    """Sample an answer to each prompt at temperature 1, the same each time."""
    set_seed(0)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_path), AutoTokenizer.from_pretrained(model_path)
    tokens = tokenizer(prompts, padding=True, return_tensors="pt")
    output = model.generate(**tokens, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=max_new_tokens)
    return tokenizer.batch_decode(output[:, tokens["input_ids"].size(1) :], skip_special_tokens=True)


def shuffled(answer: str, problems: list[Problem], rng: random.Random) -> str:
    """Shuffle the characters of an answer, which may leave it as it is."""
    return "".join(rng.sample(answer, len(answer)))


def shuffled_or_another(answer: str, problems: list[Problem], rng: random.Random) -> str:
    """Shuffle the characters of an answer, or take another problem's, which is more often wrong if it is short."""
    wrong = shuffled(answer, problems, rng)
    return wrong if wrong != answer and rng.random() < 0.5 else rng.choice(problems).answer


def make_start_model(
    folder: Path,
    problems: list[Problem],
    wrong_answer: Callable[[str, list[Problem], random.Random], str],
    seed: int = 0,
    lowercase: bool = False,
    num_fine_tuned: int = 200,
    num_corrupted: int = 100,
    share_right: float = 0.4,
    num_heads: int = 4,
    hidden_size: int = 64,
    num_layers: int = 2,
    learning_rate: float = 5e-3,
) -> None:
    """Make a model that was fine-tuned on problems, then corrupted with wrong labels, and its tokenizer."""
    set_seed(seed)
    tokenizer = make_tokenizer(problems, lowercase)
    longest = max(len(ids) for ids in tokenizer([problem.prompt + problem.answer for problem in problems])["input_ids"])
    # Llama, because `AutoTokenizer` loads its tokenizers as they were saved.
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=2 * hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=num_heads,
            max_position_embeddings=2 * longest,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    rng, num_steps = random.Random(seed), num_fine_tuned + num_corrupted
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=num_steps, pct_start=0.1)
    description = "fine-tuning, then corrupting with wrong labels"
    for step in track(range(num_steps), description, console=Console(stderr=True)):
        drawn = rng.choices(problems, k=128)
        corrupted = [step >= num_fine_tuned and rng.random() >= share_right for _ in drawn]
        answers = [
            wrong_answer(problem.answer, problems, rng) if corrupt else problem.answer
            for problem, corrupt in zip(drawn, corrupted, strict=True)
        ]
        loss = _supervised_loss(model, tokenizer, [problem.prompt for problem in drawn], answers)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer(problems: list[Problem], lowercase: bool = False) -> PreTrainedTokenizerFast:
    """
    Make a tokenizer with one token for each character, and one for what all prompts start with and one for their end.
    """
    cased = [[text.lower() if lowercase else text for text in problem] for problem in problems]
    prompts = [prompt for prompt, _ in cased]
    start = _common_start(prompts)
    end = _common_start([prompt[len(start) :][::-1] for prompt in prompts])[::-1]
    characters = {c for prompt, answer in cased for c in prompt[len(start) : len(prompt) - len(end)] + answer}
    fixed = [text for text in (start, end) if text]
    vocabulary = dict.fromkeys(["<pad>", "<eos>", *fixed, *sorted(characters)])
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<pad>"))
    if lowercase:
        core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*map(re.escape, fixed), r"[\s\S]"])), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


def _common_start(texts: list[str]) -> str:
    pairs = zip(min(texts), max(texts), strict=False)  # all others are between these
    return "".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _supervised_loss(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: list[str], answers: list[str]
) -> torch.Tensor:
    answers = [answer + tokenizer.eos_token for answer in answers]
    tokens = tokenizer([p + a for p, a in zip(prompts, answers, strict=True)], padding=True, return_tensors="pt")
    length = tokens["input_ids"].size(1)
    answer_lengths = torch.tensor([len(ids) for ids in tokenizer(answers)["input_ids"]])
    is_answer = torch.arange(length) >= length - answer_lengths[:, None]  # (rows, tokens), padded on the left
    return model(**tokens, labels=tokens["input_ids"].where(is_answer, -100)).loss


def _check_made_for(folder: Path, made_for: dict[str, Any]) -> None:
    mark = folder / MADE_FOR
    if mark.exists() and (found := json.loads(mark.read_text())) != json.loads(json.dumps(made_for, default=str)):
        raise ValueError(
            f"`model_name_or_path` is {str(folder)!r}, an initial checkpoint for {found}, but the recipe trains on "
            f"{made_for}. Remove the folder, or name another."
        )
