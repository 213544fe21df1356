"""Plots of a comparison: accuracy against seconds and against steps."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..runs.atomic import atomic_write
from .curves import Curve, mean_curve

# Okabe and Ito's colours, which are safe for the colour-blind.
COLOURS = ("#56B4E9", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
AXES = {"seconds": "training time (s), evaluation excluded", "steps": "optimizer steps"}


class Panel(NamedTuple):
    """One panel of the plot."""

    title: str
    unit: str
    curves: dict[str, list[Curve]]
    target: float


def draw(path: Path, title: str, panels: list[Panel]) -> None:
    """Draw accuracy, mean over the seeds with a band of one standard deviation."""
    figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    colours = dict(zip(panels[0].curves, COLOURS * len(panels[0].curves), strict=False))
    for ax, panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel, colours)
        ax.axhline(panel.target, color="grey", linewidth=0.8, linestyle=":", label="target")
        ax.set_title(panel.title, fontsize=10)
    axes[0].set_ylabel("accuracy on held-out problems")
    axes[0].legend(frameon=False, fontsize=9, loc="best")
    with atomic_write(path) as draft:
        figure.savefig(draft, dpi=150)


def _draw_panel(ax: Axes, panel: Panel, colours: dict[str, str]) -> None:
    for label, runs in panel.curves.items():
        grid, accuracy = mean_curve(runs, panel.unit)
        mean, spread = accuracy.mean(axis=0), accuracy.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(grid))
        ax.plot(grid, mean, color=colours[label], linewidth=1.6, label=label)
        ax.fill_between(grid, mean - spread, mean + spread, color=colours[label], alpha=0.15, linewidth=0)
    ax.set_xlabel(AXES[panel.unit])
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]), top=max(1, ax.get_ylim()[1]))
    ax.grid(alpha=0.2)
    ax.spines[["top", "right"]].set_visible(False)
