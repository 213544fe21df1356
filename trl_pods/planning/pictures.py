"""The plan as a heat map: signal per second over n and m."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .plan import Plan
from .table import seconds_text

# From white to Okabe and Ito's blue: one hue, so that lightness alone tells, also to the colour-blind and in print.
_COLOURS = ("#FFFFFF", "#56B4E9", "#0072B2")
_FRAME = "#D55E00"
_DARK = 0.72  # relative signal from which on text is white


def draw(path: Path, plan: Plan) -> None:
    """
    Draw the heat map.

    Args:
        path (`Path`):
            PNG to write.
        plan ([`Plan`]):
            The plan.
    """
    rollouts = sorted({pair.num_rollouts for pair in plan.pairs})
    kept = sorted({pair.num_generations for pair in plan.pairs})
    figure = Figure(figsize=(max(5.6, 1.6 + 1.05 * len(rollouts)), 1.9 + 0.62 * len(kept)), layout="constrained")
    axes = figure.subplots()
    values = np.full((len(kept), len(rollouts)), np.nan)
    for pair in plan.pairs:
        x, y = rollouts.index(pair.num_rollouts), kept.index(pair.num_generations)
        values[y, x] = plan.relative(pair)
        _annotate(axes, x, y, values[y, x], seconds_text(pair.seconds), is_best=pair == plan.best)
    for y, x in np.argwhere(np.isnan(values)):
        axes.text(x, y, "n < m", ha="center", va="center", color="#777777", fontsize=8)
    image = axes.imshow(values, cmap=_colour_map(), vmin=0, vmax=1, aspect="auto", origin="lower")
    _label(axes, rollouts, kept)
    bar = figure.colorbar(image, ax=axes, label="signal per second, best = 1", pad=0.02)
    bar.outline.set_visible(False)
    best = f"best: n = {plan.best.num_rollouts}, m = {plan.best.num_generations}"
    figure.suptitle(f"{plan.title}\n{plan.rule}, {plan.num_prompts} prompts a generation batch; {best}", fontsize=10)
    figure.savefig(path, dpi=150)


def _label(axes: Axes, rollouts: list[int], kept: list[int]) -> None:
    axes.set_xticks(range(len(rollouts)), [str(n) for n in rollouts])
    axes.set_yticks(range(len(kept)), [str(m) for m in kept])
    axes.set_xlabel("rollouts sampled per prompt, n (num_rollouts)")
    axes.set_ylabel("kept, m (num_generations)")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _annotate(axes: Axes, x: int, y: int, relative: float, seconds: str, *, is_best: bool) -> None:
    colour = "white" if relative > _DARK else "#222222"
    weight = "bold" if is_best else "normal"
    axes.text(x, y + 0.14, f"{relative:.2f}", ha="center", va="center", color=colour, fontsize=11, fontweight=weight)
    axes.text(x, y - 0.22, seconds, ha="center", va="center", color=colour, fontsize=8)
    if is_best:
        axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, fill=False, edgecolor=_FRAME, linewidth=3))


def _colour_map() -> Colormap:
    return LinearSegmentedColormap.from_list("signal", _COLOURS).with_extremes(bad="#EEEEEE")
