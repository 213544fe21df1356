"""
Plots of runs as SVG that stands in a page: its colours are the page's, and its text is text.

Colours are those of Okabe and Ito, which are safe for the colour-blind.
"""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...checks.extras import require
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
_LABEL_LENGTH = 26  # characters


@dataclass(frozen=True)
class Line:
    """A line of a plot."""

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
    """Draw lines and a legend."""
    figure, axes = _axes(x_label, y_label)
    for line in lines:
        label = shorten(line.label, _LABEL_LENGTH)
        axes.plot(line.x, line.y, color=COLORS[line.color], label=label, **_style(line))
    if reference is not None:
        axes.axhline(reference[0], color=COLORS["muted"], linewidth=1, linestyle=":", label=reference[1])
    axes.margins(x=0.02, y=0.08)
    _fit(axes, limits)
    _legend(axes)
    return _svg(figure)


def draw_stack(lines: Sequence[Line], edges: Sequence[float], *, x_label: str, y_label: str, top: float) -> str:
    """Draw values on top of each other, as steps from edge to edge."""
    figure, axes = _axes(x_label, y_label)
    floor = [0.0] * len(edges[1:])
    for line in lines:
        ceiling = [low + (value if math.isfinite(value) else 0.0) for low, value in zip(floor, line.y, strict=True)]
        below, above = [*floor, floor[-1]], [*ceiling, ceiling[-1]]
        axes.fill_between(edges, below, above, step="post", color=COLORS[line.color], linewidth=0, label=line.label)
        floor = ceiling
    axes.margins(x=0)
    _fit(axes, (0.0, top))
    _legend(axes)
    return _svg(figure)


def _axes(x_label: str, y_label: str) -> "tuple[Figure, Axes]":
    Figure = require("matplotlib.figure", "plot", "The report").Figure
    from matplotlib.ticker import MaxNLocator

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


def _legend(axes: "Axes") -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, labels = axes.get_legend_handles_labels()
    colors: list[Any] = [h.get_color() if isinstance(h, Line2D) else h.properties()["facecolor"] for h in handles]
    patches = [Patch(facecolor=color, label=label) for color, label in zip(colors, labels, strict=True)]
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1), "handlelength": 0.7}
    for text in axes.legend(handles=patches, frameon=False, labelcolor=COLORS["ink"], **place).get_texts():
        text.set_parse_math(False)  # a `$` is a dollar


def _svg(figure: "Figure") -> str:
    """The plot without what a page does not need, and with the page's colours and font in place of ours."""
    import matplotlib

    file = io.StringIO()
    axes = figure.axes[0]
    # Names inside a plot are hashed with a salt: the same each time, and not that of another plot.
    salt = "\n".join([axes.get_xlabel(), axes.get_ylabel(), *axes.get_legend_handles_labels()[1]])
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
