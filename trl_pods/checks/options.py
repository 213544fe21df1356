"""Options that TRL reads late or not at all: dictionaries, fixed choices, what generation takes."""

import inspect
import json
import math
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer

from .errors import did_you_mean

_FILES = ("accelerator_config", "deepspeed", "fsdp_config")  # options that may name a file in place of a dictionary

# Option -> the method of `GRPOTrainer` that knows its values, and these.
CHOICES = {
    "loss_type": ("_compute_loss", ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")),
    "importance_sampling_level": ("_compute_loss", ("token", "sequence")),
    "scale_rewards": ("_generate_and_score_completions", ("group", "batch", "none")),
    "multi_objective_aggregation": (
        "_generate_and_score_completions",
        ("sum_then_normalize", "normalize_then_sum"),
    ),
    "vllm_importance_sampling_mode": (
        "_generate_and_score_completions",
        ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    ),
}


def read_dictionaries(args: GRPOConfig) -> None:
    """Check that dictionaries written as text are JSON, or files where those do; `None` is what it is elsewhere."""
    for name in args._VALID_DICT_FIELDS:
        text = getattr(args, name)
        if text == "None":
            setattr(args, name, None)
        elif isinstance(text, str) and not (name in _FILES and Path(text).is_file()) and json_mapping(text) is None:
            raise no_dictionary(name, text)


def no_dictionary(name: str, value: Any) -> ValueError:
    """The error of an option that is no dictionary."""
    file = ", or the path of a file" if name in _FILES else ""
    return ValueError(
        f"`{name}` is {value!r}, but it must be a dictionary{file}. On the command line write it as JSON, for example "
        "'{\"name\": 1}'."
    )


def json_mapping(text: str) -> dict[str, Any] | None:
    """The mapping that a text is as JSON, if it is one."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        return None
    return values if isinstance(values, dict) else None


def check_choices(args: GRPOConfig, trainer_class: type) -> None:
    """Check options that have fixed values, unless a subclass of `GRPOTrainer` computes what they choose."""
    for name, (method, choices) in CHOICES.items():
        value = getattr(args, name)
        if value not in choices and _is_of_trl(method, trainer_class):
            hint = did_you_mean(str(value), choices, "Choose one of them.")
            raise ValueError(f"`{name}` is {value!r}, but it must be one of {list(choices)}. {hint}")


def _is_of_trl(method: str, trainer_class: type) -> bool:
    own = __name__.split(".")[0] + "."
    owners = [kind for kind in trainer_class.__mro__ if method in vars(kind) and not kind.__module__.startswith(own)]
    return owners == [GRPOTrainer]


def check_generation(args: GRPOConfig, *, rollout_func: Any = None) -> None:
    """Check `temperature`, and `generation_kwargs` against what the engine takes; a `rollout_func` has its own."""
    if not _is_positive(args.temperature):
        raise ValueError(
            f"`temperature` is {args.temperature!r}, but it must be a number above 0, because rollouts are sampled and "
            "log-probs divided by it. Use for example 1.0."
        )
    if rollout_func is not None:
        return
    known = _known_to_engine(args)
    for name, value in (args.generation_kwargs or {}).items():
        sets = f"`generation_kwargs` sets {name!r} to {value!r}, but"
        if known is not None and name not in known:
            raise ValueError(f"{sets} generation has no such option. {did_you_mean(name, known, 'Remove it.')}")
        if name in ("n", "num_return_sequences") and value != 1:
            raise ValueError(f"{sets} the rollouts of a prompt are counted by `num_rollouts`. Set that instead.")
        if name in ("max_new_tokens", "max_tokens", "max_length") and value != args.max_completion_length:
            raise ValueError(
                f"{sets} completions end at `max_completion_length` ({args.max_completion_length}). Set that instead."
            )
        if name == "temperature" and not _is_positive(value):
            raise ValueError(f"{sets} it must be a number above 0. Set `temperature` instead, for example to 1.0.")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _known_to_engine(args: GRPOConfig) -> list[str] | None:
    """The names of what generation takes; none where vLLM is not installed, as beside its server."""
    if not args.use_vllm:
        return [name for name in vars(GenerationConfig()) if not name.startswith("_")]
    try:
        from vllm import SamplingParams
    except ImportError:
        return None
    return list(inspect.signature(SamplingParams).parameters)
