"""
How many rows are sampled and trained.

P prompts per generation batch, n rollouts sampled and m trained per prompt. TRL's arguments count trained rows, so that
P = `generation_batch_size` / `num_generations`; generation alone grows, to P n rows, or ceil(k P) n with
`prompt_oversampling` k.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from datasets import Dataset
from trl import GRPOConfig

from ..checks.batch_sizes import ROLLOUTS_PER_GENERATION, prompts_per_generation, sampled_prompts
from .zero_variance import why_not_skipped

_ZERO_VARIANCE = {
    "train": "",
    "skip": " The rows of prompts whose rewards are equal are skipped.",
    "drop": " Prompts whose rewards are equal are dropped.",
}

# TRL gives a colocated engine batches of 4096 tokens, and vLLM refuses to take more sequences at once than that.
MAX_VLLM_SEQUENCES = 4096


def describe_batch(args: GRPOConfig, train_dataset: Any = None, not_skipped: str | None = None) -> str:
    """Say in one line what a generation batch samples and trains; `not_skipped` is why `"skip"` trains all rows."""
    num_prompts, num_trained = sampled_prompts(args), prompts_per_generation(args)
    steps = args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps
    rows = num_trained * args.num_generations // (args.steps_per_generation * args.world_size)
    line = (
        f"Each generation batch: {num_prompts} prompts, {num_prompts * args.num_rollouts} rollouts sampled "
        f"({args.num_rollouts} per prompt), {num_trained * args.num_generations} rows trained "
        f"({args.num_generations} per prompt), {rows} rows per micro-batch and process, "
        f"{steps:g} optimizer steps."
    )
    if args.num_rollouts == ROLLOUTS_PER_GENERATION * args.num_generations:
        line += f" `num_rollouts` is {ROLLOUTS_PER_GENERATION} times `num_generations`, the default."
    if num_prompts > num_trained:
        line += f" Of the prompts, the {num_trained} of largest reward variance are trained."
    if isinstance(train_dataset, Dataset):
        batches, left = divmod(len(train_dataset), num_prompts)
        micro_batches = batches * args.steps_per_generation * args.num_iterations
        line += f" An epoch: {-(-micro_batches // args.gradient_accumulation_steps)} optimizer steps."
        line += f" It leaves out {left} of the prompts, which fill no generation batch." if left else ""
    if args.zero_variance == "skip" and (reason := not_skipped or why_not_skipped(args)):
        return line + f" `zero_variance='skip'` trains all rows here, because {reason}."
    return line + _ZERO_VARIANCE[args.zero_variance]


@contextmanager
def sized_for_rollouts(args: GRPOConfig) -> Iterator[None]:
    """
    Show the sizes of what is sampled in place of what is trained, while `GRPOTrainer` is being built.

    The parent sizes the completions table and vLLM's `max_num_seqs` by these arguments.
    """
    num_rows = sampled_prompts(args) * args.num_rollouts
    steps = -(-num_rows // (args.per_device_train_batch_size * args.world_size))
    if args.use_vllm:  # what does not fit at once waits in the engine
        limit = MAX_VLLM_SEQUENCES // (args.per_device_train_batch_size * args.vllm_tensor_parallel_size)
        steps = max(args.steps_per_generation, min(steps, limit))
    shown = {
        "num_generations": args.num_rollouts,
        "num_generations_eval": args.num_generations_eval or args.num_generations,
        "generation_batch_size": num_rows,
        "steps_per_generation": steps,
    }
    actual = {name: getattr(args, name) for name in shown}
    for name, value in shown.items():
        setattr(args, name, value)
    try:
        yield
    finally:
        for name, value in actual.items():
            setattr(args, name, value)
