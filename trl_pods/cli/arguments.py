"""
What `trl-pods grpo` accepts: the arguments of `trl grpo`, the fields of PODS, and those of `accelerate launch`.

It is parsed strictly. Whatever is unknown or of a wrong type is named with its place in the recipe.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import torch
from datasets.exceptions import DatasetsError
from trl import DatasetMixtureConfig, GRPOConfig, ModelConfig, TrlParser
from trl.scripts.grpo import GRPOScriptArguments

from ..checks.errors import SetupError
from ..checks.options import json_mapping
from ..config import PODSGRPOConfig
from ..data import check_adapter
from ..wall_clock import WallClockCallback
from .launch import LaunchOptions, launch_flags, planned_world_size
from .options import OptionParser
from .recipe import Recipe


@dataclass
class PODSScriptArguments(GRPOScriptArguments):
    """Arguments of the script beside those of the trainer, the model and the launcher."""

    setup_func: str | None = field(
        default=None,
        metadata={
            "help": "Dotted import path of a function that makes what the recipe needs before it is loaded. It is "
            "called by one process, with `model_name_or_path` and `dataset_name`, and with `task_kwargs` if they are "
            "set."
        },
    )
    dataset_adapter: str | None = field(
        default=None,
        metadata={
            "help": "Adapter that turns the columns of a published dataset into prompts and reward columns: `gsm8k`, "
            "`math`, `math_500`, `question_answer` or `reasoning_gym` (then `dataset_name` is a task). Defaults to a "
            "dataset that has prompts."
        },
    )
    system_prompt: str | None = field(
        default=None, metadata={"help": "System prompt that the adapter puts before each question."}
    )
    question_column: str | None = field(
        default=None, metadata={"help": "Column of the questions. Defaults to the adapter's."}
    )
    answer_column: str | None = field(
        default=None, metadata={"help": "Column of the right answers. Defaults to the adapter's."}
    )
    task_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "Settings of the reasoning-gym task, and `size`, `test_size` and `seed` of its data."},
    )
    max_prompt_length: int | None = field(
        default=None,
        metadata={"help": "Tokens that a prompt may have. Longer ones are left out, and counted."},
    )
    max_seconds: float | None = field(
        default=None, metadata={"help": "Seconds of training after which to stop, not counting evaluation."}
    )
    save_seconds: float | None = field(
        default=None, metadata={"help": "Seconds of training between checkpoints, not counting evaluation."}
    )
    eval_seconds: float | None = field(default=None, metadata={"help": "Seconds of training between evaluations."})
    dry_run: bool = field(
        default=False,
        metadata={"help": "Whether to parse, build what can be built offline, print what would be trained, and stop."},
    )

    def __post_init__(self) -> None:
        if self.task_kwargs == "None":  # as of all options that may be left out
            self.task_kwargs = None
        if isinstance(self.task_kwargs, str):
            self.task_kwargs = _json_mapping("task_kwargs", self.task_kwargs)
        if self.dataset_adapter is not None:
            check_adapter(self.dataset_adapter)
        self._check_adapter_options()
        WallClockCallback(self.max_seconds, self.save_seconds, self.eval_seconds)  # checks them
        if self.max_prompt_length is not None and self.max_prompt_length < 1:
            raise ValueError(f"`max_prompt_length` is {self.max_prompt_length}, but it must be 1 or more.")

    def _check_adapter_options(self) -> None:
        adapter = self.dataset_adapter
        for name in ("system_prompt", "question_column", "answer_column"):
            if getattr(self, name) is not None and adapter is None:
                raise ValueError(f"`{name}` does nothing without an adapter. Set `dataset_adapter`, or remove it.")
        if self.task_kwargs is not None and adapter != "reasoning_gym":
            raise ValueError("`task_kwargs` are for tasks of reasoning-gym. Set `dataset_adapter: reasoning_gym`.")
        if self.dataset_streaming and adapter == "reasoning_gym":
            raise ValueError("`dataset_streaming` does not go with tasks of reasoning-gym, which are made. Remove it.")


class Arguments(NamedTuple):
    """All that the command line and the recipe say."""

    script: PODSScriptArguments
    training: PODSGRPOConfig
    model: ModelConfig
    dataset: DatasetMixtureConfig
    launch: LaunchOptions
    recipe: Recipe

    def explained(self) -> AbstractContextManager[None]:
        """Turn errors of the `with` block that a user can fix into a [`SetupError`] that names the recipe's line."""
        return explained(self.recipe)


class RecipeParser(TrlParser, OptionParser):
    """Parser of command-line arguments and of a recipe, which the former override."""

    def __init__(self, prog: str | None = None):
        kinds = (PODSScriptArguments, PODSGRPOConfig, ModelConfig, DatasetMixtureConfig)
        super().__init__(kinds, prog=prog, allow_abbrev=False)  # type: ignore[arg-type,misc]
        self.add_argument(
            "--config", metavar="RECIPE", help="YAML file with values for these options, or `trl-pods recipes`."
        )
        self._show_in_groups()
        self.launcher = launch_flags()
        self._hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items()}

    def _show_in_groups(self) -> None:
        """Show the options of PODS first in the help, then the command's own, the model's, and the training's."""
        self.usage = "%(prog)s --config RECIPE [--OPTION VALUE ...]"
        shown: set[str] = {"help", "config"}
        for title, names in [
            ("PODS", _names(PODSGRPOConfig) - _names(GRPOConfig)),
            ("data, rewards and clocks", _names(PODSScriptArguments) | _names(DatasetMixtureConfig)),
            ("model and LoRA, as in TRL", _names(ModelConfig)),
            ("training, as in TRL's GRPOConfig", _names(GRPOConfig)),
        ]:
            group = self.add_argument_group(title)
            group._group_actions = [action for action in self._actions if action.dest in names - shown]
            shown |= names
        self._optionals._group_actions = [action for action in self._actions if action.dest in ("help", "config")]

    def takes(self, name: str, value: Any) -> bool:
        """By the type of the field, of which `argparse` knows a part only."""
        is_of_words = not isinstance(value, list) or all(isinstance(item, str) for item in value)
        return is_of_words and _takes(self._hints[name], type(value))

    def parse(self, arguments: list[str]) -> Arguments:
        """Parse the command line and the recipe that it names."""
        recipe, words, for_launcher = self.read(arguments)
        known = self.parse_known_args(words)[0]
        if known.dry_run and not torch.accelerator.is_available():
            words.append("--use_cpu=true")  # so that recipes for GPUs can be tried anywhere
            known.use_cpu = True
        with explained(recipe):
            launch = LaunchOptions(for_launcher, use_cpu=known.use_cpu, in_new_process="env" in recipe.lines)
        with planned_world_size(launch.num_processes), explained(recipe, TypeError):
            script, training, model, dataset, *_ = self.parse_args_into_dataclasses(
                words, return_remaining_strings=True, look_for_args_file=False
            )
        return Arguments(script, training, model, dataset, launch, recipe)


def _names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def _takes(hint: Any, kind: type) -> bool:
    return kind in (hint, get_origin(hint)) or any(_takes(part, kind) for part in get_args(hint))


@contextmanager
def explained(recipe: Recipe, *more: type[Exception]) -> Iterator[None]:
    """Turn errors of the `with` block that a user can fix into a [`SetupError`] that names the recipe's line."""
    try:
        yield
    except SetupError:
        raise
    except (ValueError, NotImplementedError, ImportError, OSError, DatasetsError, *more) as error:
        message = str(error) or repr(error)
        named = next((name for name in re.findall(r"`(\w+)`", message) if name in recipe.lines), None)
        raise SetupError(f"{recipe.where(named)}: {message}" if named else message) from error


def _json_mapping(name: str, text: str) -> dict[str, Any]:
    values = json_mapping(text)
    if values is None:
        raise ValueError(f"`{name}` is {text!r}, but it must be a mapping. Write it as JSON: '{{\"size\": 100}}'.")
    return values
