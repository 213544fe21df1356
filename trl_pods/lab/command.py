"""
What `trl-pods compare` runs: one initial checkpoint trained by plain GRPO and by PODS, several seeds.

All train for the same seconds, evaluation excluded, or for the same steps. With several learning rates, each method
gets the one that takes the fewest steps to the target on tuning seeds, which are others than those compared.
"""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..checks.batch_sizes import check_evaluation
from ..checks.errors import SetupError, exit_on_user_error
from ..checks.extras import require
from ..cli.arguments import Arguments, RecipeParser
from ..cli.build import load_data, load_rewards
from ..cli.bundled import recipe_path
from ..cli.train import set_up, set_up_output
from . import summary
from .methods import DEFAULT, METHODS, make_method
from .runs import Job

# `max_seconds` and what is evaluated where only prices are measured.
COST_ONLY = ("--max_seconds", "60", "--eval_strategy", "no")

if TYPE_CHECKING:
    from .comparison import Comparison


def run(arguments: list[str], prog: str = "trl-pods compare") -> dict[str, Any]:
    """Compare, say what came out, and write `results.json`, two plots and the runs into the output folder."""
    require("matplotlib", "plot", "The plots of `compare`")
    from rich.console import Console

    from .comparison import compare_methods as compare
    from .comparison import measure

    comparison = _parse(arguments, prog)
    try:
        comparison.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"`output_dir`: {error}. Name another folder.") from error
    print(_announcement(comparison), flush=True)
    with _alone_in(comparison.folder):
        results = measure(comparison) if comparison.cost_only else compare(comparison)
    if comparison.cost_only:
        print(summary.describe_prices(results["prices"]))
        return results
    tables = [summary.cost_table(results), summary.seconds_table(results), summary.phase_table(results)]
    Console().print(*tables, sep="\n")
    for warning in summary.warnings(results):
        print(warning)
    print(f"Numbers, curves and plots are in {comparison.folder}: results.json, accuracy.png, speedup.png.")
    return results


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Compare while no other process does so in the same folder, where each would resume the runs of the other."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise SetupError(
            f"`output_dir`: another process compares in {str(folder)!r}. Wait for it, or name another."
        ) from None


def _announcement(comparison: "Comparison") -> str:
    rates = len(comparison.learning_rates)
    num_runs = len(comparison.methods) * (len(comparison.seeds) + (rates > 1) * rates * len(comparison.tuning_seeds))
    return (
        f"Comparing {', '.join(method.label for method in comparison.methods)}: up to {num_runs} runs of "
        f"{_length(comparison.job)} each and their evaluations. The learning rate of all is constant, whatever the "
        "recipe says of schedules."
    )


def _length(job: Job) -> str:
    return f"{job.max_steps} steps" if job.max_seconds is None else f"{job.max_seconds:g} s"


def _parse(arguments: list[str], prog: str) -> "Comparison":
    from .comparison import Comparison

    own, rest = _parser(prog).parse_known_args(arguments)
    shared = ["--config", own.config, *(COST_ONLY if own.cost_only else ()), *rest]
    parsed = RecipeParser(prog).parse(shared)
    _check(own, parsed)
    if own.cost_only:
        own.methods, own.seeds, own.learning_rates = ["pods_all"], own.seeds[:1], None
    if "generation_batch_size" in parsed.recipe.lines or any("generation_batch_size" in word for word in rest):
        raise SetupError(
            "`generation_batch_size` is set, but GRPO with n needs another one. Set `steps_per_generation` instead."
        )
    with parsed.explained():
        check_evaluation(parsed.training)
        names = [getattr(reward, "__name__", str(reward).split("/")[-1]) for reward in load_rewards(parsed)]
        methods = [make_method(name, parsed.training) for name in own.methods]
        if own.accuracy is not None and own.accuracy not in names:
            raise SetupError(
                f"`accuracy` is {own.accuracy!r}, but the recipe's reward functions are {names}. Name one."
            )
        set_up(parsed)
        if not own.cost_only and parsed.script.dataset_test_split not in (data := load_data(parsed)):
            raise SetupError(
                f"`dataset_test_split` is {parsed.script.dataset_test_split!r}, but the data have {list(data)}. "
                "Name the split to evaluate on."
            )
    max_seconds, max_steps = parsed.script.max_seconds, parsed.training.max_steps
    ends = () if max_seconds is None else ("--max_steps", "1000000")
    return Comparison(
        title=Path(own.config).stem,
        command=shlex.join([*prog.split(), *arguments]),
        job=Job(
            [*shared, *_overrides(parsed, cost_only=own.cost_only), *ends],
            _options_in(own.config),
            max_seconds,
            max_steps,
            own.num_jobs,
        ),
        methods=methods,
        seeds=own.seeds,
        learning_rates=own.learning_rates or [parsed.training.learning_rate],
        tuning_seeds=own.tuning_seeds,
        metric=f"eval_rewards/{own.accuracy or names[0]}/mean",
        folder=Path(own.output_dir),
        cost_only=own.cost_only,
    )


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--config",
        metavar="RECIPE",
        required=True,
        default=argparse.SUPPRESS,  # in the help
        type=recipe_path,
        help="recipe of the PODS run, as for `trl-pods grpo`",
    )
    add("--methods", nargs="+", default=list(DEFAULT), help=f"of {list(METHODS)} and 'pods:STRATEGY'")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds that are compared")
    add("--learning_rates", nargs="+", type=float, help="to choose from, for each method (if not set: the recipe's)")
    add("--tuning_seeds", nargs="+", type=int, default=[1000], help="seeds to choose them by")
    add("--accuracy", help="reward function that is the accuracy (if not set: the first)")
    add("--cost_only", action="store_true", help="measure what a rollout and a row cost here, in a minute, and stop")
    add("--num_jobs", type=int, default=1, help="runs at a time, on a CPU with cores to spare")
    add("--output_dir", default="runs/compare", help="folder for all that it makes")
    return parser


def _options_in(recipe: str) -> dict[str, Any]:
    """What a recipe says, as JSON holds it: comments and order do not count."""
    return json.loads(json.dumps(yaml.safe_load(Path(recipe).read_text()), default=str))


def _check(own: argparse.Namespace, parsed: Arguments) -> None:
    """Check what the command line and the recipe say, before anything is loaded."""
    script, training = parsed.script, parsed.training
    if script.max_seconds is None and training.max_steps <= 0:
        raise SetupError("How long to train is not set. Add `--max_seconds 60`, or `--max_steps 200`.")
    if not own.cost_only and script.eval_seconds is None and training.eval_strategy == "no":
        unit = "seconds 5" if script.max_seconds else "strategy steps --eval_steps 10"
        raise SetupError(f"When to evaluate is not set, but methods are compared by it. Add `--eval_{unit}`.")
    if parsed.script.dry_run:
        raise SetupError("`dry_run` trains nothing that could be compared. Give it to `trl-pods grpo`.")
    if parsed.training.num_rollouts == parsed.training.num_generations and len(own.methods) > 1:
        raise SetupError(
            f"`num_rollouts` is {parsed.training.num_rollouts}, which is `num_generations`, so there is nothing to "
            "compare. Raise `num_rollouts`."
        )
    for name in ("methods", "seeds", "learning_rates", "tuning_seeds"):
        values = getattr(own, name) or []
        # Rates that are written alike would share a folder.
        if len({f"{value:g}" if isinstance(value, float) else value for value in values}) < len(values):
            raise SetupError(f"`{name}` is {values}, which has a value twice. Give each once.")
    if shared := sorted({*own.seeds} & {*own.tuning_seeds}):
        raise SetupError(f"`tuning_seeds` has {shared}, which are compared, too. Use others, to choose fairly.")
    for name, least in (("seeds", 0), ("tuning_seeds", 0), ("num_jobs", 1)):
        values = getattr(own, name)
        if min(values if isinstance(values, list) else [values]) < least:
            raise SetupError(f"`{name}` is {values}, but it must be {least} or more.")
    if min(own.learning_rates or [1.0]) <= 0:
        raise SetupError(f"`learning_rates` is {own.learning_rates}, but each must be above 0.")


def _overrides(parsed: Arguments, *, cost_only: bool) -> list[str]:
    """What all runs do otherwise than the recipe says: alike evaluation, and a log that tells what steps cost."""
    args = parsed.training
    overrides = ["--num_generations_eval", str(args.num_generations_eval or args.num_generations)]
    # A schedule over steps would treat methods of different speed differently.
    overrides += ["--lr_scheduler_type", "constant", "--eval_on_start", str(not cost_only).lower()]
    if args.logging_steps != 1 or args.logging_strategy != "steps":
        overrides += ["--logging_strategy", "steps", "--logging_steps", "1"]
    if args.push_to_hub:
        overrides += ["--push_to_hub", "false"]
    return overrides


def main(arguments: list[str], prog: str) -> None:
    """Run the script as a command: user errors are reported without a traceback."""
    set_up_output()
    signal.signal(signal.SIGTERM, _end)
    with exit_on_user_error(prog, interrupted="Interrupted. The same command resumes from what is finished."):
        run(arguments, prog)


def _end(number: int, frame: Any) -> None:
    print("\nEnded. The same command resumes from what is finished.", file=sys.stderr)
    sys.exit(128 + number)
