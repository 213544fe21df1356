"""
`trl-pods quickstart`: the main job from nothing, on a CPU, without a network.

The task is reasoning-gym's `spell_backward`: spell an English word of three to five letters backward, scored by
reasoning-gym itself. A model of 100,000 parameters is first fine-tuned to spell, then corrupted with shuffled
answers until it is right only about one time in ten. Then `PODSGRPOTrainer` trains it, by the same script and recipe
that `trl-pods grpo --config quickstart` uses, and the share of right answers is measured before and after
on words that it never saw.
"""

import functools
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from ..checks.errors import SetupError
from ..checks.extras import require
from ..cli import train as grpo
from ..cli.bundled import bundled_recipes
from .start_models import Problem, made_whole, make_start_model, sample_answers, shuffled

TASK = {"name": "spell_backward", "min_word_len": 3, "max_word_len": 5, "size": 8000}
NUM_HELD_OUT = 256
MAX_ANSWER_TOKENS = 7  # five letters, the end, and one to spare


def run(output_dir: str, seed: int) -> dict[str, float]:
    """Make an initial checkpoint, train it with PODS and show what was gained."""
    console, started = Console(), time.monotonic()
    folder = Path(output_dir)
    start, data, trained = folder / "start", folder / "data", folder / "model"
    _clear(folder, (start, data, trained))

    console.rule("1/3  A model that sometimes spells a word backward", align="left")
    prepare(str(start), str(data), seed)
    before = accuracy(str(start), data)
    console.print(f"It is right {before:.1%} of the time, on {NUM_HELD_OUT} words that it has not seen.")

    console.rule("2/3  Training it with PODS", align="left")
    recipe = bundled_recipes()["quickstart"]
    console.print(f"The recipe is {recipe}.", soft_wrap=True)
    paths = ["--model_name_or_path", str(start), "--dataset_name", str(data), "--output_dir", str(trained)]
    grpo.run(["--config", str(recipe), *paths, "--seed", str(seed)])

    console.rule("3/3  What it has learned", align="left")
    after = accuracy(str(trained), data)
    seconds = time.monotonic() - started
    console.print(f"Right answers on held-out words: {before:.1%} before, [bold]{after:.1%} after[/bold].")
    console.print(f"Took {seconds:.0f} s. Model: {trained}. Log: {trained / 'trainer_state.json'}.", soft_wrap=True)
    again = f"{_command()} grpo --config {recipe} --model_name_or_path {start} --dataset_name {data}"
    console.print(
        "\nNext, train the initial checkpoint by plain GRPO (n = m), or by another strategy:\n"
        f"  {again} --num_rollouts 16 --zero_variance train --output_dir {folder / 'grpo'}\n"
        f"  {again} --down_sampling max_reward --output_dir {folder / 'max_reward'}\n"
        f"  {_command()} strategies\n"
        "or train your own model: copy the recipe, or swap `GRPOTrainer` for `PODSGRPOTrainer` in your script.",
        soft_wrap=True,
        highlight=False,
    )
    return {"before": before, "after": after, "seconds": seconds}


def _command() -> str:
    """How to call `trl-pods` from where the user is."""
    return "trl-pods" if shutil.which("trl-pods") else os.path.relpath(Path(sys.executable).with_name("trl-pods"))


def _clear(folder: Path, made: tuple[Path, ...]) -> None:
    """Remove what an earlier quickstart made, and nothing else."""
    mark = folder / ".trl_pods_quickstart"
    in_the_way = [str(path) for path in made if path.exists()]
    if in_the_way and not mark.exists():
        raise SetupError(
            f"`--output_dir` is {str(folder)!r}, where {in_the_way} exist that no quickstart has made. Choose another "
            "folder."
        )
    for path in made:
        shutil.rmtree(path, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()


def prepare(model_path: str, data_path: str, seed: int = 0) -> None:
    """Make the initial checkpoint and the data where they are missing. The recipe names this as its `setup_func`."""
    if not Path(data_path).exists():
        with made_whole(Path(data_path)) as draft:
            _write_data(draft, seed)
    if not Path(model_path).exists():
        problems = [Problem(**row) for row in _read(Path(data_path) / "train.jsonl")]
        with made_whole(Path(model_path)) as draft:
            make_start_model(draft, problems, shuffled, seed=seed, lowercase=True)


def spelled_backward(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    """
    Reward 1.0 for the right answer and 0.0 for any other, by reasoning-gym's scorer.

    The scorer gives part of the score for letters in place, also to an answer that never ends, so only the full score
    counts.
    """
    return [
        float(_scorer().score_answer(completion, {"answer": right}) >= 1.0)
        for completion, right in zip(completions, answer, strict=True)
    ]


def accuracy(model_path: str, data_path: Path, num_samples: int = 8) -> float:
    """Measure the share of right answers to the held-out problems, sampled at temperature 1."""
    problems = [row for row in _read(data_path / "test.jsonl") for _ in range(num_samples)]
    answers = sample_answers(model_path, [row["prompt"] for row in problems], MAX_ANSWER_TOKENS)
    return sum(spelled_backward(answers, [row["answer"] for row in problems])) / len(problems)


def _reasoning_gym() -> Any:
    return require("reasoning_gym", "tasks", "The task of the quickstart")


@functools.cache
def _scorer() -> Any:
    return _reasoning_gym().create_dataset(**{**TASK, "size": 1})


def _write_data(folder: Path, seed: int) -> None:
    words: dict[str, dict[str, str]] = {}
    for entry in _reasoning_gym().create_dataset(seed=seed, **TASK):
        word = entry["metadata"]["word"].lower()
        if re.fullmatch("[a-z]+", word) and word != word[::-1]:
            # "dog" and "god" are one problem here, so that neither is held out while the other is trained on.
            words.setdefault(min(word, word[::-1]), {"prompt": entry["question"] + "\n", "answer": word[::-1]})
    problems = list(words.values())
    for name, rows in (("test", problems[:NUM_HELD_OUT]), ("train", problems[NUM_HELD_OUT:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
