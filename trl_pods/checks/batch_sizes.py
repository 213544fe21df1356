"""
Whether batch sizes fit each other, with messages that name values that do.

P prompts per generation batch, ceil(k P) of them sampled, n rollouts sampled and m trained per prompt.
"""

import math
from numbers import Integral
from typing import Any

from datasets import Dataset
from trl import GRPOConfig

ROLLOUTS_PER_GENERATION = 4  # default of `num_rollouts` / `num_generations`
_AT_LEAST_1 = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_iterations"),
    *("generation_batch_size", "rollout_batch_size"),
)


def prompts_per_generation(args: GRPOConfig) -> int:
    """
    P = `generation_batch_size` / `num_generations`, the prompts of a generation batch over all processes.

    With `split_batches` of `accelerator_config`, the processes share the rows that one would have.
    """
    shared_by = args.world_size if args.accelerator_config.split_batches else 1
    return args.generation_batch_size // shared_by // args.num_generations


def sampled_prompts(args: GRPOConfig) -> int:
    """The prompts that are sampled per generation batch, to train on P."""
    return count_sampled_prompts(prompts_per_generation(args), args.prompt_oversampling)


def count_sampled_prompts(num_prompts: int, oversampling: float) -> int:
    """ceil(k P), where rounding of k P does not count."""
    return math.ceil(round(oversampling * num_prompts, 6))


def check_numbers(args: GRPOConfig) -> None:
    """Check the numbers of rows and steps, by which TRL divides."""
    for name in _AT_LEAST_1:
        value = getattr(args, name)
        if value is not None and not (isinstance(value, Integral) and int(value) >= 1):
            raise ValueError(f"`{name}` is {value!r}, but it must be a whole number, 1 or more. Set it so.")
    if not isinstance(args.num_generations, int) or args.num_generations < 2:
        raise ValueError(
            f"`num_generations` is {args.num_generations!r}, but a prompt needs at least 2 trained rollouts to "
            "compare. Set it to a whole number, 2 or more."
        )


def check_batches(args: GRPOConfig) -> None:
    """Check that batches hold whole micro-batches and groups, where TRL complains of something."""
    if args.do_eval and args.eval_strategy != "no":
        check_evaluation(args)
    batch, group = args.generation_batch_size, args.num_generations
    if batch is None:  # an error came before the batch was known
        return
    rows = args.per_device_train_batch_size * args.world_size
    if batch % rows != 0:
        raise ValueError(
            f"`generation_batch_size` is {batch!r}, but it must be a whole number of micro-batches: "
            f"`per_device_train_batch_size` {args.per_device_train_batch_size} x {args.world_size} processes. Use a "
            f"multiple of {math.lcm(rows, group)}, which also holds whole groups of `num_generations` {group}."
        )
    if batch % group != 0:
        steps = group // math.gcd(rows, group)
        groups = [size for size in range(2, batch + 1) if batch % size == 0 and _holds(args, batch // size, size)]
        fitting = f"`num_generations` to one of {groups}, or " if groups else ""  # a single row holds no group
        raise ValueError(
            f"`num_generations` is {group!r} (of `num_rollouts` {args.num_rollouts or 4 * group}), but it must divide "
            f"the {batch} trained rows of a generation batch: `per_device_train_batch_size` "
            f"{args.per_device_train_batch_size} x {args.world_size} processes x `steps_per_generation` "
            f"{args.steps_per_generation} (`gradient_accumulation_steps` is {args.gradient_accumulation_steps}). Set "
            f"{fitting}`steps_per_generation` to a multiple of {steps}."
        )


def check_rollouts(args: GRPOConfig) -> None:
    """Check that the sampled rollouts hold the kept ones and divide over the processes."""
    num_rollouts, num_kept = args.num_rollouts, args.num_generations
    num_processes = args.world_size
    if not isinstance(num_rollouts, int):
        raise ValueError(f"`num_rollouts` is {num_rollouts!r}, but it must be a whole number. Use for example 64.")
    if num_rollouts < num_kept:
        raise ValueError(
            f"`num_rollouts` is {num_rollouts!r}, but it must be at least `num_generations` ({num_kept}), the number "
            "that is kept of them. Raise `num_rollouts` or lower `num_generations`."
        )
    num_prompts = sampled_prompts(args)
    if num_prompts * num_rollouts % num_processes != 0:
        step = num_processes // math.gcd(num_prompts, num_processes)
        below, above = num_rollouts // step * step, -(-num_rollouts // step) * step
        nearest = " or ".join(str(value) for value in (below, above) if value >= num_kept)
        raise ValueError(
            f"`num_rollouts` is {num_rollouts!r}: {num_prompts} prompts per generation batch (`generation_batch_size` "
            f"{args.generation_batch_size} / `num_generations` {num_kept}, times `prompt_oversampling` "
            f"{args.prompt_oversampling:g}) times {num_rollouts} rollouts do not divide over {num_processes} "
            f"processes. Use a multiple of {step}, such as {nearest}{_fitting_oversampling(args)}."
        )


def _fitting_oversampling(args: GRPOConfig) -> str:
    """The next larger `prompt_oversampling` whose rollouts divide over the processes, where one is used."""
    if args.prompt_oversampling == 1:
        return ""
    step = args.world_size // math.gcd(args.num_rollouts, args.world_size)
    num_prompts = -(-sampled_prompts(args) // step) * step
    return f", or `prompt_oversampling` {math.floor(num_prompts / prompts_per_generation(args) * 1e4) / 1e4:g}"


def check_zero_variance(args: GRPOConfig) -> None:
    """Check what becomes of zero-variance prompts, and of how many prompts the trained ones are chosen."""
    if args.zero_variance not in ("train", "skip", "drop"):
        raise ValueError(
            f"`zero_variance` is {args.zero_variance!r}, but it must be 'train', 'skip' or 'drop'. Use 'skip' for the "
            "update of all kept rows at the cost of those that have an advantage."
        )
    oversampling = args.prompt_oversampling
    if not isinstance(oversampling, int | float) or not 1 <= oversampling < math.inf:
        raise ValueError(
            f"`prompt_oversampling` is {oversampling!r}, but it must be a number, 1 or more. Use 2 to sample twice as "
            "many prompts as are trained."
        )


def _holds(args: GRPOConfig, num_prompts: int, num_kept: int) -> bool:
    """Whether the rollouts would do for these numbers of prompts and of kept rollouts."""
    num_rollouts = args.num_rollouts or 4 * num_kept
    return num_rollouts >= num_kept and num_prompts * num_rollouts % args.world_size == 0


def check_evaluation(args: GRPOConfig) -> None:
    """Check that evaluation batches hold whole groups. TRL does so only where `eval_strategy` is set."""
    group = args.num_generations_eval or args.num_generations
    rows, num_processes = args.per_device_eval_batch_size, args.world_size
    if rows * num_processes % group != 0:
        step = group // math.gcd(group, num_processes)
        raise ValueError(
            f"`per_device_eval_batch_size` is {rows!r}: {rows} rows x {num_processes} processes do not divide into "
            f"groups of {group} (`num_generations_eval`, or else `num_generations`). Use a multiple of {step}, or set "
            "`num_generations_eval` to a divisor of the rows."
        )


def check_dataset(args: GRPOConfig, train_dataset: Any) -> None:
    """Check that a dataset with a length fills at least one generation batch; TRL trains nothing if it does not."""
    num_prompts = sampled_prompts(args)
    if isinstance(train_dataset, Dataset) and len(train_dataset) < num_prompts:
        raise ValueError(
            f"`train_dataset` has {len(train_dataset)} prompts, but one generation batch takes {num_prompts} "
            f"(`generation_batch_size` {args.generation_batch_size} / `num_generations` {args.num_generations}, times "
            f"`prompt_oversampling` {args.prompt_oversampling:g}), so nothing would be trained. Add prompts, or lower "
            "`prompt_oversampling`, `steps_per_generation`, `gradient_accumulation_steps` or "
            "`per_device_train_batch_size`."
        )
