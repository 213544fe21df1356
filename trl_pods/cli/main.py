"""The command line of trl_pods: train, and see what it brings."""

import argparse
import os
import sys

from .. import __version__
from ..checks.errors import did_you_mean, exit_on_user_error

DEFAULTS = argparse.ArgumentDefaultsHelpFormatter
EXAMPLES = """\
examples:
  trl-pods quickstart
  trl-pods grpo --config quickstart --learning_rate 5.0e-4
  trl-pods compare --config quickstart --max_seconds 10 --eval_seconds 1
  trl-pods report runs/quickstart/model
  trl-pods recipes copy quickstart my_recipe.yaml
  trl-pods strategies
"""


def main(arguments: list[str] | None = None) -> None:
    """Run a command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="trl-pods", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"trl-pods {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("grpo", help="train as `trl grpo` does, on the most informative rollouts", add_help=False)
    commands.add_parser("compare", help="train by plain GRPO and by PODS for the same time", add_help=False)
    quickstart = commands.add_parser(
        "quickstart", help="make a small model and train it with PODS, on a CPU", formatter_class=DEFAULTS
    )
    quickstart.add_argument("--output_dir", default="runs/quickstart", help="folder for all that it makes")
    quickstart.add_argument("--seed", type=int, default=0, help="seed of the data, the model and the training")
    report = commands.add_parser("report", help="write a page about a run: rewards, what was kept, time, examples")
    report.add_argument("run_dir", metavar="RUN_DIR", help="the run's `output_dir`")
    report.add_argument("--output", metavar="FILE", help="file to write (default: RUN_DIR/report.html)")
    commands.add_parser("strategies", help="list the down-sampling strategies")
    recipes = commands.add_parser("recipes", help="list the recipes that come with trl_pods, or copy one")
    copy = recipes.add_subparsers(dest="action", metavar="ACTION").add_parser("copy", help="write one, to edit it")
    copy.add_argument("name", metavar="NAME", help="name of the recipe")
    copy.add_argument("file", metavar="FILE", nargs="?", help="file to write (default: NAME.yaml)")
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands.choices:
        parser.error(f"no command {arguments[0]!r}. {did_you_mean(arguments[0], commands.choices, 'See --help.')}")
    args, rest = parser.parse_known_args(arguments)
    if args.command == "grpo":
        _grpo(arguments[arguments.index("grpo") + 1 :])
    elif args.command == "compare":
        _compare(arguments[arguments.index("compare") + 1 :])
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    elif args.command == "quickstart":
        _quickstart(args.output_dir, args.seed)
    elif args.command == "report":
        _report(args.run_dir, args.output)
    elif args.command == "strategies":
        _strategies()
    elif args.command == "recipes":
        _recipes(args)
    else:
        parser.print_help()


def _grpo(arguments: list[str]) -> None:
    if any(argument.split("=")[0].replace("-", "_") == "__dry_run" for argument in arguments):
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries are imported
    from .options import check_early

    with exit_on_user_error("trl-pods grpo"):
        check_early(arguments, "trl-pods grpo")
        from .train import main as train

    train(arguments, prog="trl-pods grpo")


def _compare(arguments: list[str]) -> None:
    from ..lab.command import main as compare

    compare(arguments, prog="trl-pods compare")


def _quickstart(output_dir: str, seed: int) -> None:
    # One thread: the model is too small to share out, and threads that wait for each other slow a busy machine down.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print("Loading torch, transformers and TRL ...", flush=True)
    from datasets import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    from ..examples.quickstart import run
    from .train import set_up_output

    set_up_output()
    disable_progress_bars()

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with exit_on_user_error("trl-pods quickstart"):
        run(output_dir, seed)


def _report(run_dir: str, output: str | None) -> None:
    with exit_on_user_error("trl-pods report"):
        from ..lab.report.page import write_report

        print(f"Wrote {write_report(run_dir, output)}")


def _strategies() -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from ..strategies.registry import list_strategies

    table = Table(Column("strategy", no_wrap=True), "what it keeps", "source")
    for name, (summary, source) in list_strategies().items():
        table.add_row(name, summary, source)
    Console().print(table)
    print(
        "A strategy chooses among the rollouts of each prompt. Across prompts, `zero_variance` and "
        "`prompt_oversampling`\nchoose which prompts are trained: dynamic sampling (DAPO) at a fixed cost."
    )


def _recipes(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from .bundled import bundled_recipes, copy_recipe, describe

    if args.action == "copy":
        with exit_on_user_error("trl-pods recipes"):
            print(f"Wrote {copy_recipe(args.name, args.file)}")
        return
    table = Table(Column("recipe", no_wrap=True), "purpose", "hardware")
    for name, path in bundled_recipes().items():
        table.add_row(name, *describe(path))
    Console().print(table)
    print("`trl-pods grpo --config NAME` trains one; `trl-pods recipes copy NAME FILE` writes it to a file to edit.")


if __name__ == "__main__":
    main()
