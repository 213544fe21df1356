"""
The methods that are compared, as options that override those of a recipe.

All share the recipe's prompts per optimizer step, evaluation and budget; they differ in how many rollouts of a prompt
are sampled (n) and trained (m).
"""

from dataclasses import dataclass

from ..checks.batch_sizes import prompts_per_generation
from ..checks.errors import SetupError, did_you_mean
from ..config import PODSGRPOConfig
from ..strategies.registry import get_strategy

BASELINES = ("grpo", "grpo_n", "grpo_n_batch")
METHODS = (*BASELINES, "pods", "pods_all", "grpo_drop")
DEFAULT = ("grpo", "grpo_n", "pods")  # those that need the same memory
_ALL_ROWS = ("--zero_variance", "train", "--prompt_oversampling", "1")


@dataclass(frozen=True)
class Method:
    """A method, and what sets it apart."""

    name: str
    label: str
    num_rollouts: int
    num_generations: int
    options: tuple[str, ...]

    @property
    def is_baseline(self) -> bool:
        """Whether it is plain GRPO."""
        return self.name in BASELINES


def make_method(name: str, args: PODSGRPOConfig) -> Method:
    """
    Make a method for a recipe.

    `grpo` samples and trains m rollouts. `grpo_n` samples and trains n, in micro-batches of the recipe's size, so that
    it needs no more memory: n / m times as many are accumulated. `grpo_n_batch` does so in micro-batches n / m times as
    large, for those who have the memory. These compute all rows, as TRL does. `grpo_drop` is `grpo` without
    zero-variance prompts. `pods` samples n and trains m, by the recipe's strategy and `zero_variance`, `pods:STRATEGY`
    by another strategy, and `pods_all` computes every kept row, as the paper does.
    """
    n, m = _sizes(args)
    kind, colon, strategy = name.partition(":")
    if kind not in METHODS or (colon and (kind != "pods" or not strategy)):
        hint = did_you_mean(name, METHODS, "Name one of these.")
        raise SetupError(f"`methods` has {name!r}, but a method is one of {list(METHODS)}, or 'pods:STRATEGY'. {hint}")
    if kind == "grpo":
        return Method(name, f"GRPO {m}", m, m, ("--num_rollouts", str(m), *_ALL_ROWS))
    if kind == "grpo_n":
        return Method(name, f"GRPO {n}", n, n, (*_accumulated(args), *_ALL_ROWS))
    if kind == "grpo_n_batch":
        return Method(name, f"GRPO {n}, one batch", n, n, (*_in_one_batch(args), *_ALL_ROWS))
    if kind == "grpo_drop":
        dropping = ("--zero_variance", "drop", "--prompt_oversampling", "1")
        return Method(name, f"GRPO {m}, drop", m, m, ("--num_rollouts", str(m), *dropping))
    if kind == "pods_all":
        return Method(name, f"PODS {n} to {m}, all rows", n, m, ("--num_rollouts", str(n), "--zero_variance", "train"))
    try:
        get_strategy(strategy or args.down_sampling)
    except (ValueError, ImportError) as error:
        raise SetupError(f"`methods` has {name!r}: {error}") from error
    chosen = ("--down_sampling", strategy, "--down_sampling_kwargs", "{}") if strategy else ()
    return Method(
        name, f"PODS {n} to {m}" + (f", {strategy}" if strategy else ""), n, m, ("--num_rollouts", str(n), *chosen)
    )


def _sizes(args: PODSGRPOConfig) -> tuple[int, int]:
    """n and m, which are set once the arguments are resolved."""
    assert args.num_rollouts is not None and args.num_generations is not None
    return args.num_rollouts, args.num_generations


def _in_one_batch(args: PODSGRPOConfig) -> tuple[str, ...]:
    n, m = _sizes(args)
    if args.per_device_train_batch_size * n % m:
        raise SetupError(
            f"`grpo_n_batch` makes micro-batches of {args.per_device_train_batch_size} x {n}/{m} rows, which is no "
            "whole number. Make `num_rollouts` a multiple of `num_generations`, or leave it out of `methods`."
        )
    rows = args.per_device_train_batch_size * n // m
    return ("--num_rollouts", str(n), "--num_generations", str(n), "--per_device_train_batch_size", str(rows))


def _accumulated(args: PODSGRPOConfig) -> tuple[str, ...]:
    n, m = _sizes(args)
    rows = args.per_device_train_batch_size * args.world_size
    if prompts_per_generation(args) * n % rows or args.gradient_accumulation_steps * n % m:
        raise SetupError(
            f"`grpo_n` trains {prompts_per_generation(args)} x {n} rows per generation batch, which do not divide into "
            f"micro-batches of {rows}, {n}/{m} times as many for each optimizer step. Make `num_rollouts` a multiple "
            "of `num_generations`, or leave `grpo_n` out of `methods`."
        )
    return (
        *("--num_rollouts", str(n), "--num_generations", str(n)),
        *("--gradient_accumulation_steps", str(args.gradient_accumulation_steps * n // m)),
        *("--steps_per_generation", str(args.steps_per_generation * n // m)),
    )
