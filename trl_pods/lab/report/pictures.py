"""
Pictures of runs as SVG that stands in a page: its colours are the page's, and its text is text.

Colours are those of Okabe and Ito, which colour-blind people can tell apart.
"""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...checks.errors import SetupError
from .text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By name, for a light page. A page sets the CSS variable `--<name>` to show another.
COLORS = {
    "ink": "#1f2328",
    "muted": "#6a737d",
    "grid": "#d9dee3",
    "blue": "#0072b2",
    "vermillion": "#d55e00",
    "green": "#009e73",
    "purple": "#cc79a7",
    "orange": "#e69f00",
    "sky": "#56b4e9",
    "gray": "#9a9fa6",
}
CYCLE = ("blue", "vermillion", "green", "purple", "orange", "sky", "gray")

_SIZE = (6.4, 2.7)  # inches
_FEW = 40  # points that are marked one by one
_LABEL_GAP = 0.095  # of the height of the axes
_LABEL_LENGTH = 26  # characters


@dataclass(frozen=True)
class Line:
    """A line of a picture."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dashed: bool = False


def draw_lines(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    limits: tuple[float | None, float | None] = (None, None),
    reference: tuple[float, str] | None = None,
) -> str:
    """Draw lines, each with its name at its right end."""
    figure, axes = _axes(x_label, y_label)
    for line in lines:
        axes.plot(line.x, line.y, color=COLORS[line.color], **_style(line))
    labels = [(_last_known(line.y), line.label, line.color) for line in lines]
    if reference is not None:
        axes.axhline(reference[0], color=COLORS["muted"], linewidth=1, linestyle=":")
        labels.append((*reference, "muted"))
    axes.margins(x=0.02, y=0.08)
    _fit(axes, limits)
    _label_right(axes, labels)
    return _svg(figure)


def draw_stack(lines: Sequence[Line], edges: Sequence[float], *, x_label: str, y_label: str, top: float) -> str:
    """Draw values on top of each other, as steps from edge to edge."""
    figure, axes = _axes(x_label, y_label)
    floor, labels = [0.0] * len(edges[1:]), []
    for line in lines:
        ceiling = [low + (value if math.isfinite(value) else 0.0) for low, value in zip(floor, line.y, strict=True)]
        below, above = [*floor, floor[-1]], [*ceiling, ceiling[-1]]
        axes.fill_between(edges, below, above, step="post", color=COLORS[line.color], linewidth=0)
        labels.append(((floor[-1] + ceiling[-1]) / 2, line.label, line.color))
        floor = ceiling
    axes.margins(x=0)
    _fit(axes, (0.0, top))
    _label_right(axes, labels)
    return _svg(figure)


def _axes(x_label: str, y_label: str) -> "tuple[Figure, Axes]":
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise SetupError("Pictures need matplotlib. Install it with: pip install 'trl-pods[plot]'") from error
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x_label, color=COLORS["ink"])
    axes.set_ylabel(y_label, color=COLORS["ink"])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.grid(axis="y", color=COLORS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=COLORS["muted"], length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(COLORS["muted"])
    return figure, axes


def _style(line: Line) -> dict[str, Any]:
    """Few points are marked, and so are those that no neighbour connects to the line."""
    known = [False, *map(math.isfinite, line.y), False]
    alone = [i for i in range(len(line.y)) if known[i + 1] and not (known[i] or known[i + 2])]
    marked = list(range(len(line.y))) if len(line.y) <= _FEW else alone
    return {
        "linewidth": 1.8,
        "linestyle": "--" if line.dashed else "-",
        "marker": "o",
        "markersize": 3.2,
        "markevery": marked,
    }


def _fit(axes: "Axes", limits: tuple[float | None, float | None]) -> None:
    axes.set_ylim(*limits)
    axes.set_xlim(*axes.get_xlim())


def _last_known(values: Sequence[float]) -> float:
    return next((value for value in reversed(values) if math.isfinite(value)), math.nan)


def _label_right(axes: "Axes", labels: list[tuple[float, str, str]]) -> None:
    """Write each name beside the axes, at the height of its value or as near as the other names allow."""
    low, high = axes.get_ylim()
    labels = [label for label in labels if math.isfinite(label[0])]
    heights = _spread([min(max((value - low) / (high - low), 0.0), 1.0) for value, _, _ in labels], _LABEL_GAP)
    for height, (_, name, color) in zip(heights, labels, strict=True):
        _write(axes, height, 5, "■", color)
        _write(axes, height, 17, shorten(name, _LABEL_LENGTH), "ink")


def _write(axes: "Axes", height: float, points: float, text: str, color: str) -> None:
    """Write beside the axes, so many points to the right; a `$` in the text is a dollar."""
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (1, height), (points, 0), color=COLORS[color], parse_math=False, **place)


def _spread(heights: list[float], gap: float) -> list[float]:
    """Move heights in [0, 1] apart, so that neighbours are `gap` apart and, if there is room, none is above 1."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed, floor = list(heights), -math.inf
    for i in order:
        placed[i] = max(placed[i], floor)
        floor = placed[i] + gap
    ceiling = 1.0
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def _svg(figure: "Figure") -> str:
    """The picture without what a page does not need, and with the page's colours and font in place of ours."""
    import matplotlib

    file = io.StringIO()
    axes = figure.axes[0]
    # Names inside a picture are hashed with a salt: the same each time, and not that of another picture.
    salt = "\n".join([axes.get_xlabel(), axes.get_ylabel(), *(text.get_text() for text in axes.texts)])
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt" ', "", text)
    text = re.sub(r"font-family: [^;]*; ", "", text)
    used = set(re.findall(r"#(\w+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    for name, color in COLORS.items():
        text = text.replace(color, f"var(--{name}, {color})")
    return text
