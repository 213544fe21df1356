"""
Initial checkpoints of a given accuracy, for `bench_cost.py`.

A model of 100,000 parameters is taught a task by right answers, and then muddled by wrong ones mixed into them: the
more of them, the lower the accuracy that training starts from.
"""

import json
from pathlib import Path
from typing import Any

from trl_pods.examples.start_models import (
    MADE_FOR,
    Problem,
    make_start_model,
    problems_of,
    sample_answers,
    shuffled_or_another,
    task_rows,
)
from trl_pods.rewards import reasoning_gym_reward


def prepare(
    model_path: str,
    task: str,
    task_kwargs: dict[str, Any] | None = None,
    *,
    share_right: float = 1.0,
    **model: Any,
) -> None:
    """
    Make the initial checkpoint where it is missing.

    Args:
        model_path (`str`):
            Folder for the model and its tokenizer.
        task (`str`):
            Name of the reasoning-gym task.
        task_kwargs (`dict[str, Any]`, *optional*):
            Its settings.
        share_right (`float`, *optional*, defaults to 1.0):
            Share of right answers while it is muddled, in [0, 1]; with 1, it is not.
        **model:
            Sizes of another model, for `make_start_model`.
    """
    folder = Path(model_path)
    if (folder / MADE_FOR).exists():
        return
    rows = task_rows(task, task_kwargs)
    problems = problems_of(task, rows)
    make_start_model(
        folder,
        problems,
        shuffled_or_another,
        num_fine_tuned=250,
        num_corrupted=80 if share_right < 1 else 0,
        share_right=share_right,
        **{"num_heads": 4} | model,
    )
    made = {"task": task, "task_kwargs": task_kwargs or {}, "accuracy": measure(folder, problems, rows)}
    (folder / MADE_FOR).write_text(json.dumps(made) + "\n")


def measure(folder: Path, problems: list[Problem], rows: Any, num_problems: int = 512) -> float:
    """
    Measure the share of right answers.

    Args:
        folder (`Path`):
            Folder of the model.
        problems (`list[Problem]`):
            The problems.
        rows (`~datasets.Dataset`):
            Their rows, with columns `task` and `entry`.
        num_problems (`int`, *optional*, defaults to 512):
            How many of them to ask.

    Returns:
        `float`: The share, in [0, 1].
    """
    asked = problems[:num_problems]
    longest = max(len(problem.answer) for problem in asked)  # a token for each character, and one for the end
    answers = sample_answers(folder, [problem.prompt for problem in asked], longest + 1)
    return sum(is_right(answers, rows["task"][:num_problems], rows["entry"][:num_problems])) / len(asked)


def is_right(completions: list[str], task: list[str], entry: list[str], **kwargs: Any) -> list[float]:
    """Reward 1.0 for the full score of the task's own scorer, and 0.0 for less."""
    scores = reasoning_gym_reward(completions, task=task, entry=entry)
    return [float((score or 0.0) >= 1.0) for score in scores]
