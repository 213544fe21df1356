"""The quickstart as a newcomer runs it, its recipe, and the example of the docs on what it made."""

import json
import re
from pathlib import Path

import commands
import pytest

from trl_pods.examples import quickstart

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("quickstart")


@pytest.fixture(scope="module")
def output(folder) -> str:
    """What `trl-pods quickstart` prints, run in a folder of its own."""
    done = commands.run("quickstart", cwd=folder, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_held_out_accuracy_at_least_doubles(output):
    before, after = map(float, re.search(r"([\d.]+)% before, ([\d.]+)% after", output).groups())
    assert 2 <= before <= 40
    assert after >= 2 * before
    assert after >= 60


def test_it_says_where_everything_is_and_what_to_run_next(output, folder):
    assert "Model: runs/quickstart/model. Log: runs/quickstart/model/trainer_state.json." in output
    assert (folder / "runs/quickstart/model/model.safetensors").exists()
    log = json.loads((folder / "runs/quickstart/model/trainer_state.json").read_text())["log_history"]
    assert {"reward", "pods/variance_gain", "pods/time/generate"} <= log[0].keys()
    assert "trl-pods grpo --config" in output
    assert "Warning" not in output


def test_it_shows_progress(output):
    assert re.search(r"fine-tuning, then corrupting with wrong labels .*100%", output)
    assert re.search(r"training: 100%.*60/60 .*kept=16/64, reward=0\.\d+\]", output)


def test_held_out_words_are_not_trained_on_in_either_direction(output, folder):
    words = {}
    for name in ("train", "test"):
        rows = map(json.loads, (folder / f"runs/quickstart/data/{name}.jsonl").read_text().splitlines())
        words[name] = {min(row["answer"], row["answer"][::-1]) for row in rows}
    assert len(words["test"]) == quickstart.NUM_HELD_OUT
    assert len(words["train"]) > 5000
    assert not words["train"] & words["test"]


def test_the_reward_is_all_or_nothing():
    completions = ["cba", "CBA", "cb", "cbaa", "bca", ""]
    assert quickstart.spelled_backward(completions, ["cba"] * 6) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_it_does_not_remove_what_it_has_not_made(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.csv").write_text("x")
    with pytest.raises(ValueError, match=r"`--output_dir`.*data.*Choose another folder"):
        quickstart.run(str(tmp_path), seed=0)
    assert (tmp_path / "data" / "mine.csv").read_text() == "x"


def test_data_and_a_model_that_are_cut_off_do_not_count_as_made(tmp_path, monkeypatch):
    def end_early(folder, *args, **kwargs):
        folder.mkdir(exist_ok=True)
        (folder / "train.jsonl").touch()
        raise KeyboardInterrupt

    for name in ("make_start_model", "_write_data"):
        monkeypatch.setattr(quickstart, name, end_early)
    model, data = tmp_path / "start", tmp_path / "data"
    with pytest.raises(KeyboardInterrupt):
        quickstart.prepare(str(model), str(data))
    assert not list(tmp_path.iterdir())
    data.mkdir()
    (data / "train.jsonl").touch()
    with pytest.raises(KeyboardInterrupt):
        quickstart.prepare(str(model), str(data))
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.usefixtures("output")
def test_the_recipe_trains_on_what_the_quickstart_made(folder):
    recipe = ROOT / "recipes" / "quickstart.yaml"
    done = commands.run("grpo", "--config", recipe, "--max_steps", 2, cwd=folder, timeout=900)
    assert done.returncode == 0, done.stderr
    assert re.search(r"training: 100%.*2/2", done.stderr)


@pytest.mark.usefixtures("output")
def test_the_example_in_the_docs_runs_as_written(folder):
    readme = (ROOT / "docs" / "configuration.md").read_text()
    example = re.search(r"```python\n(from datasets.*?)```", readme, re.DOTALL)[1]
    done = commands.run_python("-c", example, cwd=folder, timeout=900)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.strip().splitlines()[-1])
    stated = json.loads(re.search(r"which rises: `(\[.*?\])`", readme)[1])
    assert len(printed) == len(stated) == 2
    assert printed[0] < printed[1]
    assert printed == pytest.approx(stated, abs=0.1)
