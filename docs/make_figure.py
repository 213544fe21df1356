"""Draws docs/how_it_works.svg: one prompt's rollouts, and what `max_variance` keeps of them. Needs the extra `plot`."""

import sys
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from trl_pods.strategies import max_variance

REWARDS = torch.tensor([0.2, 0.0, 1.0, 0.2, 0.0, 0.2, 1.0, 0.0, 0.2, 0.2, 1.2, 0.0, 0.2, 1.0, 0.0, 0.2])  # n = 16
NUM_KEPT = 4  # m
TEXT, MUTED, OURS = "#1f2430", "#6b7280", "#b45309"
STAGES = {  # left edge of each -> what happens, on what
    0.0: ("generate", "TRL, all n", MUTED),
    3.6: ("score", "TRL, all n", MUTED),
    7.2: ("select", "trl_pods, n to m", OURS),
    10.8: ("update", "TRL, the m kept", MUTED),
}


def draw(path: Path) -> None:
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "trl_pods", "font.family": "sans-serif"}
    figure = Figure(figsize=(9.6, 3.1), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-2.3, 14.2), ylim=(-1.1, 5.2))
    axes.axis("off")
    kept = sorted(max_variance(REWARDS[None], NUM_KEPT)[0].tolist())
    _tile(axes, -1.9, 1.5, "prompt", "#eef2f7", width=1.4)
    for i, reward in enumerate(REWARDS.tolist()):
        row, column = divmod(i, 4)
        x, y = 0.75 * column, 3 - row
        _tile(axes, x, y, f"$o_{{{i + 1}}}$", "#eef2f7")
        _tile(axes, 3.6 + x, y, f"{reward:g}", _color(reward))
        _tile(axes, 7.2 + x, y, f"{reward:g}", _color(reward), faded=i not in kept)
    group = REWARDS[kept]
    advantages = (group - group.mean()) / (group.std() + 1e-4)  # GRPO's, over the kept rollouts
    for i, (reward, advantage) in enumerate(zip(group.tolist(), advantages.tolist(), strict=True)):
        _tile(axes, 10.8, 3 - i, f"{reward:g}", _color(reward))
        axes.text(11.65, 3.35 - i, f"advantage {advantage:+.2f}", color=TEXT, fontsize=10, va="center")
    for x in (-0.45, 3.1, 6.7, 10.3):
        axes.annotate("", (x + 0.38, 1.85), (x, 1.85), arrowprops={"arrowstyle": "-|>", "color": MUTED, "lw": 1.4})
    for x, (what, where, color) in STAGES.items():
        axes.text(x, 4.65, what, color=TEXT, fontsize=11, weight="bold")
        axes.text(x, 4.15, where, color=color, fontsize=9.5)
    axes.text(
        0.0,
        -0.75,
        f"num_rollouts = n = {len(REWARDS)}, num_generations = m = {NUM_KEPT}: the {NUM_KEPT} kept have the largest "
        f"variance of reward ({group.var(correction=0):.2f}; all {len(REWARDS)}: {REWARDS.var(correction=0):.2f})",
        color=MUTED,
        fontsize=9.5,
    )
    figure.savefig(path, metadata={"Date": None})


def _tile(axes: Axes, x: float, y: float, text: str, color: str, *, width: float = 0.62, faded: bool = False) -> None:
    shape = {"boxstyle": "round,pad=0,rounding_size=0.1", "alpha": 0.18 if faded else 1.0}
    axes.add_patch(FancyBboxPatch((x, y), width, 0.7, facecolor=color, edgecolor="none", **shape))
    centered = {"ha": "center", "va": "center", "fontsize": 9.5}
    axes.text(x + width / 2, y + 0.34, text, color=TEXT, alpha=0.36 if faded else 1.0, **centered)


def _color(reward: float) -> str:
    return to_hex(matplotlib.colormaps["RdYlGn"](0.15 + 0.7 * reward / REWARDS.max().item()))


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("how_it_works.svg"))
