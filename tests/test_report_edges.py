"""`trl-pods report` of logs written by hand: whatever was logged or written, there is a page or a line of advice."""

import math
import re
import subprocess
import sys

import pandas as pd
import pytest
from pages import Page, areas_of, assert_drawn, points_of, write_run

from trl_pods.checks.errors import SetupError
from trl_pods.cli import main as cli
from trl_pods.lab.report.page import render_report, write_report
from trl_pods.lab.report.series import RunLog
from trl_pods.lab.report.svg import Line, draw_lines, draw_stack
from trl_pods.lab.report.text import plain_text, shorten

SCRIPT = "<script>alert('state the answer')</script>"


def test_tokens_and_prompts_without_variance_are_drawn(tmp_path):
    tokens, of_all, of_kept = [0.3, 0.2, 0.45], [0.5, 0.0, 1.0], [1.0, 0.5, 0.25]
    names = ("pods/kept_token_fraction", "frac_reward_zero_std", "pods/kept_frac_zero_std")
    logged = enumerate(zip(tokens, of_all, of_kept), start=1)
    log = [{"step": step, "reward": 0.5, **dict(zip(names, values))} for step, values in logged]
    page = Page(render_report(write_run(tmp_path, log)))
    assert_drawn(page.picture("Tokens kept"), "blue", tokens)
    equal = page.picture("Prompts without variance")
    assert_drawn(equal, "ink", of_all)
    assert_drawn(equal, "blue", of_kept)
    texts = Page(equal).texts("text")
    assert {"all 8 rollouts", "the 4 kept", "fraction of prompts", "optimizer step"} <= set(texts)


def table(completion: str, prompt: str = "prompt") -> pd.DataFrame:
    """A completions table of one prompt: 4 of 8 rollouts are kept."""
    rows = {"step": 1, "prompt": prompt, "completion": completion, "judge": 0.5, "kept": [True, False] * 4}
    return pd.DataFrame(rows)


def test_texts_of_the_run_are_escaped(tmp_path):
    log = [{"step": 1, "reward": 0.5, f"rewards/{SCRIPT}/mean": 0.5, "rewards/$b$/mean": 0.1}]
    tables = {1: table(SCRIPT + " a", SCRIPT + " b")}
    page = Page(render_report(write_run(tmp_path, log, tables, model=SCRIPT, reward_names=[SCRIPT, "$b$"])))
    assert page.all("script") == []
    assert page.texts("pre").count(SCRIPT + " a") == 8 and page.texts("pre").count(SCRIPT + " b") == 1
    assert page.texts("p")[1].startswith(SCRIPT)
    assert "$b$" in Page(page.picture("Reward functions")).texts("text")


def test_long_texts_are_cut_in_the_middle(tmp_path):
    folder = write_run(tmp_path, [{"step": 1, "reward": 0.5}], {1: table("begin" + "x" * 2000 + "end")})
    texts = Page(render_report(folder)).texts("pre")
    assert texts[1] == "begin" + "x" * 295 + " … 1,408 characters … " + "x" * 297 + "end"


def test_a_table_that_is_half_written_is_said(tmp_path):
    folder = write_run(tmp_path, [{"step": 1, "reward": 0.5}])
    (folder / "completions").mkdir()
    (folder / "completions" / "completions_00007.parquet").write_bytes(b"PAR1 and no more")
    page = Page(render_report(folder))
    assert "Step 7" in page.texts("h3") and "completions_00007.parquet cannot be read" in page.text


def test_without_tables_the_page_says_how_to_get_them(tmp_path):
    page = Page(render_report(write_run(tmp_path, [{"step": 1, "reward": 0.5}])))
    assert "--log_completions true" in page.text
    assert page.all("div", **{"class": "group"}) == []


def test_one_logged_step_is_a_page_with_points(tmp_path):
    log = [{"step": 3, "reward": 0.25, "pods/kept_reward": 0.5, "pods/time/generate": 2.0, "pods/time/update": 6.0}]
    page = Page(render_report(write_run(tmp_path, log)))
    assert page.facts["reward, all rollouts"] == "0.25"
    assert page.facts["seconds per step"] == "8"
    assert page.picture("Reward").count("<use ") >= 2
    rows = {name: (seconds, share) for name, seconds, share, _ in page.table("phase")}
    assert rows == {"■ generate": ("2", "25.0 %"), "■ update": ("6", "75.0 %")}
    assert page.picture("Time per step").count("fill: var(--green") >= 1


def test_what_is_nan_or_none_is_left_out(tmp_path):
    log = [{"step": step, "reward": reward} for step, reward in enumerate([None, 0.5, math.nan, 0.75, 1.0], start=1)]
    log[3] |= {"pods/variance_gain": 3.0, "pods/kept_token_fraction": math.nan, "pods/dropped_reward": math.nan}
    log[4] |= {"pods/variance_gain": math.nan}
    log += [{"step": 5, "eval_reward": math.nan, "eval_runtime": 1.0}]
    page = Page(render_report(write_run(tmp_path, log)))
    assert page.facts["reward, all rollouts"] == "0.5 → 1"
    assert page.facts["variance gain"] == "3 ×"
    assert page.facts["tokens kept"] == "–"
    assert page.facts["evaluation reward"] == "–"
    assert "dropped" not in Page(page.picture("Reward")).texts("text")
    assert "Evaluation" not in page.texts("h3")
    assert re.search(r"\bnan\b", page.html, re.IGNORECASE) is None


def test_rewards_that_are_all_nan_leave_a_page(tmp_path):
    page = Page(render_report(write_run(tmp_path, [{"step": 1, "reward": math.nan}, {"step": 2, "reward": None}])))
    assert page.facts["reward, all rollouts"] == "–"
    assert "No phase was timed." in page.text


def test_means_are_weighted_by_the_steps_of_an_entry():
    log = RunLog([{"step": 1, "reward": 10.0}, {"step": 10, "reward": 0.0}, {"train_loss": 0.0, "step": 10}])
    assert log.spans == [1, 9]
    assert log.mean(log.values("reward")) == 1.0
    assert math.isnan(log.mean(log.values("no_such_metric")))


def test_an_entry_without_reward_is_averaged_in_by_its_steps():
    log = RunLog([{"step": 3, "reward": 1.0, "pods/time/generate": 0.2}, {"step": 4, "pods/time/generate": 0.0}])
    assert (log.steps, log.spans, log.values("reward")) == ([4], [4], [1.0])
    assert log.values("pods/time/generate") == [pytest.approx(0.15)]


def test_a_coarse_log_averages_values_and_keeps_the_time():
    entries = [{"step": i, "reward": float(i), "pods/train_seconds": 2.0 * i} for i in range(1, 8)]
    log = RunLog([*entries, {"step": 7, "eval_reward": 1.0}])
    coarse = log.coarse(3)
    assert coarse.steps == [3, 6, 7] and coarse.values("reward") == [2.0, 5.0, 7.0]
    assert coarse.seconds() == [2.0, 2.0, 2.0] and coarse.evaluations == log.evaluations
    assert log.coarse(7).steps == log.steps


def test_a_long_run_is_drawn_by_few_points_and_says_so(tmp_path):
    page = Page(render_report(write_run(tmp_path, [{"step": i, "reward": math.sin(i)} for i in range(1, 1001)])))
    assert len(points_of(page.picture("Reward"), "ink")) <= 150
    assert "mean of 7 logged values" in page.text
    assert page.facts["reward, all rollouts"] == f"{math.sin(1):.3g} → {math.sin(1000):.3g}"


def test_a_slow_first_step_does_not_hide_the_others(tmp_path):
    log = [{"step": i, "reward": 0.0, "pods/time/generate": 200.0 if i == 1 else 10.0} for i in range(1, 21)]
    page = Page(render_report(write_run(tmp_path, log)))
    assert "The axis ends at 15 s; the slowest took 200 s per step." in page.text
    assert max(float(t) for t in Page(page.picture("Time per step")).texts("text") if t.isdigit()) <= 20


def test_seconds_of_phases_are_stacked():
    lines = [Line("a", [], [1.0, 3.0], "blue"), Line("b", [], [2.0, math.nan], "green")]
    svg = draw_stack(lines, [0, 1, 2], x_label="x", y_label="y", top=4.0)
    blue, green = areas_of(svg)
    floor, unit = max(blue), (max(blue) - min(blue)) / 3
    assert {round((floor - y) / unit, 3) for y in blue} == {0, 1, 3}
    assert {round((floor - y) / unit, 3) for y in green} == {1, 3}, "2 above 1, and nothing above 3"


def test_a_point_without_neighbours_is_marked_in_a_long_line():
    values = [math.nan if i in {49, 51} else 1.0 for i in range(100)]
    svg = draw_lines([Line("a", range(100), values, "blue")], x_label="x", y_label="y")
    assert svg.count("<use ") == 1
    assert draw_lines([Line("a", range(100), [1.0] * 100, "blue")], x_label="x", y_label="y").count("<use ") == 0


def test_messages_are_written_with_their_roles():
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": None, "tool_calls": [{"a": 1}]}]
    assert plain_text(messages) == 'user: 2 + 2?\nassistant: [{"a": 1}]'
    assert plain_text("text") == "text" and plain_text(3) == "3"
    assert shorten("abcdef", 6) == "abcdef" and shorten("abcdefg", 6) == "abc…efg"


def test_the_page_is_written_into_the_folder_by_default(tmp_path):
    folder = write_run(tmp_path, [{"step": 1, "reward": 0.5}])
    assert write_report(folder) == folder / "report.html"
    assert Page((folder / "report.html").read_text()).texts("h1") == [folder.name]


def test_the_help_does_not_wait_for_torch():
    code = (
        "import sys\nfrom trl_pods.cli.main import main\n"
        "try:\n    main(['report', '--help'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "RUN_DIR" in done.stdout


def refused(capsys, *arguments) -> str:
    """What the command says, in one line, when it refuses."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", *map(str, arguments)])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("trl-pods report: error: ") and said.count("\n") == 1
    return said


def test_what_holds_no_run_is_refused(tmp_path, capsys):
    assert "is not a folder" in refused(capsys, tmp_path / "missing")
    assert "holds no pods_run.json" in refused(capsys, tmp_path)
    folder = write_run(tmp_path, None)
    assert "holds no pods_run.json" not in (said := refused(capsys, folder)) and "no log" in said
    assert "is not a folder" in refused(capsys, folder / "pods_run.json")
    write_run(tmp_path, [])
    assert "has no step of training" in refused(capsys, folder)
    write_run(tmp_path, [{"step": 1, "reward": 0.5}])
    assert "cannot be written" in refused(capsys, folder, "--output", tmp_path)


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SetupError, match=r"pip install 'trl-pods\[plot\]'"):
        render_report(write_run(tmp_path, [{"step": 1, "reward": 0.5}]))
