"""The private methods of `GRPOTrainer` that the trainer stands on, checked before it does."""

import ast
import inspect
import textwrap
from typing import Any, NamedTuple

from packaging.specifiers import SpecifierSet
from trl import GRPOTrainer
from trl import __version__ as trl_version

SUPPORTED_TRL = ">=1.10,<2"

# Method -> the names of its parameters. `...` ends a list that may grow.
SEAM = {
    "_generate": ("self", "prompts"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_get_per_token_logps_and_entropies": ("self", ...),
    "_get_train_sampler": ("self", "dataset"),
    "get_train_dataloader": ("self",),
    "_get_dataloader": ("self", "dataset", "description", "batch_size", "sampler_fn", "is_training", ...),
    "log": ("self", "logs", ...),
    "training_step": ("self", "model", "inputs", "num_items_in_batch"),
}


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
    """Check that the installed TRL is one that the trainer can stand on."""
    if not SpecifierSet(SUPPORTED_TRL, prereleases=True).contains(version):
        raise ImportError(
            f"trl {version} is installed, but PODSGRPOTrainer supports trl{SUPPORTED_TRL}: "
            f"run `pip install 'trl{SUPPORTED_TRL}'`."
        )
    way_out = f"install a release of trl{SUPPORTED_TRL} that trl-pods was tested on, or a newer trl-pods."
    for name, expected in SEAM.items():
        method = getattr(trainer, name, None)
        found = tuple(inspect.signature(method).parameters) if callable(method) else None
        if not _matches(found, expected):
            raise ImportError(
                f"trl {version} has changed `GRPOTrainer.{name}` (expected parameters {expected}, found {found}), "
                f"which PODSGRPOTrainer overrides: {way_out}"
            )
    returned = _returned_names(trainer._generate)
    if returned != Generated._fields:
        raise ImportError(
            f"trl {version} has changed what `GRPOTrainer._generate` returns (expected {Generated._fields}, found "
            f"{returned}), which PODSGRPOTrainer narrows: {way_out}"
        )


def _returned_names(function: Any) -> tuple[str, ...]:
    """Names of the variables in the function's last `return` of a tuple."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tuples = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    ]
    return tuple(ast.unparse(item) for item in tuples[-1].elts) if tuples else ()


def _matches(found: tuple | None, expected: tuple) -> bool:
    if found is None:
        return False
    if expected[-1] is ...:
        return found[: len(expected) - 1] == expected[:-1]
    return found == expected
