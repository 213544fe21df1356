"""Numbers and texts as a page shows them."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


def shorten(text: str, length: int) -> str:
    """Leave out the middle of a long text, because an answer is at its end."""
    if len(text) <= length:
        return text
    left_out = f" … {len(text) - length:,} characters … " if length > 100 else "…"
    return text[: length - length // 2] + left_out + text[-(length // 2) :]


def number(value: float) -> str:
    """Write a number with three digits."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"


def percentage(value: float) -> str:
    """Write a fraction in percent."""
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def plain_text(value: Any) -> str:
    """Write a prompt or a completion of a completions table."""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return "\n".join(_message_text(message) if isinstance(message, Mapping) else str(message) for message in value)
    return str(value)


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = [plain_text(content)] if content is not None else []
    if message.get("tool_calls") is not None:
        parts.append(json.dumps(message["tool_calls"], default=_as_list, ensure_ascii=False))
    return f"{message.get('role')}: {' '.join(parts)}"


def _as_list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)  # tables give lists back as arrays
