"""Plots of a comparison: accuracy against steps and seconds, and the speedup against the cost ratio."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..runs.atomic import atomic_write
from .costs import Prices
from .curves import Curve, mean_curve
from .outcome import Outcome

# Okabe and Ito's colours, which are safe for the colour-blind.
COLOURS = ("#56B4E9", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
AXES = {
    "steps": "optimizer steps",
    "rollouts": "rollouts sampled",
    "rows": "rows trained",
    "seconds": "training time (s), evaluation excluded",
}


class Panel(NamedTuple):
    """One panel of the plot of accuracy."""

    axis: str
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
    axes[0].set_ylabel("accuracy on held-out problems")
    axes[0].legend(frameon=False, fontsize=9, loc="best")
    with atomic_write(path) as draft:
        figure.savefig(draft, dpi=150)


def _draw_panel(ax: Axes, panel: Panel, colours: dict[str, str]) -> None:
    for label, runs in panel.curves.items():
        grid, accuracy = mean_curve(runs, panel.axis)
        mean, spread = accuracy.mean(axis=0), accuracy.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(grid))
        ax.plot(grid, mean, color=colours[label], linewidth=1.6, label=label)
        ax.fill_between(grid, mean - spread, mean + spread, color=colours[label], alpha=0.15, linewidth=0)
    ax.set_xlabel(AXES[panel.axis])
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]), top=max(1, ax.get_ylim()[1]))
    ax.grid(alpha=0.2)
    ax.spines[["top", "right"]].set_visible(False)


def draw_speedups(
    path: Path, title: str, methods: dict[str, str], by_cost_ratio: dict[float, Outcome], prices: Prices | None
) -> None:
    """Draw the speedup of each method, by its label, over the better GRPO, with its 95 % interval."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    cs = sorted(by_cost_ratio)
    for colour, (label, name) in zip(COLOURS[2:] + COLOURS[:2], methods.items(), strict=False):
        ratios = [by_cost_ratio[c].ratios[name] for c in cs]
        low, high = zip(*(by_cost_ratio[c].intervals[name] for c in cs), strict=True)
        ax.plot(cs, ratios, color=colour, linewidth=1.6, label=label)
        ax.fill_between(cs, low, high, color=colour, alpha=0.12, linewidth=0)
    ax.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    if prices is not None:
        ax.axvline(prices.cost_ratio, color="black", linewidth=0.8, linestyle="--", label="measured here")
    ax.set_xscale("log")
    ax.set_xlim(1, 100)
    ax.set_ylim(bottom=0)
    ax.set_title(title, fontsize=11)
    ax.set_xlabel("cost ratio c: seconds of a trained row / seconds of a sampled rollout")
    ax.set_ylabel("speedup over the better GRPO")
    ax.grid(alpha=0.2)
    if methods:
        ax.legend(frameon=False, fontsize=9, loc="best")
    with atomic_write(path) as draft:
        figure.savefig(draft, dpi=150)
