"""The private methods of `GRPOTrainer` that the trainer stands on, checked before it does."""

import inspect
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.specifiers import SpecifierSet
from trl import GRPOTrainer
from trl import __version__ as trl_version

SUPPORTED_TRL = ">=1.10,<2"

# Method -> the names of its parameters. `...` ends a list that may grow.
SEAM = {
    "_generate": ("self", "prompts"),
    "_generate_single_turn": ("self", "prompt_ids", "images", "multimodal_fields", ...),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_get_per_token_logps_and_entropies": ("self", ...),
    "_get_train_sampler": ("self", "dataset"),
    "get_train_dataloader": ("self",),
    "_get_dataloader": ("self", "dataset", "description", "batch_size", "sampler_fn", "is_training", ...),
    "_prepare_inputs": ("self", "generation_batch"),
    "log": ("self", "logs", ...),
    "training_step": ("self", "model", "inputs", "num_items_in_batch"),
}

if TYPE_CHECKING:
    Host = GRPOTrainer
else:
    Host = object  # a mixin goes in front of any trainer that inherits these methods


class Generated(NamedTuple):
    """What `GRPOTrainer._generate` returns: lists with one item per row of this process, in TRL's order and names."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    tool_mask: list[list[int]] | None  # 1 where the model generated the token, 0 where a tool or environment did
    completions: list[Any]
    logprobs: list[list[float]] | None
    extra_fields: dict[str, Any]  # further fields of a `rollout_func`
    images: list[list[Any] | None] | None
    tool_images: list[list[Any]]


def check_trl(version: str = trl_version, trainer: Any = GRPOTrainer) -> None:
    """Raise an `ImportError` where the trainer cannot stand on the installed TRL."""
    if not SpecifierSet(SUPPORTED_TRL, prereleases=True).contains(version):
        raise ImportError(
            f"trl {version} is installed, but PODSGRPOTrainer supports trl{SUPPORTED_TRL}: "
            f"run `pip install 'trl{SUPPORTED_TRL}'`."
        )
    for name, expected in SEAM.items():
        method = getattr(trainer, name, None)
        found = tuple(inspect.signature(method).parameters) if callable(method) else None
        if not matches(found, expected):
            raise ImportError(
                f"trl {version} has changed `GRPOTrainer.{name}` (expected parameters {expected}, found {found}), "
                f"which PODSGRPOTrainer overrides: install a release of trl{SUPPORTED_TRL} that trl-pods was tested "
                "on, or a newer trl-pods."
            )


def check_calls_super(kind: type) -> None:
    """Refuse a trainer of which a class replaces the method within which rollouts are selected."""
    name = "_generate_and_score_completions"
    for base in kind.__mro__[: kind.__mro__.index(GRPOTrainer)]:
        code = getattr(inspect.unwrap(vars(base).get(name, None)), "__code__", None)
        if code is not None and not _mentions(code, name):
            raise TypeError(
                f"`{kind.__name__}` cannot down-sample: `{base.__name__}.{name}` does not call that of its `super()`, "
                "within which rollouts are selected. Call it, and change what it takes or gives."
            )


def _mentions(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(_mentions(part, name) for part in code.co_consts if isinstance(part, CodeType))


def matches(found: tuple | None, expected: tuple) -> bool:
    """Whether parameters are the expected ones, of which `...` allows more."""
    if found is None:
        return False
    if expected[-1] is ...:
        return found[: len(expected) - 1] == expected[:-1]
    return found == expected
