r"""
Reward functions for answers that can be checked, and for the format `<think>...</think><answer>...</answer>`.

Each is called as TRL calls reward functions, with lists that have one item per completion, and works with plain
[`~trl.GRPOTrainer`] too. A completion is a string or a list of messages, of which the last assistant's counts.
"""

import functools
import json
import re
import warnings
from collections.abc import Callable
from typing import Any

from .answers import final_answer, is_same_answer, parse_answer
from .checks.extras import require

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")

_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_WELL_FORMED = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)


def accuracy_reward(
    completions: list, solution: list[str | None], log_extra: Callable[[str, list], None] | None = None, **kwargs
) -> list[float | None]:
    r"""
    Reward a completion whose answer equals the solution, as math-verify compares them.

    The answer of a completion is what its last `<answer>...</answer>` holds, or what follows its thought where it has
    one but no such tag; of that what follows the last `####`, and of that what the last `\boxed{...}` holds; each step
    is left out where there is nothing of the kind. The answer in a solution is found alike, but for the tags. What is
    then left is read as a formula, or, if it is more than that, searched for one by math-verify, in its last 300
    characters. `1,234` equals `1234`, `\$5` equals `5`, `\frac{1}{2}` equals `0.5`, `1e3` equals `1000`, and `50%`
    equals both `50` and `0.5`.

    Reading and comparing an answer takes at most 5 seconds each. Outside the main thread it takes as long as it takes,
    because math-verify's time limits work by signals.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Completions, as text or as messages.
        solution (`list[str]`):
            Solutions, such as `"... #### 72"` (GSM8K), `"... \\boxed{72}"` (MATH) or `"72"`.
        log_extra (`Callable`, *optional*):
            Given by the trainer. The answers that were found are logged in the columns `gold` and `answer`.
        **kwargs:
            What else the trainer passes; not used.

    Returns:
        `list[float | None]`: 1.0 if the answer is right, 0.0 if it is wrong or missing, and `None` if no answer can be
        read from the solution.

    Raises:
        ImportError: math-verify is not installed.

    Example:

    ```python
    >>> from trl_pods.rewards import accuracy_reward

    >>> accuracy_reward(["<answer>1,200</answer>", r"So it is \boxed{12}."], solution=["... #### 1200"] * 2)
    [1.0, 0.0]

    ```
    """
    golds = {text: final_answer("" if text is None else str(text)) for text in solution}
    parsed = {text: parse_answer(gold) for text, gold in golds.items()}  # once for all completions of a prompt
    answers = [final_answer(_last_answer_tag(_text_of(completion))) for completion in completions]
    rewards = [
        float(is_same_answer(parsed[text], parse_answer(answer))) if parsed[text] else None
        for text, answer in zip(solution, answers, strict=True)
    ]
    if log_extra is not None:
        log_extra("gold", [golds[text] for text in solution])
        log_extra("answer", answers)
    return rewards


def format_reward(completions: list, prompts: list | None = None, **kwargs) -> list[float]:
    """
    Reward a completion that is one `<think>...</think>` followed by one `<answer>...</answer>`, and nothing else.

    Whitespace may stand around the two. A completion that lacks only the first `<think>` is right if the prompt ends
    with it: text, or messages of which the last is the assistant's. The prompt is what the dataset holds; a `<think>`
    that the chat template adds cannot be seen from here. Use a template that does not add it, or prompts that are text.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Completions, as text or as messages.
        prompts (`list[str]` or `list[list[dict]]`, *optional*):
            Prompts, given by the trainer.
        **kwargs:
            What else the trainer passes; not used.

    Returns:
        `list[float]`: 1.0 if the format is right, else 0.0.

    Example:

    ```python
    >>> from trl_pods.rewards import format_reward

    >>> format_reward(["<think>2 and 2</think>\\n<answer>4</answer>", "4"])
    [1.0, 0.0]
    >>> format_reward(["2 and 2</think><answer>4</answer>"], prompts=["What is 2 + 2? <think>"])
    [1.0]

    ```
    """
    texts = _with_prefilled_tags(completions, prompts)
    return [float(all(text.count(tag) == 1 for tag in _TAGS) and bool(_WELL_FORMED.fullmatch(text))) for text in texts]


def tag_count_reward(completions: list, prompts: list | None = None, **kwargs) -> list[float]:
    """
    Reward 0.25 for each of `<think>`, `</think>`, `<answer>` and `</answer>` that occurs exactly once.

    A `<think>` at the end of the prompt counts for a completion that has none, see [`format_reward`].

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Completions, as text or as messages.
        prompts (`list[str]` or `list[list[dict]]`, *optional*):
            Prompts, given by the trainer.
        **kwargs:
            What else the trainer passes; not used.

    Returns:
        `list[float]`: 0.0, 0.25, 0.5, 0.75 or 1.0.

    Example:

    ```python
    >>> from trl_pods.rewards import tag_count_reward

    >>> tag_count_reward(["<think>2 and 2</think> 4", "<answer>4</answer></answer>"])
    [0.5, 0.25]

    ```
    """
    texts = _with_prefilled_tags(completions, prompts)
    return [sum(0.25 for tag in _TAGS if text.count(tag) == 1) for text in texts]


def reasoning_gym_reward(completions: list, task: list[str], entry: list[str], **kwargs) -> list[float]:
    """
    Reward an answer by the scorer of its reasoning-gym task.

    The answer is what the last `<answer>...</answer>` of the completion holds, or the whole completion. Some scorers
    raise on an answer that is not of the form they expect; such an answer scores 0.0. If the scorer also raises on the
    entry's own answer, the data is at fault and its exception is raised. Those of `binary_matrix` and `n_queens` run
    the answer as Python; do not use them where a model's answer must not run.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Completions, as text or as messages.
        task (`list[str]`):
            Names of reasoning-gym tasks, such as `"countdown"`.
        entry (`list[str]`):
            The tasks' entries as JSON text, each with `question`, `answer` and `metadata`.
        **kwargs:
            What else the trainer passes; not used.

    Returns:
        `list[float]`: Scores in [0, 1].

    Raises:
        ValueError: There is no such task.

    Example:

    ```python
    >>> from trl_pods.rewards import reasoning_gym_reward

    >>> entry = '{"question": "2 + 2 =", "answer": "4", "metadata": {}}'
    >>> reasoning_gym_reward(["<answer>4</answer>", "5"], task=["basic_arithmetic"] * 2, entry=[entry] * 2)
    [1.0, 0.0]

    ```
    """
    entries = {text: json.loads(text) for text in entry}
    answers = [_last_answer_tag(_text_of(completion)).strip() for completion in completions]
    rows = zip(answers, task, entry, strict=True)
    return [_score(_scorer(name), answer, entries[text]) for answer, name, text in rows]


# The reward functions that a recipe names without their path. `accuracy_reward` is not among them: that name is TRL's.
REWARDS: dict[str, Callable[..., list[float]]] = {
    "format_reward": format_reward,
    "tag_count_reward": tag_count_reward,
    "reasoning_gym_reward": reasoning_gym_reward,
}


def _text_of(completion: Any) -> str:
    """The text, or that of the assistant's last message; a message without a role counts as the assistant's."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") for message in completion if message.get("role", "assistant") == "assistant"]
    content = (said[-1] if said else None) or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def _last_answer_tag(text: str) -> str:
    answers = _ANSWER.findall(text)
    if answers:
        return answers[-1]
    return text.partition("</think>")[2] if "<think>" in text else text  # a thought is no answer, nor one that was cut


def _with_prefilled_tags(completions: list, prompts: list | None) -> list[str]:
    """The texts of completions, with the `<think>` that the prompt ends with."""
    prompts = [""] * len(completions) if prompts is None else prompts
    endings = (prompt if isinstance(prompt, str) else _text_of(prompt[-1:]) for prompt in prompts)
    texts = [_text_of(completion) for completion in completions]
    return [
        "<think>" + text if ending.rstrip().endswith("<think>") and "<think>" not in text else text
        for ending, text in zip(endings, texts, strict=True)
    ]


@functools.cache
def _scorer(task: str) -> Callable[[str, dict[str, Any]], float]:
    factory = require("reasoning_gym.factory", "tasks", "`reasoning_gym_reward`")  # takes a second to import
    if task not in factory.DATASETS:
        raise ValueError(f"The column `task` has {task!r}, which is no task of reasoning-gym. Name one of its tasks.")
    return factory.get_score_answer_fn(task)


def _score(scorer: Callable[[str, dict[str, Any]], float], answer: str, entry: dict[str, Any]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some scorers hand the answer to Python's or NumPy's parser, which warn of it
        try:
            score = scorer(answer, entry)
        except Exception:
            scorer(entry["answer"], entry)
            return 0.0
    return min(max(float(score), 0.0), 1.0)
