"""Comparing methods: times, ratios and their intervals against values known by hand; the command against its runs."""

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import numpy as np
import pytest
import yaml
from filelock import FileLock

from trl_pods import PODSGRPOConfig
from trl_pods.checks.errors import SetupError
from trl_pods.cli.arguments import RecipeParser
from trl_pods.lab import command as script
from trl_pods.lab import costs, plots, summary
from trl_pods.lab.curves import Curve, area, first_reached, mean_curve, read_curve
from trl_pods.lab.methods import METHODS, Method, make_method
from trl_pods.lab.outcome import choose_rates, compare, tuning_results
from trl_pods.lab.runs import Job, Run, train
from trl_pods.runs.log import read_log
from trl_pods.runs.record import RunRecord
from trl_pods.timing import PHASES

ROOT = Path(__file__).parents[1]


def line(slope, highest=1.0, seconds_per_step=0.5, budget=10.0, rollouts_per_step=32, rows_per_step=8):
    """A curve that rises linearly to its highest accuracy."""
    seconds = np.linspace(0, budget, 21)
    steps = seconds / seconds_per_step
    return Curve(seconds, steps, rollouts_per_step * steps, rows_per_step * steps, np.minimum(slope * seconds, highest))


def make_args(tmp_path, **overrides):
    values = {"num_generations": 4, "num_rollouts": 16, "per_device_train_batch_size": 8}
    return PODSGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", **values | overrides)


def test_time_to_a_target_is_interpolated():
    grid, accuracy = np.array([0.0, 2.0, 4.0, 6.0]), np.array([0.1, 0.3, 0.2, 0.7])
    assert first_reached(0.1, grid, accuracy) == 0.0
    assert first_reached(0.2, grid, accuracy) == pytest.approx(1.0)
    assert first_reached(0.45, grid, accuracy) == pytest.approx(5.0)
    assert first_reached(0.71, grid, accuracy) == math.inf


def test_mean_curve_holds_the_last_accuracy_of_each_run():
    first = Curve(*np.array([[0.0, 4.0], [0.0, 8.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.4]]))
    zeros = [0.0] * 3
    second = Curve(*np.array([[0.0, 2.0, 6.0], [0.0, 1.0, 3.0], zeros, zeros, [0.2, 0.2, 0.6]]))
    grid, accuracy = mean_curve([first, second], "seconds")
    assert grid.tolist() == [0.0, 2.0, 4.0, 6.0]
    np.testing.assert_allclose(accuracy, [[0.0, 0.2, 0.4, 0.4], [0.2, 0.2, 0.4, 0.6]])
    assert mean_curve([first, second], "steps")[0].tolist() == [0.0, 1.0, 3.0, 8.0]


def test_area_is_the_mean_accuracy_over_the_steps():
    assert area(line(0.1)) == pytest.approx(0.5)
    assert area(line(0.1, budget=5.0)) == pytest.approx(0.25)


def test_ratio_is_that_of_the_times_to_the_target():
    curves = {"grpo": [line(0.05)] * 3, "grpo_n": [line(0.02)] * 3, "pods": [line(0.1)] * 3}
    outcome = compare(curves, ["grpo", "grpo_n"], "seconds")
    assert outcome.target == pytest.approx(0.985 * 0.5)
    assert outcome.costs == pytest.approx({"grpo": 9.85, "grpo_n": math.inf, "pods": 4.925})
    assert outcome.ratios == pytest.approx({"grpo": 1.0, "grpo_n": 0.0, "pods": 2.0})
    assert outcome.intervals["pods"] == pytest.approx((2.0, 2.0))


def test_target_is_the_better_baselines_and_the_time_the_faster_ones():
    curves = {"grpo": [line(0.5, highest=0.4)], "grpo_n": [line(0.1, highest=0.8)], "pods": [line(0.4)]}
    outcome = compare(curves, ["grpo", "grpo_n"], "seconds")
    assert outcome.target == pytest.approx(0.985 * 0.8)
    assert outcome.costs["grpo"] == math.inf
    assert outcome.ratios["pods"] == pytest.approx(4.0)


def test_there_is_no_ratio_where_grpo_has_learned_nothing():
    flat, rising = line(0.0), line(0.1)
    outcome = compare({"grpo": [flat] * 3, "pods": [rising] * 3}, ["grpo"], "seconds")
    assert math.isnan(outcome.ratios["pods"]) and math.isnan(outcome.intervals["pods"][0])
    rng = np.random.default_rng(0)
    noisy = [dataclasses.replace(flat, accuracy=0.1 + 0.01 * rng.standard_normal(21)) for _ in range(6)]
    outcome = compare({"grpo": noisy[:3], "pods": noisy[3:]}, ["grpo"], "seconds")
    assert math.isnan(outcome.ratios["pods"])


def test_cost_is_rollouts_and_c_times_rows():
    """Per step, 8 rollouts and 8 rows against 32 and 4: (8 + 8 c) / (32 + 4 c) for as many steps."""
    curves = {"grpo": [line(0.1, rollouts_per_step=8)] * 3, "pods": [line(0.1, rows_per_step=4)] * 3}
    for c, expected in ((1.0, 16 / 36), (6.0, 1.0), (10.0, 88 / 72), (1e9, 2.0)):
        outcome = compare(curves, ["grpo"], c)
        assert outcome.ratios["pods"] == pytest.approx(expected)
        assert outcome.intervals["pods"] == pytest.approx((expected, expected))


def test_rollouts_and_rows_are_those_of_the_generation_batches_begun(tmp_path):
    logs = [{"step": 0, "accuracy": 0.1, "pods/train_seconds": 0.0}]
    for step in (1, 2, 3, 4):  # two optimizer steps per generation batch
        began = {"pods/trained_rows": 10.0 + step} if step % 2 else {}
        logs += [{"step": step} | began, {"step": step, "accuracy": 0.1 * step, "pods/train_seconds": float(step)}]
    sizes = {"num_prompts": 4, "num_rollouts": 6, "steps_per_generation": 2, "prompt_oversampling": 1.5}
    write_run(tmp_path / "run", logs, **sizes)
    curve = read_curve(tmp_path / "run", "accuracy")
    assert curve.rollouts.tolist() == [0, 36, 36, 72, 72] and curve.rows.tolist() == [0, 11, 11, 24, 24]
    write_run(tmp_path / "accumulated", logs, **sizes | {"gradient_accumulation_steps": 4})
    curve = read_curve(tmp_path / "accumulated", "accuracy")  # two generation batches per step that logs one
    assert curve.rollouts.tolist() == [0, 72, 72, 144, 144] and curve.rows.tolist() == [0, 22, 22, 48, 48]


def test_prices_are_pooled_and_leave_out_the_first_generation_batch(tmp_path):
    def entry(step, generate, update):
        seconds = {f"pods/time/{phase}": 0.0 for phase in PHASES}
        seconds |= {"pods/time/generate": generate, "pods/time/update": update}
        return {"step": step, "pods/trained_rows": 8.0, "pods/train_seconds": 1.0 * step, **seconds}

    sizes = {"num_prompts": 2, "num_rollouts": 8}
    write_run(tmp_path / "a", [entry(1, 9.0, 9.0), entry(2, 1.6, 0.8), entry(3, 1.6, 0.8)], **sizes)
    write_run(tmp_path / "b", [entry(1, 9.0, 9.0), entry(2, 3.2, 3.2)], **sizes)
    prices = costs.measure_prices([tmp_path / "a", tmp_path / "b"])
    assert prices == pytest.approx((6.4 / 48, 4.8 / 24)) and prices.cost_ratio == pytest.approx(1.5)
    write_run(tmp_path / "short", [entry(1, 9.0, 9.0)], **sizes)
    assert costs.measure_prices([tmp_path / "short"]) is None


def test_there_is_no_interval_with_fewer_than_three_seeds():
    outcome = compare({"grpo": [line(0.05)] * 2, "pods": [line(0.1)] * 2}, ["grpo"], "seconds")
    assert outcome.ratios["pods"] == pytest.approx(2.0) and math.isnan(outcome.intervals["pods"][1])


def test_ratio_along_steps_does_not_see_the_price_of_a_step():
    curves = {"grpo": [line(0.1, seconds_per_step=0.1)], "pods": [line(0.1, seconds_per_step=0.4)]}
    assert compare(curves, ["grpo"], "seconds").ratios["pods"] == pytest.approx(1.0)
    assert compare(curves, ["grpo"], "steps").ratios["pods"] == pytest.approx(4.0)


def test_interval_covers_the_seeds():
    slow, fast = line(0.05), line(0.1)
    outcome = compare({"grpo": [line(0.05)] * 4, "pods": [slow, fast, slow, fast]}, ["grpo"], "seconds")
    low, high = outcome.intervals["pods"]
    assert 1.0 <= low < outcome.ratios["pods"] < high <= 2.0


def test_learning_rates_are_chosen_by_the_steps_to_the_target_then_by_the_mean_accuracy():
    curves = {
        ("grpo", 1.0): [line(0.05)],  # the best accuracy of GRPO is 0.5
        ("grpo", 2.0): [line(0.2, highest=0.45)],
        ("pods", 1.0): [line(0.3, highest=0.4)],
        ("pods", 2.0): [line(0.06)],
        ("random", 1.0): [line(0.02)],
        ("random", 2.0): [line(0.03)],  # neither reaches it
    }
    assert choose_rates(tuning_results(curves, ["grpo"])) == {"grpo": 1.0, "pods": 2.0, "random": 2.0}


def overrides(method: str, args: PODSGRPOConfig) -> dict:
    options = dict(zip(*[iter(make_method(method, args).options)] * 2, strict=True))
    return {name.removeprefix("--"): yaml.safe_load(value) for name, value in options.items()}


@pytest.mark.parametrize(
    ("method", "num_rollouts", "zero_variance"),
    [
        *[("grpo", 4, "train"), ("grpo_n", 16, "train"), ("grpo_n_batch", 16, "train")],
        *[("grpo_drop", 4, "drop"), ("pods_all", 16, "train"), ("pods", 16, "skip"), ("pods:random", 16, "skip")],
    ],
)
def test_methods_sample_and_train_what_they_say(method, num_rollouts, zero_variance, tmp_path):
    usual = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    args = make_args(tmp_path, **usual)
    trained = make_args(tmp_path / "other", **usual | overrides(method, args))
    assert (trained.num_rollouts, trained.zero_variance) == (num_rollouts, zero_variance)
    found = make_method(method, args)
    assert (trained.num_rollouts, trained.num_generations) == (found.num_rollouts, found.num_generations)


@pytest.mark.parametrize(("method", "growth"), [("grpo_n", 1), ("grpo_n_batch", 4)])
@pytest.mark.parametrize("rows", [8, 16])
def test_grpo_with_n_trains_the_same_prompts(tmp_path, rows, method, growth):
    usual = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": 2}
    args = make_args(tmp_path, **usual)
    large = make_args(tmp_path / "n", **usual | overrides(method, args))
    assert large.num_generations == large.num_rollouts == 16
    assert large.generation_batch_size // 16 == args.generation_batch_size // 4
    assert large.steps_per_generation / large.gradient_accumulation_steps == 1.0
    assert large.per_device_train_batch_size == rows * growth


def test_methods_that_cannot_be_are_refused(tmp_path):
    args = make_args(tmp_path)
    with pytest.raises(SetupError, match=r"'ppo', but a method is one of"):
        make_method("ppo", args)
    with pytest.raises(SetupError, match=r"Did you mean 'grpo_drop'\?"):
        make_method("grpo_dorp", args)
    with pytest.raises(SetupError, match=r"'grpo:random', but a method is one of"):
        make_method("grpo:random", args)
    with pytest.raises(SetupError, match=r"'pods:rndom'.*random"):
        make_method("pods:rndom", args)
    with pytest.raises(SetupError, match=r"Make `num_rollouts` a multiple of `num_generations`"):
        make_method("grpo_n", make_args(tmp_path, num_rollouts=10))


def write_run(folder, logs, **sizes):
    record = {field.name: 1 for field in dataclasses.fields(RunRecord)} | sizes
    folder.mkdir()
    (folder / "pods_run.json").write_text(json.dumps(record))
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": logs}))


def test_step_costs_what_its_share_of_the_generation_batch_costs(tmp_path):
    # Each generation batch is trained on in two steps, of which the first samples: 1 s, then 0.25 s of update in each.
    logs = [
        {
            "step": step,
            "pods/train_seconds": 1.5 * ((step + 1) // 2) + (0.0 if step % 2 == 0 else -0.25),
            **dict.fromkeys((f"pods/time/{phase}" for phase in PHASES), 0.0),
            "pods/time/generate": 1.0 if step % 2 else 0.0,
            "pods/time/update": 0.25,
        }
        for step in range(1, 11)
    ]
    write_run(tmp_path / "run", logs, steps_per_generation=2)
    seconds = costs.step_seconds(tmp_path / "run")
    assert seconds["generate"] == pytest.approx(0.5) and seconds["update"] == pytest.approx(0.25)
    assert seconds["step"] == pytest.approx(0.75)
    write_run(tmp_path / "short", logs[:3], steps_per_generation=2)
    assert costs.step_seconds(tmp_path / "short") is None


@pytest.fixture(scope="module")
def compared(tmp_path_factory, request):
    """A comparison of the tiny model, by the command."""
    folder = tmp_path_factory.mktemp("compared")
    model = request.getfixturevalue("model_path")
    path = commands.recipe(folder, model, num_generations=4, num_rollouts=8, per_device_eval_batch_size=8)
    (folder / "data" / "test.jsonl").write_text((folder / "data" / "train.jsonl").read_text())
    words = ["compare", "--config", path, "--output_dir", "out", "--seeds", 0, 1, "--max_seconds", 2]
    words += ["--eval_seconds", 0.5, "--learning_rates", 1e-3, 1e-2, "--num_jobs", 2]
    return folder, words, commands.run(*words, cwd=folder)


@pytest.mark.long
def test_command_compares_three_methods_on_the_same_seeds(compared):
    folder, _, result = compared
    assert result.returncode == 0, result.stderr
    results = json.loads((folder / "out" / "results.json").read_text())
    assert list(results["methods"]) == ["grpo", "grpo_n", "pods"]
    assert (folder / "out" / "accuracy.png").stat().st_size > 10_000
    for name, values in results["methods"].items():
        assert values["label"] in result.stdout
        for seed, curve in enumerate(values["curves"]):
            run = folder / "out" / "runs" / f"{name}_lr{values['learning_rate']:g}_seed{seed}"
            logged = read_curve(run, "eval_rewards/distinct/mean")
            assert curve["accuracy"] == logged.accuracy.tolist() and len(logged.accuracy) >= 3
            assert logged.steps[0] == 0 and logged.seconds[-1] >= 2.0


@pytest.mark.long
def test_command_accounts_for_the_seconds_of_a_step(compared):
    folder, _, result = compared
    results = json.loads((folder / "out" / "results.json").read_text())
    costs_of = {name: values["seconds_per_step"] for name, values in results["methods"].items()}
    for seconds in costs_of.values():
        parts = sum(seconds[phase] for phase in PHASES)
        assert parts > 0 and seconds["step"] > 0
    ideal = results["ideal_step_seconds"]
    assert ideal["generate"] == costs_of["grpo_n"]["generate"] and ideal["update"] == costs_of["grpo"]["update"]
    assert "ideal of PODS" in result.stdout and f"{1000 * ideal['step']:.1f}" in result.stdout


@pytest.mark.long
def test_command_chooses_the_learning_rate_on_tuning_seeds(compared):
    folder, *_ = compared
    results = json.loads((folder / "out" / "results.json").read_text())
    curves = {
        (name, rate): [
            read_curve(folder / "out" / "runs" / f"{name}_lr{rate:g}_seed1000", "eval_rewards/distinct/mean")
        ]
        for name in results["methods"]
        for rate in (1e-3, 1e-2)
    }
    chosen = choose_rates(tuning_results(curves, ["grpo", "grpo_n"]))
    assert chosen == {name: values["learning_rate"] for name, values in results["methods"].items()}


@pytest.mark.long
def test_methods_train_what_they_say(compared):
    folder, *_ = compared
    sizes = {}
    for run in (folder / "out" / "runs").glob("*_seed0"):
        record = json.loads((run / "pods_run.json").read_text())
        sizes[run.name.split("_lr")[0]] = record["num_prompts"], record["num_rollouts"], record["num_generations"]
        assert not list(run.glob("checkpoint-*")) and not list(run.glob("*.safetensors"))
        rates = {entry["learning_rate"] for entry in read_log(run) if "learning_rate" in entry}
        assert len(rates) == 1
    num_prompts = sizes["grpo"][0]
    assert sizes == {"grpo": (num_prompts, 4, 4), "grpo_n": (num_prompts, 8, 8), "pods": (num_prompts, 8, 4)}


@pytest.mark.long
def test_finished_runs_are_not_repeated_and_missing_ones_are_trained(compared):
    folder, words, _ = compared
    first = json.loads((folder / "out" / "results.json").read_text())
    rate = first["methods"]["pods"]["learning_rate"]
    run = folder / "out" / "runs" / f"pods_lr{rate:g}_seed1"
    kept = {path: path.stat().st_mtime_ns for path in (folder / "out" / "runs").glob("*/trainer_state.json")}
    (run / "trainer_state.json").unlink()  # as if it had been interrupted
    again = commands.run(*words, cwd=folder)
    assert again.returncode == 0, again.stderr
    for path, written in kept.items():
        assert (path.stat().st_mtime_ns == written) == (path.parent != run)


def refused(folder, monkeypatch, words):
    """What the command says without training anything, in this process, because starting one takes ten seconds."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(SetupError) as error:
        script.run([str(word) for word in words[1:]])
    return str(error.value)


@pytest.mark.long
def test_a_folder_of_another_comparison_is_refused(compared, monkeypatch):
    folder, words, _ = compared
    assert "holds a run of another command" in refused(folder, monkeypatch, [*words, "--temperature", "0.7"])


@pytest.mark.long
def test_a_folder_of_another_recipe_is_refused_but_not_of_another_comment(compared, monkeypatch):
    folder, words, _ = compared
    recipe = folder / "recipe.yaml"
    text = recipe.read_text()
    recipe.write_text(text.replace("max_completion_length: 6", "max_completion_length: 5"))
    said = refused(folder, monkeypatch, words)
    assert "or of another recipe" in said
    recipe.write_text("# The same.\n" + text)
    assert script.run([str(word) for word in words[1:]])["methods"]
    recipe.write_text(text)


def run_in(folder):
    return Run(Method("pods", "PODS", 8, 4, ()), 1e-3, 0, folder)


@pytest.mark.parametrize("cut", [None, "", '{"log_hist'])
@pytest.mark.parametrize(("logged", "clock"), [(2.5, 2.5), (1.9, 2.1)])  # saving takes time, too
def test_run_that_was_interrupted_after_training_is_finished_from_its_checkpoint(tmp_path, logged, clock, cut):
    run = run_in(tmp_path / "run")
    logs = [{"step": 1, "pods/train_seconds": 1.0}, {"step": 2, "pods/train_seconds": logged}]
    kept = {"WallClockCallback": {"args": {"max_seconds": 2.0}, "attributes": {"seconds": clock, "checked_at": logged}}}
    (run.folder / "checkpoint-2").mkdir(parents=True)
    state = {"log_history": logs, "stateful_callbacks": kept}
    (run.folder / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(state))
    if cut is not None:  # by a kill or a full disk while the last log was written
        (run.folder / "trainer_state.json").write_text(cut)
    assert not run.is_finished
    train([run], Job([], {}, max_seconds=2.0, max_steps=-1))
    assert run.is_finished and read_log(run.folder) == logs and not (run.folder / "checkpoint-2").exists()


@pytest.mark.parametrize("content", ["", '{"argum'])
def test_a_trained_folder_whose_command_is_cut_off_is_refused(tmp_path, content):
    run = run_in(tmp_path)
    (tmp_path / "command.json").write_text(content)
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    with pytest.raises(SetupError, match=r"holds a run of another command .* remove the folder"):
        train([run], Job([], {}, max_seconds=2.0, max_steps=-1))


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"file/run/command.json' cannot be written: .* set another `output_dir`"):
        train([run_in(tmp_path / "file" / "run")], Job([], {}, max_seconds=2.0, max_steps=-1))
    for name in ("results.json", "accuracy.png"):
        (tmp_path / name).mkdir()
    with pytest.raises(SetupError, match=r"results.json' cannot be written"):
        summary.write(tmp_path / "results.json", {})
    panel = plots.Panel("seconds", {"GRPO": [line(0.1)]}, 0.5)
    with pytest.raises(SetupError, match=r"accuracy.png' cannot be written"):
        plots.draw(tmp_path / "accuracy.png", "recipe", [panel])


# A training that launches another process, as accelerate does: in its own group, or as torchrun does.
LAUNCHER = """
import signal, subprocess, sys
from pathlib import Path

def main(command, prog):
    launched = subprocess.Popen(["sleep", "300"], start_new_session=command == ["torchrun"])
    if command == ["torchrun"]:
        signal.signal(signal.SIGTERM, lambda *_: (launched.terminate(), sys.exit(1)))
    Path("launched").touch()
    launched.wait()
"""
PARENT = """
import sys
from pathlib import Path
from trl_pods.lab import children

children._MODULE = "launcher"
child = children.start([sys.argv[2]], Path(sys.argv[1]))
try:
    child.join()
except BaseException:
    children.end(child)
    raise
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_what_a_training_launches_ends_with_its_parent(tmp_path, launcher, how):
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    name = str(tmp_path).strip("/")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT, str(tmp_path / "output.txt"), launcher]
    parent = subprocess.Popen(command, cwd=tmp_path, env=environment, preexec_fn=_heed_sigint, stderr=subprocess.PIPE)
    wait_until((tmp_path / "launched").exists)
    assert len(set(_processes_of(name))) == 2
    parent.send_signal(how)
    parent.communicate(timeout=900)
    wait_until(lambda: not _processes_of(name))


def wait_until(is_true, seconds=900):
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert is_true()


def test_seeds_are_compared_as_numbers(in_tmp, model_path):
    path = commands.recipe(in_tmp, model_path)
    parsed = RecipeParser().parse(["--config", path, "--max_seconds", "2", "--eval_seconds", "1"])
    seeds = ["--seeds", "1000000", "1000001", "--tuning_seeds", "10000000", "10000001"]
    script._check(script._parser("compare").parse_args(["--config", path, *seeds]), parsed)


@pytest.mark.long
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_ending_a_comparison_ends_its_runs_and_the_same_command_goes_on(compared, how, code):
    folder, words, _ = compared
    name = f"ended{how.value}"
    few = ["--output_dir", name, "--methods", "grpo", "pods", "--seeds", "0", "--learning_rates", "1e-3"]
    few += ["--max_seconds", "3", "--save_seconds", "0.5"]
    command = [sys.executable, "-m", "trl_pods.cli.main", *map(str, words), *few]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(command, cwd=folder, preexec_fn=_heed_sigint, **pipes)
    wait_until(lambda: list((folder / name).glob("runs/*/checkpoint-*")))
    running.send_signal(how)
    _, said = running.communicate(timeout=900)
    assert running.returncode == code
    assert how == signal.SIGKILL or ("same command resumes" in said and "Traceback" not in said)
    wait_until(lambda: _processes_of(name) == [])
    again = commands.run(*words, *few, cwd=folder)
    assert again.returncode == 0, again.stderr
    assert (folder / name / "results.json").exists()


def _heed_sigint():
    """What is started in the background of a shell ignores the signal, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _processes_of(name):
    """Training processes that write into the folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                files = [os.readlink(link) for link in (process / "fd").iterdir()]
            except OSError:
                continue
            found += [process.name for file in files if f"/{name}/" in file]
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "0", "1000"], r"`tuning_seeds` has \[1000\], which are compared, too"),
        (["--seeds", "0", "0"], r"`seeds` is \[0, 0\], which has a value twice"),
        (["--accuracy", "nothing"], r"`accuracy` is 'nothing', but the recipe's reward functions are \['distinct'\]"),
        (["--methods", "ppo"], r"`methods` has 'ppo'"),
        (["--methods", "pods:"], r"`methods` has 'pods:'"),
        (["--num_rollouts", "4"], r"`num_rollouts` is 4, which is `num_generations`"),
        (["--dry_run"], r"`dry_run` trains nothing"),
        (["--dataset_test_split", "held_out"], r"`dataset_test_split` is 'held_out', but the data have \['t"),
        (["--generation_batch_size", "8"], r"`generation_batch_size` is set"),
        (["--learning_rates", "0"], r"`learning_rates` is \[0.0\]"),
        (["--learning_rates", "1e-3", "1.0000001e-3"], r"which has a value twice"),
        (["--seeds", "-1"], r"`seeds` is \[-1\]"),
        (["--per_device_eval_batch_size", "3"], r"`per_device_eval_batch_size` is 3: .*Use a multiple of 4"),
        (["--num_jobs", "0"], r"`num_jobs` is 0"),
        (["--learning_rte", "1"], r"no option `--learning_rte`"),
    ],
)
def test_what_is_wrong_is_said_before_anything_trains(compared, words, message, monkeypatch):
    folder, usual, _ = compared
    said = refused(folder, monkeypatch, [*usual, "--output_dir", "other", *words])
    assert re.search(message, said), said
    assert not (folder / "other").exists()


@pytest.mark.long
def test_two_comparisons_in_one_folder_are_refused(compared, monkeypatch):
    folder, usual, _ = compared
    with FileLock(folder / "out" / ".lock"):
        assert "`output_dir`: another process compares in 'out'" in refused(folder, monkeypatch, usual)


def test_steps_far_from_the_ideal_are_warned_of():
    def row(seconds):
        return {
            "label": "PODS 8 to 4",
            "learning_rate": 1e-3,
            "seconds_per_step": {"step": seconds},
            "speedup": {"steps": 1.5},
        }

    def warnings(seconds):
        results = {"tuning": [], "seeds": [0, 1, 2], "ideal_step_seconds": {"step": 1.0}}
        return summary.warnings(results | {"methods": {"grpo": row(5.0), "pods": row(seconds)}})

    assert warnings(1.1) == []
    [warning] = warnings(1.5)
    assert "A step of PODS 8 to 4 took 1.50 times the ideal" in warning


def test_grpo_in_one_batch_is_grpo(tmp_path):
    args = make_args(tmp_path)
    assert [make_method(name, args).is_baseline for name in METHODS] == [True, True, True, False, False, False]


@pytest.mark.long
def test_errors_are_said_in_a_line(compared):
    folder, usual, _ = compared
    result = commands.run(*usual, "--output_dir", "other", "--methods", "ppo", cwd=folder)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("trl-pods compare: error: `methods` has 'ppo'")


@pytest.mark.long
def test_case_120_a_failing_run_says_why_and_where_and_goes_on_once_it_is_mended(compared):
    folder, words, _ = compared
    words = ["compare", "--config", words[words.index("--config") + 1], "--output_dir", "failing", "--seeds", 0, 1]
    words += ["--max_steps", 2, "--eval_strategy", "steps", "--eval_steps", 1, "--methods", "grpo", "pods"]
    (folder / "my_rewards.py").write_text(
        (folder / "my_rewards.py").read_text()
        + "\n\ndef broken(completions, **kwargs):\n    raise RuntimeError('out of order')\n"
    )
    result = commands.run(*words, "--reward_funcs", "my_rewards.broken", cwd=folder)
    assert result.returncode == 2 and "failing" in result.stderr and "out of order" in result.stderr, result.stderr
    result = commands.run(*words, cwd=folder)
    assert result.returncode == 0 and "PODS" in result.stdout, result.stderr


@pytest.mark.long
def test_of_as_many_steps_the_speedup_at_a_cost_ratio_does_not_depend_on_the_machine(compared, tmp_path):
    folder, words, _ = compared
    config = words[words.index("--config") + 1]
    usual = ["compare", "--config", config, "--max_steps", 6, "--eval_strategy", "steps", "--eval_steps", 2]
    usual += ["--methods", "grpo", "pods", "--seeds", 0, 1, 2]
    found = []
    for num_jobs in (1, 2):
        output = tmp_path / str(num_jobs)
        done = commands.run(*usual, "--num_jobs", num_jobs, "--output_dir", output, cwd=folder)
        assert done.returncode == 0, done.stderr
        results = json.loads((output / "results.json").read_text())
        measured = results["prices"]["cost_ratio"]
        assert f"{measured:.1f}," in done.stdout
        assert (output / "speedup.png").stat().st_size > 10_000
        found.append([entry for entry in results["by_cost_ratio"] if entry["cost_ratio"] != measured])
        for method in results["methods"].values():
            assert [curve["steps"] for curve in method["curves"]] == [[0, 2, 4, 6]] * 3
    assert found[0] == found[1]
    assert {3.0, 10.0, 30.0} < {entry["cost_ratio"] for entry in found[0]}


@pytest.mark.long
def test_prices_alone_are_measured_without_a_comparison(compared, tmp_path):
    folder, words, _ = compared
    config = words[words.index("--config") + 1]
    usual = ["compare", "--config", config, "--cost_only", "--max_seconds", 2, "--output_dir", tmp_path]
    done = commands.run(*usual, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"a sampled rollout costs .* ms and a trained row .* ms: the cost ratio is [0-9.]+\.", done.stdout)
