"""Finding the boxed answer in LaTeX."""

import re

_BOX_OR_BRACE = re.compile(r"\\?\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""
    Find what the last `\boxed{...}` or `\fbox{...}` of a text holds.

    Braces are matched, escaped ones (`\{`) left out of the count. A box that is never closed, as in a completion that
    was cut, is passed over; of boxes in a box the last that opens counts.

    Args:
        text (`str`):
            Text to search.

    Returns:
        `str` or `None`: The text between the braces, without surrounding whitespace, or `None` if there is no such
        box.

    Example:

    ```python
    >>> from trl_pods.latex import last_boxed

    >>> last_boxed(r"First \boxed{1}, so the answer is $\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'

    ```
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
