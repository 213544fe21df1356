"""Short runs of a recipe at the corners of the grid, for its times and pass rates."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..batching import prompts_per_generation
from ..comparison import children
from ..comparison.runs import remove_weights
from ..errors import SetupError
from ..runs.record import FILE
from ..scripts.arguments import Arguments

MARK = ".trl_pods_plan"  # in the folder of the runs: a plan has made them, even where one ended too soon to be known
_ENDLESS = "1e9"  # seconds: clocks that a recipe sets and a short run does without

# What a short run does otherwise than the recipe says.
_FIXED = (
    *("--logging_strategy", "steps", "--logging_steps", "1", "--report_to", "none"),
    *("--log_completions", "true", "--num_completions_to_print", "0"),
    *("--save_strategy", "no", "--load_best_model_at_end", "false", "--push_to_hub", "false"),
    *("--eval_strategy", "no", "--eval_on_start", "false", "--resume_from_checkpoint", "no"),
)


def corners(rollouts: Sequence[int], kept: Sequence[int]) -> list[tuple[int, int]]:
    """
    Choose the pairs to measure, so that both parts of the cost are known and the grid lies between them.

    Args:
        rollouts (`Sequence[int]`):
            Values of n.
        kept (`Sequence[int]`):
            Values of m.

    Returns:
        `list[tuple[int, int]]`: Pairs (n, m): small and large n at the smallest m, and the largest m that n holds.

    Example:

    ```python
    >>> from trl_pods.planning.trials import corners

    >>> corners([8, 16, 32, 64, 128], [2, 4, 8, 16])
    [(8, 2), (128, 2), (128, 16)]

    ```
    """
    low = min(kept)
    fitting = [n for n in rollouts if n >= low] or [low]
    high = max(m for m in kept if m <= max(fitting))
    return list(dict.fromkeys([(min(fitting), low), (max(fitting), low), (max(fitting), high)]))


def measure(
    parsed: Arguments, arguments: list[str], pairs: Sequence[tuple[int, int]], num_batches: int, folder: Path
) -> list[Path]:
    """
    Train the recipe for a few generation batches with each pair, in child processes, one after the other.

    Args:
        parsed ([`Arguments`]):
            The recipe, with what the command line overrides.
        arguments (`list[str]`):
            The same as arguments of `trl-pods grpo`.
        pairs (`Sequence[tuple[int, int]]`):
            Pairs (n, m).
        num_batches (`int`):
            Generation batches of each run.
        folder (`Path`):
            Folder for the runs, which are named `<n>_<m>`. Those of an earlier plan are replaced.

    Returns:
        `list[Path]`: Their `output_dir`s. The models are removed.

    Raises:
        SetupError: A run failed, P prompts of m do not make whole micro-batches, or the folder holds what no plan made.
    """
    runs = {folder / f"{n}_{m}": options(parsed, n, m, num_batches) for n, m in pairs}
    _clear(folder, list(runs))
    for (run, own), (n, m) in zip(runs.items(), pairs, strict=True):
        print(f"Measuring {num_batches} generation batches of n = {n}, m = {m} in {run} ...", flush=True)
        if children.run([*arguments, *own, "--output_dir", str(run)]) != 0:
            raise SetupError(f"The measured run of n = {n}, m = {m} failed; what it said is above.")
        remove_weights(run)
    return list(runs)


def _clear(folder: Path, runs: list[Path]) -> None:
    """Remove the runs of an earlier plan, and nothing else."""
    mark = folder / MARK
    for run in runs:
        if run.exists() and not mark.exists() and not (run / FILE).exists():
            raise SetupError(f"{str(run)!r} is in the way, which no plan has made. Choose another `--output_dir`.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise SetupError(f"`output_dir`: {error}. Name another folder.") from error
    for run in runs:
        shutil.rmtree(run, ignore_errors=True)


def options(parsed: Arguments, num_rollouts: int, num_generations: int, num_batches: int) -> list[str]:
    """
    Give the options of a short run, with as many prompts and updates per generation batch as the recipe has.

    A micro-batch has the recipe's rows, or the most below that divide the P m rows.

    Args:
        parsed ([`Arguments`]):
            The recipe.
        num_rollouts (`int`):
            n.
        num_generations (`int`):
            m.
        num_batches (`int`):
            Generation batches.

    Returns:
        `list[str]`: Arguments of `trl-pods grpo`.

    Raises:
        SetupError: There are no such micro-batches.
    """
    args = parsed.training
    rows, steps = _micro_batches(parsed, prompts_per_generation(args) * num_generations)
    accumulation = steps * args.gradient_accumulation_steps // args.steps_per_generation
    updates = math.ceil(num_batches * steps * args.num_iterations / accumulation)
    values = {
        "num_rollouts": num_rollouts,
        "num_generations": num_generations,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulation,
        "max_steps": updates,
    }
    # TRL takes only one of the two.
    by_rows = "generation_batch_size" in parsed.recipe.entries.keys() | parsed.recipe.overridden
    size = prompts_per_generation(args) * num_generations
    values |= {"generation_batch_size": size} if by_rows else {"steps_per_generation": steps}
    clocks = [name for name in ("max_seconds", "save_seconds", "eval_seconds") if getattr(parsed.script, name)]
    return [
        *_FIXED,
        *(text for name, value in values.items() for text in (f"--{name}", str(value))),
        *(text for name in clocks for text in (f"--{name}", _ENDLESS)),
    ]


def _micro_batches(parsed: Arguments, num_rows: int) -> tuple[int, int]:
    """Rows of a micro-batch on one process, and micro-batches of a generation batch."""
    args = parsed.training
    num_processes = args.generation_batch_size // (args.per_device_train_batch_size * args.steps_per_generation)
    for rows in range(args.per_device_train_batch_size, 0, -1):
        steps, rest = divmod(num_rows, rows * num_processes)
        if steps and not rest and steps * args.gradient_accumulation_steps % args.steps_per_generation == 0:
            return rows, steps
    raise SetupError(
        f"{num_rows} rows do not make whole micro-batches on {num_processes} processes with the recipe's "
        f"`steps_per_generation` {args.steps_per_generation} to `gradient_accumulation_steps` "
        f"{args.gradient_accumulation_steps}. Give other values of `--kept`."
    )
