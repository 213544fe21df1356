"""Plots of a comparison: accuracy against steps and seconds, and the speedup against the cost ratio."""

import math
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


class SpeedupPanel(NamedTuple):
    """One panel of the plot of speedups: methods by their labels, and where c was measured."""

    title: str
    methods: dict[str, str]
    by_cost_ratio: dict[float, Outcome]
    prices: Prices | None


def draw_speedups(path: Path, panels: list[SpeedupPanel], num_columns: int = 1) -> None:
    """Draw the speedup of each method over the better GRPO against the cost ratio, with its 95 % interval."""
    num_rows = math.ceil(len(panels) / num_columns)
    width = 6 if num_columns == 1 else 4
    figure = Figure(figsize=(width * num_columns, 2 / 3 * width * num_rows), layout="constrained")
    axes = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for ax, panel in zip(axes, panels, strict=False):
        _draw_speedups(ax, panel)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    if len(panels) == 1 and panels[0].methods:
        axes[0].legend(frameon=False, fontsize=9, loc="best")
    elif panels:
        figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=3)
    figure.supxlabel("cost ratio c: seconds of a trained row / seconds of a sampled rollout", fontsize=10)
    figure.supylabel("speedup over the better GRPO", fontsize=10)
    with atomic_write(path) as draft:
        figure.savefig(draft, dpi=150)


def _draw_speedups(ax: Axes, panel: SpeedupPanel) -> None:
    cs = sorted(panel.by_cost_ratio)
    outcomes = [panel.by_cost_ratio[c] for c in cs]
    for colour, (label, name) in zip(COLOURS[2:] + COLOURS[:2], panel.methods.items(), strict=False):
        low, high = zip(*(outcome.intervals[name] for outcome in outcomes), strict=True)
        ax.plot(cs, [outcome.ratios[name] for outcome in outcomes], color=colour, linewidth=1.6, label=label)
        ax.fill_between(cs, low, high, color=colour, alpha=0.12, linewidth=0)
    ax.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    if panel.prices is not None:
        ax.axvline(panel.prices.cost_ratio, color="black", linewidth=0.8, linestyle="--", label="measured here")
    ax.set_xscale("log")
    ax.set_xlim(1, 100)
    ax.set_ylim(bottom=0)
    ax.set_title(panel.title, fontsize=11)
    ax.grid(alpha=0.2)
