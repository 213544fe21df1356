"""Reading a report as a browser does, and run folders that are written by hand."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from trl_pods.runs.record import RunRecord

VOID = {"meta"}

RECORD = RunRecord(
    num_prompts=2,
    num_rollouts=8,
    num_generations=4,
    down_sampling="max_variance",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    steps_per_generation=1,
    num_iterations=1,
    num_processes=1,
    max_completion_length=6,
    learning_rate=1e-3,
    seed=42,
    reward_names=["judge", "distinct"],
    reward_weights=[1.0, 0.5],
    model="a/model",
    device="cpu",
    versions={"trl_pods": "0"},
)


def write_run(folder: Path, log: list[dict] | None, tables: dict[int, pd.DataFrame] | None = None, **changes) -> Path:
    """A run folder with a record, a log and completions tables that are written by hand."""
    dataclasses.replace(RECORD, **changes).write(folder)
    if log is not None:
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    for step, table in (tables or {}).items():
        (folder / "completions").mkdir(exist_ok=True)
        table.to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")
    return folder


class Page(HTMLParser):
    """The elements of a page, each with its text, and a check that they are nested well."""

    def __init__(self, html: str):
        super().__init__()
        self.html = html
        self.open: list[dict] = []
        self.elements: list[dict] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append({"tag": tag, "text": "", **dict(attributes)})

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag: str, **attributes: str) -> list[dict]:
        wanted = attributes | {"tag": tag}
        return [element for element in self.elements if wanted.items() <= element.items()]

    def texts(self, tag: str) -> list[str]:
        return [" ".join(element["text"].split()) for element in self.all(tag)]

    @property
    def text(self) -> str:
        return self.texts("body")[0]

    @property
    def facts(self) -> dict[str, str]:
        """The numbers at the head, by their names."""
        (head,) = re.findall(r'<div class="facts">(.*?)</div>\n</div>', self.html, re.DOTALL)
        return dict(re.findall(r"<div>(.*?)<b>(.*?)</b>", head))

    def picture(self, title: str) -> str:
        found = re.search(rf"<h3>{title}</h3>.*?(<svg.*?</svg>)", self.html, re.DOTALL)
        assert found is not None, f"no picture {title!r}"
        return found[1]

    def table(self, head: str) -> list[list[str]]:
        """The rows of the table whose first head it is."""
        tables = re.findall(r"<table.*?</table>", self.html, re.DOTALL)
        (table,) = [Page(table) for table in tables if f"<th>{head}</th>" in table]
        rows = re.findall(r"<tr>(.*?)</tr>", table.html, re.DOTALL)[1:]
        return [Page(f"<p>{row}</p>").texts("td") for row in rows]


def points_of(svg: str, color: str) -> list[tuple[float, float]]:
    """The points of the line of a colour, in the picture's units; y grows downwards."""
    paths = re.findall(rf'<path d="([^"]*)"[^>]*style="fill: none; [^"]*stroke: var\(--{color}, ', svg)
    assert len(paths) == 1, f"{len(paths)} lines of colour {color}"
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", paths[0])]


def assert_drawn(svg: str, color: str, values: list[float]) -> None:
    """The heights of a line's points are the values, but for the scale of the axis."""
    heights = [-y for _, y in points_of(svg, color)]
    assert max(values) > min(values), "nothing to compare"
    low, high = heights[values.index(min(values))], heights[values.index(max(values))]
    scaled = [(height - low) / (high - low) for height in heights]
    spread = max(values) - min(values)
    assert scaled == pytest.approx([(value - min(values)) / spread for value in values], abs=1e-4)


def areas_of(svg: str) -> list[list[float]]:
    """The heights of the corners of each area, in the picture's units; they grow downwards."""
    areas = re.findall(r'<path id="\w+" d="([^"]*)"', svg)
    return [[float(y) for y in re.findall(r"[ML] \S+ (\S+)", area)] for area in areas]


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)
