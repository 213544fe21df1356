"""The pictures of a report."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...runs.record import RunRecord
from .series import TRAIN_SECONDS, RunLog, as_number
from .svg import CYCLE, Line, draw_lines, draw_stack
from .text import number

STEP = "optimizer step"
ALL, KEPT, DROPPED = "ink", "blue", "vermillion"  # colours of the rollouts
OUTSIDE = "outside"
PHASE_COLORS = {
    "generate": "blue",
    "reward": "orange",
    "select": "purple",
    "logps": "sky",
    "update": "green",
    OUTSIDE: "gray",
}


@dataclass(frozen=True)
class Picture:
    """A picture and what is written about it."""

    title: str
    caption: str
    svg: str


def reward_pictures(log: RunLog, record: RunRecord) -> list[Picture]:
    """
    Draw the rewards of training: of all rollouts, of the kept and of the dropped ones, and of each reward function.
    """
    rewards = [
        _line(log, "all rollouts", "reward", ALL),
        _line(log, "kept", "pods/kept_reward", KEPT),
        _line(log, "dropped", "pods/dropped_reward", DROPPED, dashed=True),
    ]
    caption = "Mean of the weighted sum of rewards. The line of all rollouts tells how good the model is."
    pictures = _picture("Reward", caption, rewards, y_label="mean reward")
    names = list(dict.fromkeys(record.reward_names))
    if len(names) > 1:
        lines = [_line(log, name, f"rewards/{name}/mean", *_look(i)) for i, name in enumerate(names)]
        caption = "Mean over all rollouts of what each function gave, before it is weighted."
        pictures += _picture("Reward functions", caption, lines, y_label="mean reward of the function")
    return pictures


def selection_pictures(log: RunLog, record: RunRecord) -> list[Picture]:
    """Draw what selection did: variance gain, tokens kept, and prompts without variance."""
    n, m = record.num_rollouts, record.num_generations
    gain = _picture(
        "Variance gain",
        "Reward variance within the kept groups, divided by that within the sampled groups.",
        [_line(log, "kept / sampled", "pods/variance_gain", KEPT)],
        y_label="ratio of variances",
        reference=(1.0, "no gain"),
    )
    tokens = _picture(
        "Tokens kept",
        f"Completion tokens of the kept rollouts, divided by those of all. Were all of one length, it would be m / n = "
        f"{number(m / n)}.",
        [_line(log, "kept / sampled", "pods/kept_token_fraction", KEPT)],
        y_label="fraction of tokens",
        limits=(0.0, None),
        reference=(m / n, "m / n"),
    )
    equal = _picture(
        "Prompts without variance",
        "Share of prompts whose rollouts all have the same reward, so that they teach nothing.",
        [
            _line(log, f"all {n} rollouts", "frac_reward_zero_std", ALL),
            _line(log, f"the {m} kept", "pods/kept_frac_zero_std", KEPT, dashed=True),
        ],
        y_label="fraction of prompts",
        limits=(-0.03, 1.03),
    )
    return gain + tokens + equal


def evaluation_pictures(log: RunLog, record: RunRecord) -> list[Picture]:
    """Draw the rewards of the evaluations over steps, and over seconds of training if they were logged."""
    labels = {"y_label": "mean reward"}
    by_step = _evaluation_lines(log, record, "step")
    by_seconds = _evaluation_lines(log, record, TRAIN_SECONDS)
    seconds = "Over the seconds of training, without those of evaluation."
    return [
        *_picture("Evaluation", "Over the optimizer steps.", by_step, **labels),
        *_picture("Evaluation by time", seconds, by_seconds, **labels, x_label="training time in seconds"),
    ]


def evaluation_metrics(record: RunRecord) -> dict[str, str]:
    """Name the metrics of an evaluation that a report shows."""
    names = list(dict.fromkeys(record.reward_names))
    functions = {f"eval_rewards/{name}/mean": name for name in names} if len(names) > 1 else {}
    return {"eval_reward": "reward"} | functions


def time_picture(log: RunLog) -> list[Picture]:
    """Draw the seconds of each phase on top of each other."""
    if not (phases := log.phases()):
        return []
    columns = {name: [max(as_number(value), 0.0) for value in values] for name, values in phases.items()}
    columns[OUTSIDE] = [max(0.0, value) for value in log.outside()]  # NaN becomes 0
    shown = {name: values for name, values in columns.items() if any(values)}
    lines = [Line(name, log.steps, values, PHASE_COLORS[name]) for name, values in shown.items()]
    top, note = _top([sum(column) for column in zip(*shown.values(), strict=True)])
    edges = [log.steps[0] - log.spans[0], *log.steps]
    svg = draw_stack(lines, edges, x_label=STEP, y_label="seconds per step", top=top)
    return [Picture("Time per step", "Seconds of the phases, on top of each other." + note, svg)]


def _top(totals: Sequence[float]) -> tuple[float, str]:
    """Where to end the axis: a first step that compiles must not make all others too low to see."""
    ordered = sorted(totals)
    usual = ordered[int(0.9 * (len(ordered) - 1))]
    if ordered[-1] <= 3 * usual:
        return 1.05 * ordered[-1] or 1.0, ""
    top = 1.5 * usual
    return top, f" The axis ends at {number(top)} s; the slowest took {number(ordered[-1])} s per step."


def _line(log: RunLog, label: str, key: str, color: str, dashed: bool = False) -> Line:
    return Line(label, log.steps, log.values(key), color, dashed)


def _look(i: int) -> tuple[str, bool]:
    """Colour, and whether it is dashed, of the i-th of many lines."""
    return CYCLE[i % len(CYCLE)], i // len(CYCLE) % 2 == 1


def _evaluation_lines(log: RunLog, record: RunRecord, x_key: str) -> list[Line]:
    lines: list[Line] = []
    for dataset, entries in log.evaluations.items():
        for key, name in evaluation_metrics(record).items():
            points = [(as_number(entry.get(x_key)), as_number(entry.get(key))) for entry in entries]
            x, y = zip(*points, strict=True)
            lines.append(Line(" ".join(filter(None, (dataset, name))), x, y, *_look(len(lines))))
    return lines


def _picture(title: str, caption: str, lines: Sequence[Line], x_label: str = STEP, **options: Any) -> list[Picture]:
    """The picture of the lines that have a point, or none if there is no such line."""
    shown = [line for line in lines if any(map(math.isfinite, map(sum, zip(line.x, line.y, strict=True))))]
    return [Picture(title, caption, draw_lines(shown, x_label=x_label, **options))] if shown else []
