r"""
Finding the final answer in a text, and comparing answers by math-verify (an optional dependency).

math-verify reads `\boxed{...}` as one formula, and searches other text for one. Which of the two an answer is decides
how much of it counts: `2\sqrt{3}` is a formula, but searched as text it would be the number 2.
"""

import logging
import re
import threading
from decimal import Decimal
from typing import Any

from .checks.extras import require

LONGEST = 300  # characters of an answer that are read, its last: reading takes time that grows with their number
PARSE_SECONDS = 5  # longest time for reading one answer
VERIFY_SECONDS = 5  # longest time for comparing two

# What an answer alone does not hold: LaTeX delimiters, more lines than one, words among other things.
_PROSE = re.compile(r"\$|\\\(|\\\[|\n|[A-Za-z]{2,}[.,:;]?\s|\s[A-Za-z]{2,}")
_LATEX_COMMAND = re.compile(r"\\text\w*\s*\{[^{}]*\}|\\[A-Za-z]+")

_DOLLARS = re.compile(r"^\$+([^$]+)\$+$")  # delimiters of a formula
_CURRENCY = re.compile(r"^([-+]?)\s*\\?\$\s*(?=[\d.])")
_SEPARATOR = r"(?:,|,?\\[,!; ]|\{,\}|[ \u00a0\u202f])"  # of thousands
_GROUPED = re.compile(rf"^[-+]?\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?:\.\d+)?(?:\\?%)?$")
_EXPONENT = re.compile(r"^[-+]?\d{1,16}(?:\.\d{1,16})?[eE][-+]?\d{1,2}$")
_MIXED_NUMBER = re.compile(r"^([-+]?\d+) +(\d+)/(\d+)$")
_WORD = re.compile(r"^[A-Za-z]{3,}$")
_BOX_OR_BRACE = re.compile(r"\\?\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""
    Find what the last `\boxed{...}` or `\fbox{...}` of a text holds.

    Braces are matched, escaped ones (`\{`) left out of the count. A box that is never closed, as in a completion that
    was truncated, is skipped; of boxes in a box the last that opens counts.

    """
    content, content_start = None, -1
    opened: list[tuple[bool, int]] = []  # whether a box, and where what it holds starts
    for match in _BOX_OR_BRACE.finditer(text):
        token = match.group()
        if token.endswith("{") and not token.startswith(r"\{"):
            opened.append((len(token) > 1, match.end()))
        elif token == "}" and opened:
            is_box, start = opened.pop()
            if is_box and start > content_start:
                content, content_start = text[start : match.start()].strip(), start
    return content


def final_answer(text: str) -> str:
    """The final answer of a worked solution: what follows the last `####`, and of that what the last box holds."""
    text = text.rpartition("####")[2]
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed


def parse_answer(answer: str) -> list[Any]:
    """Read an answer."""
    math_verify = _math_verify()
    answer = _normalized(answer[-LONGEST:])
    if not any(map(str.isalnum, answer)):
        return []
    is_formula = _PROSE.search(_LATEX_COMMAND.sub("", answer)) is None
    return math_verify.parse(
        rf"\boxed{{{answer}}}" if is_formula else answer, parsing_timeout=_time_limit(PARSE_SECONDS)
    )


def is_same_answer(gold: list[Any], answer: list[Any]) -> bool:
    """Compare an answer with the right one."""
    return _math_verify().verify(gold, answer, timeout_seconds=_time_limit(VERIFY_SECONDS))


def _normalized(answer: str) -> str:
    """Leave out what stands around a number or formula, and the separators of thousands."""
    answer = answer.strip().strip("*").strip()
    answer = re.sub(r"(?<=[\w)}%$])\.$", "", answer).removesuffix("°")
    answer = _DOLLARS.sub(r"\1", answer)
    answer = _CURRENCY.sub(r"\1", answer).strip()
    if _GROUPED.match(answer):
        return re.sub(_SEPARATOR, "", answer)
    if _EXPONENT.match(answer):
        return format(Decimal(answer), "f")
    answer = _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", answer)  # not read by math-verify
    return _WORD.sub(r"\\text{\g<0>}", answer)  # not a product of letters


def _time_limit(seconds: int) -> int | None:
    # math-verify's limits are signals, which only the main thread gets. It warns where there is no limit.
    if threading.current_thread() is threading.main_thread():
        return seconds
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).addFilter(_is_not_about_missing_limit)
    return None


def _is_not_about_missing_limit(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Timeout is disabled")


def _math_verify() -> Any:
    return require("math_verify", "math", "`accuracy_reward`")
