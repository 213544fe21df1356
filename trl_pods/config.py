"""Training arguments: `GRPOConfig` plus what down-sampling needs."""

import copy
from dataclasses import dataclass, field, fields

import torch
from trl import GRPOConfig

from .checks.batch_sizes import (
    ROLLOUTS_PER_GENERATION,
    check_batches,
    check_numbers,
    check_rollouts,
    check_zero_variance,
)
from .checks.options import no_dictionary, read_dictionaries
from .downsampling.selection import check_strategy_kwargs
from .strategies.registry import get_strategy


@dataclass
class PODSGRPOConfig(GRPOConfig):
    r"""
    Configuration class for the [`PODSGRPOTrainer`].

    It adds the parameters below to those of [`~trl.GRPOConfig`], which keep their meaning: `num_generations` is the
    number of rollouts per prompt that are *trained*, m, and `per_device_train_batch_size`, `steps_per_generation`,
    `gradient_accumulation_steps` and `generation_batch_size` count trained rows. So the update's memory depends on m
    alone; only generation and scoring grow, by n / m. With P = `generation_batch_size` / `num_generations` prompts,
    each generation samples P * n rollouts and trains at most P * m. With `num_rollouts` equal to `num_generations` and
    `zero_variance="train"`, training is plain GRPO, bit for bit.

    Parameters:
        num_rollouts (`int`, *optional*):
            Number of rollouts to sample per prompt, of which `num_generations` are trained. Defaults to 4 *
            `num_generations`.
        down_sampling (`str`, *optional*, defaults to `"max_variance"`):
            Strategy that chooses the rollouts to train on: a registered name (see `trl-pods strategies`), or the dotted
            import path of a function.
        down_sampling_kwargs (`dict` or `str`, *optional*):
            Keyword arguments for the strategy.
        advantage_statistics (`str`, *optional*, defaults to `"kept"`):
            Rollouts of a prompt whose rewards give the mean and standard deviation of its advantages: `"kept"` for
            those trained, as in the paper, or `"all"` for those sampled.
        selection_reward (`str`, *optional*):
            Name of the one reward function to select on. Defaults to the weighted sum of all, also with
            `multi_objective_aggregation="normalize_then_sum"`.
        exclude_truncated (`bool`, *optional*, defaults to `False`):
            Whether to keep a rollout that was truncated at `max_completion_length` only where a prompt has fewer than
            `num_generations` complete ones. So it is with `mask_truncated_completions`, too.
        zero_variance (`str`, *optional*, defaults to `"skip"`):
            What becomes of prompts whose kept rewards are all equal, so that their advantages are 0. `"train"` computes
            their rows, as TRL does. `"skip"` does not, but counts them in the loss's denominators, so that the update
            is the same but for rounding; it computes them nonetheless where they have an effect, as with `beta > 0`,
            and says so. `"drop"` does not count them either, as dynamic sampling in DAPO (arXiv 2503.14476), but
            samples no others.
        prompt_oversampling (`float`, *optional*, defaults to `1.0`):
            Number k of prompts to sample per prompt to train: of ceil(k P) prompts, the P whose kept rewards have the
            largest variance go on to the update.
        drop_open_generation_batch (`bool`, *optional*, defaults to `False`):
            Whether to begin with a new generation batch where training resumes within one, as TRL does. It is needed
            where `num_rollouts`, `num_generations`, batch sizes or the number of processes have changed since.
        rollout_batch_size (`int`, *optional*):
            Number of rows of a process that `generate` and a reward model take at once in training: larger chunks are
            fewer, in more memory. Defaults to the rows that the process trains of a generation batch, so that sampling
            takes the memory that it takes with `num_rollouts` equal to `num_generations`. vLLM and continuous batching
            take all rows.

    Raises:
        ValueError: A value is out of its range, or the batch sizes do not fit each other.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "down_sampling_kwargs"]

    num_rollouts: int | None = field(
        default=None,
        metadata={
            "help": "Number of rollouts to sample per prompt, of which `num_generations` are trained. Defaults to 4 * "
            "`num_generations`."
        },
    )
    down_sampling: str = field(
        default="max_variance",
        metadata={
            "help": "Strategy that chooses the rollouts to train on: a registered name (see `trl-pods strategies`), or "
            "the dotted import path of a function."
        },
    )
    down_sampling_kwargs: dict | str | None = field(
        default=None, metadata={"help": "Keyword arguments for the strategy."}
    )
    advantage_statistics: str = field(
        default="kept",
        metadata={
            "help": "Rollouts of a prompt whose rewards give the mean and standard deviation of its advantages: "
            "`kept` for those trained, as in the paper, or `all` for those sampled.",
            "choices": ["kept", "all"],
        },
    )
    selection_reward: str | None = field(
        default=None,
        metadata={
            "help": "Name of the one reward function to select on. Defaults to the weighted sum of all, also with "
            "`multi_objective_aggregation='normalize_then_sum'`."
        },
    )
    exclude_truncated: bool = field(
        default=False,
        metadata={
            "help": "Whether to keep a rollout that was truncated at `max_completion_length` only where a prompt has "
            "fewer than `num_generations` complete ones."
        },
    )
    zero_variance: str = field(
        default="skip",
        metadata={
            "help": "What becomes of prompts whose kept rewards are all equal: `train` computes their rows, as TRL "
            "does; `skip` does not, but counts them, so that the update is the same; `drop` leaves them out.",
            "choices": ["train", "skip", "drop"],
        },
    )
    prompt_oversampling: float = field(
        default=1.0,
        metadata={
            "help": "Number of prompts to sample per prompt to train. Those whose kept rewards have the largest "
            "variance are trained."
        },
    )
    drop_open_generation_batch: bool = field(
        default=False,
        metadata={
            "help": "Whether to begin with a new generation batch where training resumes within one, as TRL does: for "
            "sizes that have changed since."
        },
    )
    rollout_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Number of rows of a process that `generate` and a reward model take at once in training; a larger "
            "one samples faster in more memory. Defaults to the rows that the process trains of a generation batch."
        },
    )

    def __post_init__(self) -> None:
        check_numbers(self)  # before TRL divides by them
        read_dictionaries(self)
        try:
            super().__post_init__()
        except ValueError:
            if self.bf16 and not self.use_cpu and not torch.accelerator.is_available():
                raise ValueError(
                    "`bf16` is on by default in TRL, but this machine has no GPU. Set `use_cpu` to true to train on "
                    "the CPU, and `bf16` to false to do so in full precision."
                ) from None
            check_batches(self)
            raise
        resolve_rollouts(self)


def with_rollouts(args: GRPOConfig) -> GRPOConfig:
    """
    Give training arguments the fields of [`PODSGRPOConfig`], with their defaults, where they lack them.

    A `PODSGRPOConfig` is returned as it is; of others a copy, of the class `PODSGRPOConfig` where `args` is a plain
    `GRPOConfig`, and of its own class where that is derived from it.
    """
    if isinstance(args, PODSGRPOConfig):
        return args
    if not isinstance(args, GRPOConfig):
        raise TypeError(f"`args` must be a `PODSGRPOConfig` or a `GRPOConfig`, got a `{type(args).__name__}`.")
    args = copy.copy(args)
    read_dictionaries(args)
    if type(args) is GRPOConfig:
        args.__class__ = PODSGRPOConfig
    inherited = {f.name for f in fields(GRPOConfig)}
    for f in fields(PODSGRPOConfig):
        if f.name not in inherited:
            setattr(args, f.name, f.default)
    resolve_rollouts(args)
    return args


def resolve_rollouts(args: GRPOConfig) -> None:
    """Set the default of `num_rollouts` and check the fields that `PODSGRPOConfig` adds."""
    if args.num_rollouts is None:
        args.num_rollouts = ROLLOUTS_PER_GENERATION * args.num_generations
    check_zero_variance(args)
    check_rollouts(args)
    if args.advantage_statistics not in ("kept", "all"):
        raise ValueError(
            f"`advantage_statistics` is {args.advantage_statistics!r}, but it must be 'kept' or 'all'. Use 'kept' for "
            "the paper's advantages."
        )
    if not isinstance(args.down_sampling_kwargs, dict | None):
        raise no_dictionary("down_sampling_kwargs", args.down_sampling_kwargs)
    try:
        strategy = get_strategy(args.down_sampling)
    except ValueError as error:
        raise ValueError(f"`down_sampling`: {error}") from error
    check_strategy_kwargs(args.down_sampling, strategy, args.down_sampling_kwargs or {})
