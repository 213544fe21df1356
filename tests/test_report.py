"""`trl-pods report` of real runs: the page shows what was logged."""

from pathlib import Path

import pandas as pd
import pytest
import tiny
from pages import Page, assert_drawn, mean
from recording import Judge, make_trainer

from trl_pods.cli import main as cli
from trl_pods.lab.report.examples import _groups
from trl_pods.lab.report.page import render_report
from trl_pods.lab.report.text import number
from trl_pods.runs.log import read_log
from trl_pods.runs.record import RunRecord
from trl_pods.timing import PHASES
from trl_pods.wall_clock import WallClockCallback


def distinct(completions, **kwargs) -> list[float | None]:
    """A second reward, which is not given for some completions."""
    return [len(set(completion)) / 6 if completion > "K" else None for completion in completions]


@pytest.fixture(scope="module")
def run(model_path, tmp_path_factory) -> Path:
    """A run of six steps with two rewards, two evaluation datasets, the wall clock and completions tables."""
    folder = tmp_path_factory.mktemp("runs") / "a <run>"
    trainer = make_trainer(
        model_path,
        [Judge(), distinct],
        folder,
        reward_weights=[1.0, 0.5],
        eval_dataset={"easy": tiny.make_dataset(4), "hard": tiny.make_dataset(4)},
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=8,
        log_completions=True,
        rollout_batch_size=16,  # no completion of these begins a line
        max_steps=6,
    )
    WallClockCallback().attach(trainer)
    trainer.train()
    trainer.save_state()
    return folder


@pytest.fixture(scope="module")
def entries(run) -> list[dict]:
    return [entry for entry in read_log(run) if "reward" in entry]


@pytest.fixture(scope="module")
def page(run) -> Page:
    return Page(render_report(run))


def test_the_head_says_what_the_run_was(page, model_path):
    head = page.texts("p")[0] + page.texts("p")[1]
    for text in ("of 8 rollouts", "4 are kept by max_variance", "2 prompts", model_path, "0.001", "seed 42", "trl 1."):
        assert text in head
    assert page.texts("h1") == ["a <run>"]
    settings = page.texts("table")[0]
    assert "judge × 1, distinct × 0.5" in settings
    assert "8 rows × 1 micro-batches per optimizer step" in settings


def test_the_numbers_at_the_head_are_those_of_the_log(page, entries, run):
    evaluations = [entry for entry in read_log(run) if "eval_reward" in entry]
    easy, hard = evaluations[0], evaluations[-1]
    assert "eval_easy_runtime" in easy and "eval_hard_runtime" in hard
    facts = page.facts
    assert facts["reward, all rollouts"] == f"{entries[0]['reward']:.3g} → {entries[-1]['reward']:.3g}"
    assert facts["variance gain"] == f"{mean(e['pods/variance_gain'] for e in entries):.3g} ×"
    assert facts["tokens kept"] == f"{100 * mean(e['pods/kept_token_fraction'] for e in entries):.1f} %"
    assert facts["seconds per step"] == f"{entries[-1]['pods/train_seconds'] / 6:.3g}"
    assert facts["evaluation reward easy"].startswith(f"{easy['eval_reward']:.3g} → ")
    assert facts["evaluation reward hard"].endswith(f" → {hard['eval_reward']:.3g}")


def test_the_pictures_show_what_was_logged(page, entries):
    reward = page.picture("Reward")
    assert_drawn(reward, "ink", [e["reward"] for e in entries])
    assert_drawn(reward, "blue", [e["pods/kept_reward"] for e in entries])
    assert_drawn(reward, "vermillion", [e["pods/dropped_reward"] for e in entries])
    functions = page.picture("Reward functions")
    assert_drawn(functions, "blue", [e["rewards/judge/mean"] for e in entries])
    assert_drawn(functions, "vermillion", [e["rewards/distinct/mean"] for e in entries])
    assert_drawn(page.picture("Variance gain"), "blue", [e["pods/variance_gain"] for e in entries])


def test_evaluations_are_shown_by_dataset_over_steps_and_seconds(page, run):
    of_easy = [entry for entry in read_log(run) if "eval_easy_runtime" in entry]
    assert [entry["step"] for entry in of_easy] == [2, 4, 6]
    by_step = page.picture("Evaluation")
    by_time = page.picture("Evaluation by time")
    labels = {"easy reward", "easy judge", "easy distinct", "hard reward", "hard judge", "hard distinct"}
    assert labels <= set(Page(by_step).texts("text")) & set(Page(by_time).texts("text"))
    assert "training time in seconds" in Page(by_time).texts("text")
    row = page.table("data")[0]
    expected = [of_easy[0][key] for key in ("step", "pods/train_seconds", "eval_reward", "eval_rewards/judge/mean")]
    assert row[:5] == ["easy", *(f"{value:.3g}" for value in expected)]
    assert len(page.table("data")) == 6


def test_the_table_of_phases_is_the_mean_of_the_log_and_says_what_is_missing(page, entries):
    rows = {name.removeprefix("■ "): (seconds, share) for name, seconds, share, _ in page.table("phase")}
    seconds = {phase: mean(e[f"pods/time/{phase}"] for e in entries) for phase in PHASES}
    total = entries[-1]["pods/train_seconds"] / 6
    assert list(rows) == [*PHASES, "outside"]
    for phase, value in seconds.items():
        assert rows[phase] == (number(value), f"{100 * value / total:.1f} %")
    assert rows["outside"][0] == number(total - sum(seconds.values()))
    assert {"generate", "update", "outside", "seconds per step"} <= set(
        Page(page.picture("Time per step")).texts("text")
    )


def test_kept_and_dropped_rollouts_are_told_apart(page, run):
    tables = {int(path.stem[-5:]): pd.read_parquet(path) for path in (run / "completions").glob("*.parquet")}
    assert [title for title in page.texts("h3") if title.startswith("Step ")] == ["Step 1", "Step 3", "Step 6"]
    assert page.texts("h4")[:2] == ["4 of 4 kept", "4 of 4 dropped"]
    first = tables[1][:8]
    kept, dropped = first[first["kept"]], first[~first["kept"]]
    cards = page.all("div", **{"class": "rollout kept"})[:4], page.all("div", **{"class": "rollout"})[:4]
    for rows, shown, word in zip((kept, dropped), cards, ("kept", "dropped")):
        assert all(card["text"].startswith(word) for card in shown)
        assert sorted(card["text"].splitlines()[-1].strip() for card in shown) == sorted(rows["completion"].str.strip())
    reward = kept["judge"] + 0.5 * kept["distinct"].fillna(0)
    row = kept.loc[reward.idxmax()]
    text = " ".join(cards[0][0]["text"].split())
    assert f"reward {number(reward.max())}" in text
    assert f"judge {number(row['judge'])}, distinct {number(row['distinct'])}" in text
    assert f"advantage {number(row['advantage'])}" in text
    assert "advantage" not in cards[1][0]["text"]


def test_a_prompt_that_comes_twice_is_two_groups(run):
    rows = pd.read_parquet(run / "completions" / "completions_00001.parquet").to_dict("records")
    twice = [row | {"prompt": "the same"} for row in rows]
    groups = list(_groups(twice, RunRecord.read(run)))
    assert [len(group.rollouts) for group in groups] == [8, 8]


def test_the_page_stands_alone_and_is_well_formed(page):
    assert page.all("html") and page.all("style")
    for tag in ("script", "link", "iframe", "img", "object"):
        assert page.all(tag) == []
    for element in page.elements:
        assert "src" not in element
        assert element.get("href", element.get("xlink:href", "#")).startswith("#")
    names = [element["id"] for element in page.elements if "id" in element]
    assert len(names) == len(set(names)) > 0


def test_plain_grpo_has_nothing_that_was_selected(model_path, tmp_path):
    trainer = make_trainer(model_path, Judge(), tmp_path, num_rollouts=4, log_completions=True)
    trainer.train()
    trainer.save_state()
    page = Page(render_report(tmp_path))
    assert "GRPO: 4 rollouts of each prompt, all of them trained on" in page.text
    assert "variance gain" not in page.facts and "tokens kept" not in page.facts
    titles = page.texts("h3")
    assert "Reward" in titles and "Variance gain" not in titles and "Evaluation" not in titles
    labels = Page(page.picture("Reward")).texts("text")
    assert "all rollouts" in labels and "kept" not in labels and "dropped" not in labels
    assert page.texts("h4") == ["4 of 4 kept"] * 4
    assert "pods/train_seconds was not logged" in page.text
    seconds = [sum(entry[f"pods/time/{phase}"] for phase in PHASES) for entry in trainer.state.log_history[:-1]]
    assert page.facts["seconds per step"] == number(mean(seconds))


def test_a_run_that_was_stopped_is_read_from_its_last_checkpoint(model_path, tmp_path):
    trainer = make_trainer(
        model_path, Judge(), tmp_path, max_steps=3, save_strategy="steps", save_steps=1, save_total_limit=2
    )
    trainer.train()
    assert not (tmp_path / "trainer_state.json").exists()
    page = Page(render_report(tmp_path))
    assert "Logged up to step 3" in page.text
    assert_drawn(page.picture("Reward"), "ink", trainer.logged("reward"))


def test_the_command_writes_the_page(run, tmp_path, capsys):
    cli.main(["report", str(run), "--output", str(tmp_path / "new" / "page.html")])
    assert capsys.readouterr().out == f"Wrote {tmp_path / 'new' / 'page.html'}\n"
    assert (tmp_path / "new" / "page.html").read_text() == render_report(run)
