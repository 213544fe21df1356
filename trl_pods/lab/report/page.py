"""The page of one run: what `trl-pods report` writes."""

import math
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...checks.errors import SetupError
from ...runs.assessment import assess
from ...runs.log import read_log
from ...runs.record import RunRecord
from . import charts
from .examples import examples
from .series import TRAIN_SECONDS, RunLog, as_number
from .svg import COLORS
from .text import number, percentage, shorten

TEMPLATE = "report.html.jinja"
POINTS = 150  # of a line
CHARACTERS = 600  # of a prompt or a completion
PHASE_MEANINGS = {
    "generate": "sampling all rollouts",
    "reward": "scoring all rollouts",
    "select": "choosing which to keep",
    "logps": "log-probabilities of the old and the reference model",
    "update": "loss, gradients and the optimizer's step",
    charts.OUTSIDE: "in no phase: padding, gathering, logging, saving",
}


def write_report(folder: Path | str, output: Path | str | None = None) -> Path:
    """Write the report of a run: a page that needs no other file and no network."""
    folder = Path(folder)
    path = folder / "report.html" if output is None else Path(output)
    html = render_report(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"The report cannot be written to {str(path)!r}: {error}.") from error
    return path


def render_report(folder: Path) -> str:
    """Make the page."""
    if not folder.is_dir():
        raise SetupError(f"{str(folder)!r} is not a folder. Name the `output_dir` of a run.")
    record, entries = RunRecord.read(folder), read_log(folder)
    log = RunLog(entries)
    if not log.training:
        raise SetupError(f"The log in {str(folder)!r} has no step of training. Train on, or set `logging_steps` to 1.")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"number": number, "percentage": percentage, "shorten": shorten, "svg": Markup}
    return environment.get_template(TEMPLATE).render(_contents(folder, record, log), assessment=assess(entries, record))


def _contents(folder: Path, record: RunRecord, log: RunLog) -> dict[str, Any]:
    coarse = log.coarse(POINTS)
    return {
        "name": folder.resolve().name,
        "record": record,
        "log": log,
        "facts": _facts(log),
        "per_point": log.entries_per_point(POINTS),
        "colors": COLORS,
        "rewards": charts.reward_pictures(coarse, record) + charts.selection_pictures(coarse, record),
        "evaluations": charts.evaluation_pictures(coarse, record),
        "evaluation_table": _evaluation_table(log, record),
        "times": charts.time_picture(coarse),
        "phases": _phases(log),
        "tables": examples(folder, record),
        "characters": CHARACTERS,
    }


def _facts(log: RunLog) -> list[tuple[str, str, str]]:
    """The numbers at the head of the page: what, how much, and a note."""
    rewards = [(step, value) for step, value in zip(log.steps, log.values("reward"), strict=True) if value == value]
    facts = [("reward, all rollouts", *_first_and_last(rewards, "step"))]
    for dataset, entries in log.evaluations.items():
        points = [(int(entry["step"]), as_number(entry["eval_reward"])) for entry in entries]
        facts.append((f"evaluation reward {dataset}".strip(), *_first_and_last(points, "step")))
    if log.has("pods/variance_gain"):
        gain, tokens = (log.mean(log.values(f"pods/{name}")) for name in ("variance_gain", "kept_token_fraction"))
        facts += [("variance gain", f"{number(gain)} ×", "mean over the steps")]
        facts += [("tokens kept", percentage(tokens), "of the completion tokens, mean over the steps")]
    if log.has("pods/trained_rows"):
        rows, ratio = (log.mean(log.values(f"pods/{name}")) for name in ("trained_rows", "cost_ratio"))
        facts += [("rows trained", number(rows), "per generation batch, mean over the steps")]
        facts += [("cost ratio", number(ratio), "what a trained row costs, in sampled rollouts")]
    return [*facts, ("seconds per step", *_seconds_per_step(log))]


def _first_and_last(points: list[tuple[int, float]], unit: str) -> tuple[str, str]:
    if not points:
        return "–", "none was logged"
    (first, start), (last, end) = points[0], points[-1]
    if len(points) == 1:
        return number(start), f"{unit} {first}"
    return f"{number(start)} → {number(end)}", f"{unit} {first} → {last}"


def _seconds_per_step(log: RunLog) -> tuple[str, str]:
    """From the best clock that was logged."""
    total = log.mean(log.seconds())
    if not math.isnan(total):
        return number(total), "mean over the steps, without evaluation"
    if phases := log.phases():
        return number(sum(map(log.mean, phases.values()))), "mean over the steps, in the phases below"
    return number(log.mean(log.values("step_time"))), "mean over the steps, without the optimizer's step"


def _phases(log: RunLog) -> list[dict[str, Any]]:
    """Rows of the table of phases, with their shares of all that was timed."""
    seconds = {phase: log.mean(values) for phase, values in log.phases().items()}
    outside = log.mean(log.outside())
    if not math.isnan(outside):
        seconds[charts.OUTSIDE] = max(outside, 0.0)
    total = sum(seconds.values()) or math.nan
    return [
        {"name": name, "meaning": PHASE_MEANINGS[name], "seconds": value, "share": value / total}
        | {"color": charts.PHASE_COLORS[name]}
        for name, value in seconds.items()
    ]


def _evaluation_table(log: RunLog, record: RunRecord) -> dict[str, Any]:
    """All evaluations as rows of texts, under their heads."""
    columns = {"step": "step", TRAIN_SECONDS: "seconds"} | charts.evaluation_metrics(record)
    rows = [
        [dataset, *(number(as_number(entry.get(key))) for key in columns)]
        for dataset, entries in log.evaluations.items()
        for entry in entries
    ]
    return {"heads": ["data", *columns.values()], "rows": rows}
