"""The notebook, run from the first cell to the last in a kernel of its own."""

import os
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.long

PATH = Path(__file__).parents[1] / "recipes" / "pods_notebook.ipynb"


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook with the outputs of a shorter training, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(PATH, as_version=4)
    settings = code_cells(notebook)[0]
    settings.source, num_replaced = re.subn(r"^max_steps = \d+$", "max_steps = 15", settings.source, flags=re.MULTILINE)
    assert num_replaced == 1
    kernel = NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    kernel.execute(env={**os.environ, "PYTHONPATH": str(PATH.parents[1])})
    return notebook, folder


def outputs(notebook, mime_type: str) -> list[str]:
    data = [output.get("data", {}) for cell in code_cells(notebook) for output in cell.outputs]
    return [found[mime_type] for found in data if mime_type in found]


def test_no_outputs_are_stored():
    for cell in code_cells(nbformat.read(PATH, as_version=4)):
        assert cell.outputs == []
        assert cell.execution_count is None


def test_it_trains_to_more_right_answers(executed):
    notebook, _ = executed
    printed = "".join(output.get("text", "") for cell in code_cells(notebook) for output in cell.outputs)
    before, after = re.search(r"([\d.]+)% before, ([\d.]+)% after", printed).groups()
    assert float(before) < 20
    assert float(after) > float(before) + 20


def test_it_shows_progress_which_rollouts_were_kept_and_figures(executed):
    notebook, folder = executed
    assert any("[15/15" in text for text in outputs(notebook, "text/html"))
    [table] = [text for text in outputs(notebook, "text/html") if "<th>kept</th>" in text]
    assert table.count("<td>True</td>") == 16 and table.count("<td>False</td>") == 5
    assert len(outputs(notebook, "image/png")) == 2
    rollouts = pd.read_parquet(folder / "runs" / "notebook" / "model" / "completions" / "completions_00001.parquet")
    assert (len(rollouts), rollouts["kept"].sum()) == (512, 128)
