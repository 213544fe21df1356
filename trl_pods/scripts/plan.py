"""
What `trl-pods plan` runs: which n and m to use, from the times and pass rates of measured runs.

It reads finished runs, or makes three short ones of a recipe first, and predicts seconds per step and learning signal
per second for a grid of rollouts sampled (n) and kept (m).
"""

import argparse
import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SetupError, said_in_a_line

if TYPE_CHECKING:
    from ..planning import Plan

USAGE = """\
trl-pods plan RUN_DIR [RUN_DIR ...] [options]
       trl-pods plan --config RECIPE [options] [any option of trl-pods grpo]"""


def run(arguments: list[str], prog: str = "trl-pods plan") -> "Plan":
    """
    Plan, print the plan, and write `plan.json` and `plan.png`.

    Args:
        arguments (`list[str]`):
            Command-line arguments.
        prog (`str`, *optional*, defaults to `"trl-pods plan"`):
            Name of the command, for its help.

    Returns:
        [`~planning.Plan`]: The plan.

    Raises:
        SetupError: The runs are missing or cannot be planned from, an option is wrong, or matplotlib is missing.
    """
    own, rest = _parser(prog).parse_known_args(arguments)
    _check(own, rest)
    from rich.console import Console

    from ..planning import plan_runs
    from ..planning.pictures import draw
    from ..planning.table import show

    folders, output_dir = _measured(own, rest, prog) if own.config else ([Path(name) for name in rest], None)
    plan = plan_runs(folders, own.rollouts, own.kept, own.rule, Path(own.config).stem if own.config else None)
    output = Path(own.output_dir or output_dir or folders[0])
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / "plan.json").write_text(json.dumps(plan.as_dict(), indent=2) + "\n")
        draw(output / "plan.png", plan)
    except OSError as error:
        raise SetupError(
            f"The plan cannot be written to {str(output)!r}: {error}. Name another `--output_dir`."
        ) from error
    show(plan, Console())
    print(f"Numbers and picture are in {output}: plan.json, plan.png.")
    return plan


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=USAGE,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", metavar="RECIPE", help="make short runs of this recipe, in OUTPUT_DIR/plan")
    add("--plan_steps", type=int, default=8, help="generation batches of each short run (default: 8)")
    add("--rollouts", type=int, nargs="+", default=[8, 16, 32, 64, 128], metavar="N", help="values of n (8 ... 128)")
    add("--kept", type=int, nargs="+", default=[2, 4, 8, 16], metavar="M", help="values of m (2 4 8 16)")
    add("--rule", help="rule that keeps m of n (default: that of the runs)")
    add("--output_dir", help="folder for plan.json and plan.png (default: that of the first run, or of the recipe)")
    return parser


def _check(own: argparse.Namespace, rest: list[str]) -> None:
    """Check what is quick to check, before anything is loaded or measured."""
    if own.config is None and not rest:
        raise SetupError("There is nothing to plan from. Name folders of finished runs, or a recipe with `--config`.")
    unknown = [argument for argument in rest if argument.startswith("-")]
    if own.config is None and unknown:
        raise SetupError(f"There is no option {unknown[0]!r} without `--config`. See `trl-pods plan --help`.")
    if own.plan_steps < 2:
        raise SetupError(f"`--plan_steps` is {own.plan_steps}, but the first step does not count. Use 2 or more.")
    if find_spec("matplotlib") is None:
        raise SetupError("The plan is drawn with matplotlib, which is missing. Run pip install 'trl-pods[plot]'.")


def _measured(own: argparse.Namespace, rest: list[str], prog: str) -> tuple[list[Path], str]:
    """Folders of short runs of the recipe, and its `output_dir`."""
    from ..planning.plan import make_grid
    from ..planning.trials import corners, measure
    from .arguments import RecipeParser

    make_grid(own.rollouts, own.kept)  # checks it
    arguments = ["--config", own.config, *rest]
    parsed = RecipeParser(prog).parse(arguments)
    output_dir = own.output_dir or parsed.training.output_dir
    pairs = corners(own.rollouts, own.kept)
    return measure(parsed, arguments, pairs, own.plan_steps, Path(output_dir) / "plan"), output_dir


def main(arguments: list[str], prog: str) -> None:
    """
    Run the script as a command: what a user can mend is said in a line, without a traceback.

    Args:
        arguments (`list[str]`):
            Command-line arguments.
        prog (`str`):
            Name of the command, for its help and its errors.
    """
    logging.basicConfig(format="%(message)s")
    with said_in_a_line(prog):
        run(arguments, prog)
