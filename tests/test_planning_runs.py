"""Planning from folders of runs, and the command."""

import json
import sys

import numpy as np
import pytest
from commands import recipe, run_python
from planning_runs import COST, half_right, log_entry, write_run, write_table

from trl_pods import cli, phases
from trl_pods.comparison import children
from trl_pods.errors import SetupError
from trl_pods.planning import plan_runs
from trl_pods.planning.cost import CostModel, read_timing
from trl_pods.planning.measured import find_rewards, read_runs
from trl_pods.planning.pass_rates import BetaPassRates, SeenRewards
from trl_pods.planning.trials import corners, measure, options
from trl_pods.runs.record import RunRecord
from trl_pods.scripts.arguments import RecipeParser
from trl_pods.scripts.plan import run as run_plan

PHASES = [f"pods/time/{phase}" for phase in phases.PHASES]
PAIRS = [(8, 2), (32, 2), (32, 8)]


@pytest.fixture
def three_runs(tmp_path):
    return [write_run(tmp_path / f"{n}_{m}", n, m) for n, m in PAIRS]


def test_the_times_of_runs_give_the_cost_without_warm_up(three_runs):
    plan = plan_runs(three_runs, rollouts=[8, 64], kept=[2, 16])
    assert vars(plan.cost) == pytest.approx(vars(COST))
    assert [(pair.num_rollouts, pair.num_generations) for pair in plan.pairs] == [(8, 2), (64, 2), (64, 16)]
    assert plan.pairs[0].seconds == pytest.approx(COST.seconds(8, 2))
    assert plan.signal_per_second[8, 2] == plan.pairs[0].signal / plan.pairs[0].seconds
    assert plan.root_signal_per_second[8, 2] == plan.pairs[0].signal ** 0.5 / plan.pairs[0].seconds


@pytest.mark.parametrize(
    ("cost", "pass_rate", "best"),
    [
        (CostModel(1.0, 0.0, 0.0, 1e3), 0.02, (128, 2)),  # only kept rollouts cost: sample many, keep few
        (CostModel(0.0, 1e3, 0.0, 0.0), 0.1, (16, 16)),  # only sampled ones cost: keep all
        (CostModel(1.0, 0.0, 1.0, 0.0), 0.1, (128, 16)),  # nothing depends on n and m: take all
    ],
)
def test_what_is_free_is_taken(tmp_path, cost, pass_rate, best):
    def rarely_right(n):
        return lambda step: (np.random.default_rng(step).random((4, n)) < pass_rate).astype(float)

    runs = [write_run(tmp_path / f"{n}_{m}", n, m, cost=cost, rewards=rarely_right(n), steps=30) for n, m in PAIRS]
    plan = plan_runs(runs)
    assert (plan.best.num_rollouts, plan.best.num_generations) == best


@pytest.mark.parametrize(
    ("sizes", "steps_per_batch"),
    [
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 2}, 2),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 2, "num_iterations": 2}, 2),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 4}, 0.5),
    ],
)
def test_times_are_those_of_a_generation_batch_however_many_steps_it_takes(tmp_path, sizes, steps_per_batch):
    """The log has seconds per optimizer step: of two steps on a generation batch, one samples and one does not."""
    record = RunRecord.read(write_run(tmp_path, 32, 8, steps=0, **sizes))
    whole = log_entry(2, 32, 8, COST, half_right(32)(0))
    once = ("pods/time/generate", "pods/time/reward", "pods/time/select")
    log = []
    for step in range(1, 13):
        share = {key: step % 2 if key in once and steps_per_batch == 2 else 1 / steps_per_batch for key in PHASES}
        entry = {key: whole[key] * share[key] for key in PHASES}
        rest = whole["step_time"] - sum(whole[key] for key in PHASES)
        log.append(entry | {"step": step, "step_time": sum(entry.values()) + rest / steps_per_batch})
    timing = read_timing(log, record)
    assert timing.sampling == pytest.approx(COST.per_batch_sampled + 32 * COST.per_rollout)
    assert timing.seconds == pytest.approx(COST.seconds(32, 8))


def test_log_entries_may_cover_several_steps(tmp_path):
    write_run(tmp_path, 32, 8, steps=0, steps_per_generation=3)
    log = [log_entry(step, 32, 8, COST, half_right(32)(0)) for step in (2, 4, 6, 8, 10, 12, 14, 16, 18)]
    assert read_timing(log, RunRecord.read(tmp_path)).seconds == pytest.approx(3 * COST.seconds(32, 8))


def test_rewards_of_two_values_give_pass_rates_from_tables_and_from_logs(tmp_path):
    def rewards(step):
        random = np.random.default_rng(step)
        return (random.random((4, 16)) < random.beta(0.5, 1.0, size=(4, 1))).astype(float)

    folder = write_run(tmp_path / "tables", 16, 4, rewards=rewards, steps=300)
    found, cautions = find_rewards(read_runs([folder]))
    assert isinstance(found, BetaPassRates)
    assert (found.alpha, found.beta) == pytest.approx((0.5, 1.0), rel=0.15)
    assert not cautions
    bare = write_run(tmp_path / "log", 16, 4, rewards=rewards, steps=300, tables=False)
    from_log, cautions = find_rewards(read_runs([bare]))
    assert (from_log.alpha, from_log.beta) == pytest.approx((0.5, 1.0), rel=0.2)
    assert "log alone" in cautions[0]


def test_tables_of_evaluations_are_left_out(tmp_path):
    folder = write_run(tmp_path, 16, 4)
    write_table(folder, 6, np.ones((4, 16)), 16)  # all kept
    write_table(folder, 5, np.ones((4, 8)), 4)  # another number of rows
    found, _ = find_rewards(read_runs([folder]))
    assert found.mean == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("length", [0, 100])
def test_a_table_that_is_half_written_is_passed_over(three_runs, length, caplog):
    table = three_runs[0] / "completions" / "completions_00006.parquet"
    table.write_bytes(table.read_bytes()[:length])
    plan_runs(three_runs)
    assert "completions_00006.parquet cannot be read, so it is passed over" in caplog.text


def test_rare_other_rewards_are_rounded_and_frequent_ones_resampled(tmp_path):
    def rewards(share):
        def at(step):
            random = np.random.default_rng(step)
            values = half_right(16)(step)
            return np.where(random.random(values.shape) < share, 0.2, values)

        return at

    found, cautions = find_rewards(read_runs([write_run(tmp_path / "rare", 16, 4, rewards=rewards(0.02))]))
    assert isinstance(found, BetaPassRates)
    assert "nearer" in " ".join(cautions)
    found, cautions = find_rewards(read_runs([write_run(tmp_path / "often", 16, 4, rewards=rewards(0.3))]))
    assert isinstance(found, SeenRewards)
    assert "resampled" in cautions[0]


def test_a_single_run_cautions_of_what_it_leaves_open(tmp_path):
    cautions = " ".join(plan_runs([write_run(tmp_path, 32, 8)]).cautions)
    assert "All runs have `num_rollouts` 32" in cautions
    assert "All runs have `num_generations` 8" in cautions
    assert "24 prompts only" in cautions


def test_a_rule_that_looks_at_lengths_is_planned_with_a_caution(three_runs):
    plan = plan_runs(three_runs, rule="length_aware_max_variance")
    assert plan.rule == "length_aware_max_variance"
    assert any("equally long" in caution for caution in plan.cautions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_prompts": 8}, "differ in `num_prompts`"),
        ({"model": "other"}, "differ in `model`"),
        ({"device": "cuda"}, "differ in `device`"),
        ({"down_sampling": "random"}, "Name the one to plan for"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(three_runs, tmp_path, changes, message):
    with pytest.raises(SetupError, match=message):
        plan_runs([*three_runs, write_run(tmp_path / "other", 16, 4, **changes)])


def alike(step):
    return np.zeros((4, 8))


@pytest.mark.parametrize(
    ("run_of", "message"),
    [
        ({"log": [{"step": 1, "loss": 0.1}]}, "no `pods/time"),
        ({"steps": 2, "steps_per_generation": 4}, "whole generation batch"),
        ({"rewards": alike}, "nothing can be planned"),
        ({"rewards": alike, "tables": False}, "nothing can be planned"),
        ({"rewards": lambda step: np.full((4, 8), 0.5), "tables": False}, "log_completions: true"),
        ({"reward_names": ["right", "other"], "reward_weights": [1.0, 1.0]}, r"lack the rewards \['other'\]"),
    ],
)
def test_runs_that_say_too_little_are_refused(tmp_path, run_of, message):
    with pytest.raises(SetupError, match=message):
        plan_runs([write_run(tmp_path, 8, 4, **run_of)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to plan from"),
        (["no_such_run"], "pods_run.json"),
        (["{run}/pods_run.json"], "holds no pods_run.json (Not a directory)"),
        (["no_such_run", "--what", "1"], "no option '--what'"),
        (["no_such_run", "--plan_steps", "1"], "Use 2 or more"),
        (["{run}", "--kept", "1", "2"], "at least 2"),
        (["{run}", "--rollouts", "2", "--kept", "8"], "all smaller"),
        (["{run}", "--rule", "no_such_rule"], "no_such_rule"),
        (["--config", "no_such_recipe.yaml"], "no_such_recipe.yaml"),
    ],
)
def test_a_mistake_is_said_in_a_line(three_runs, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["plan", *(argument.format(run=three_runs[0]) for argument in arguments)])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("trl-pods plan: error: ") and message in said and said.count("\n") == 1


def test_without_matplotlib_the_way_out_is_said_at_once(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    with pytest.raises(SetupError, match=r"trl-pods\[plot\]"):
        run_plan(["no_such_run"])


def test_help_does_not_wait_for_torch():
    code = "import sys\nfrom trl_pods.cli import main\ntry:\n    main(['plan', '--help'])\n"
    code += "except SystemExit as stop:\n    assert stop.code == 0 and 'torch' not in sys.modules"
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "--rollouts" in done.stdout


def test_the_command_prints_the_plan_and_writes_numbers_and_picture(three_runs, tmp_path, capsys):
    cli.main(["plan", *map(str, three_runs), "--rollouts", "8", "16", "--kept", "2", "4"])
    printed = capsys.readouterr().out
    numbers = json.loads((three_runs[0] / "plan.json").read_text())
    best = numbers["recommended"]
    assert f"--num_rollouts {best['num_rollouts']} --num_generations {best['num_generations']}" in printed
    assert "> 1.00 <" in printed
    assert max(pair["relative"] for pair in numbers["pairs"]) == 1
    assert numbers["cost"]["per_rollout"] == pytest.approx(COST.per_rollout)
    assert (three_runs[0] / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_recipe_is_measured_and_planned(in_tmp, model_path):
    path = recipe(in_tmp, model_path, steps_per_generation=2, gradient_accumulation_steps=2)
    grid = ["--rollouts", "4", "--kept", "2", "4", "--plan_steps", "3"]
    plan = run_plan(["--config", path, *grid, "--learning_rate", "1e-4"])
    assert plan.title == "recipe"
    assert [(timing.num_rollouts, timing.num_generations) for timing in plan.timings] == [(4, 2), (4, 4)]
    records = [RunRecord.read(in_tmp / "out" / "plan" / name) for name in ("4_2", "4_4")]
    assert {record.num_prompts for record in records} == {4}
    assert {record.learning_rate for record in records} == {1e-4}
    assert [record.per_device_train_batch_size * record.steps_per_generation for record in records] == [8, 16]
    assert not list((in_tmp / "out").glob("plan/*/*.safetensors"))
    assert json.loads((in_tmp / "out" / "plan.json").read_text())["recommended"]
    assert (in_tmp / "out" / "plan.png").exists()


@pytest.mark.parametrize(
    ("values", "kept", "expected"),
    [
        ({}, 2, ("4", "1", "1")),  # 2 prompts: 4 rows
        ({}, 16, ("8", "4", "4")),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 2}, 2, ("8", "1", "2")),  # two updates
        ({"generation_batch_size": 32}, 4, ("8", "1", None)),
        ({"per_device_train_batch_size": 12, "num_generations": 3}, 2, ("8", "1", "1")),
    ],
)
def test_short_runs_have_the_prompts_and_updates_of_the_recipe(in_tmp, model_path, values, kept, expected):
    parsed = RecipeParser().parse(["--config", recipe(in_tmp, model_path, **values)])
    own = options(parsed, 32, kept, 3)
    given = dict(zip(own[::2], own[1::2]))
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
    assert tuple(given.get(f"--{name}") for name in names) == expected


def test_the_corners_of_the_grid_are_measured():
    assert corners([8, 128], [2, 16]) == [(8, 2), (128, 2), (128, 16)]
    assert corners([8], [2]) == [(8, 2)]
    assert corners([2, 8], [4, 16]) == [(8, 4)]  # only what holds n >= m


def test_a_folder_that_no_plan_made_is_kept(in_tmp, model_path):
    (in_tmp / "out" / "plan" / "8_2").mkdir(parents=True)
    with pytest.raises(SetupError, match="in the way"):
        run_plan(["--config", recipe(in_tmp, model_path), "--rollouts", "8", "--kept", "2"])


def test_a_run_that_ended_too_soon_to_be_known_is_replaced(in_tmp, model_path, monkeypatch):
    run = in_tmp / "plan" / "8_2"

    def end_early(command):
        assert not run.exists()
        (run / "runs").mkdir(parents=True)
        return 1

    monkeypatch.setattr(children, "run", end_early)
    parsed = RecipeParser().parse(["--config", recipe(in_tmp, model_path)])
    for _ in range(2):
        with pytest.raises(SetupError, match=r"n = 8, m = 2 failed"):
            measure(parsed, [], [(8, 2)], 3, run.parent)


def test_a_folder_that_cannot_be_made_is_said(in_tmp, model_path):
    parsed = RecipeParser().parse(["--config", recipe(in_tmp, model_path)])
    (in_tmp / "file").touch()
    with pytest.raises(SetupError, match=r"`output_dir`: .*file.*Name another folder"):
        measure(parsed, [], [(8, 2)], 3, in_tmp / "file" / "plan")
