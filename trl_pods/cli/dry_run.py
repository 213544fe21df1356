"""`trl-pods grpo --dry_run`: build what can be built offline, on any machine, and say what would be trained."""

import shlex
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers.trainer_utils import has_length
from transformers.utils import cached_file, is_bitsandbytes_available

from ..checks.errors import SetupError
from ..checks.options import check_generation
from ..downsampling.sizes import describe_batch
from ..trainers import PODSGRPOTrainer
from .arguments import Arguments
from .build import checkpoint_to_resume, load_data, load_rewards, load_setup, make_trainer
from .launch import planned_world_size


def report(arguments: Arguments) -> None:
    """Print what the arguments would train, and what of it could not be built on this machine."""
    missing: list[str] = []
    training, launch = arguments.training, arguments.launch
    with arguments.explained():
        if load_setup(arguments) is not None:
            missing.append("`setup_func`, which may take long")
        rewards = load_rewards(arguments)
        checkpoint = checkpoint_to_resume(arguments)
        data = _data(arguments, missing)
    with arguments.explained(), planned_world_size(launch.num_processes):
        trainer = _trainer(arguments, data, missing)
        train_dataset = None if data is None else data[arguments.script.dataset_train_split]
        rows = {
            "recipe": arguments.recipe.path or "none",
            "launch": shlex.join(["accelerate", "launch", *launch.arguments]) if launch.needed else "in this process",
            "processes": str(launch.num_processes),
            "model": _describe_model(arguments, trainer),
            "data": _describe_data(data),
            "rewards": ", ".join(getattr(reward, "__name__", str(reward)) for reward in rewards),
            "strategy": f"{training.down_sampling}: {training.num_generations} of {training.num_rollouts} rollouts",
            "batch": describe_batch(training, train_dataset),
            "resumes from": checkpoint or "the start",
            "saves in": str(training.output_dir),
            "not tried": "; ".join(missing) or "nothing",
        }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console(highlight=False, markup=False).print(table)
    print("Dry run: nothing was trained.")


def _data(arguments: Arguments, missing: list[str]) -> Any:
    script, model = arguments.script, arguments.model.model_name_or_path
    if (script.dataset_adapter or script.max_prompt_length) and not _is_here(model):
        missing.append(f"the data, whose prompts need the tokenizer of {model}")
        return None
    names = [mixed.path for mixed in arguments.dataset.datasets] or [script.dataset_name]
    try:
        return load_data(arguments)
    except OSError:  # the hub cannot be reached, or a file is missing
        if all(name is None or Path(name).exists() or name.startswith((".", "/", "~")) for name in names):
            raise
        missing.append(f"the data {', '.join(names)}, which is not on this machine")
        return None


def _trainer(arguments: Arguments, data: Any, missing: list[str]) -> PODSGRPOTrainer | None:
    training, model = arguments.training, arguments.model
    reward_model = arguments.script.reward_model_name_or_path
    if not _is_here(model.model_name_or_path):
        missing.append(f"the model {model.model_name_or_path}, which is not on this machine")
    elif reward_model is not None and not _is_here(reward_model):
        missing.append(f"the reward model {reward_model}, which is not on this machine")
    elif data is not None:
        if training.use_vllm:
            missing.append("vLLM, which is not started for a dry run")
            check_generation(training)
            training.use_vllm, training.generation_kwargs = False, None  # which are those of vLLM
        if (model.load_in_4bit or model.load_in_8bit) and not (
            torch.cuda.is_available() and is_bitsandbytes_available()
        ):
            missing.append("quantisation, which needs a GPU and bitsandbytes")
            model.load_in_4bit = model.load_in_8bit = False
        with tempfile.TemporaryDirectory() as folder:  # a trainer makes its folder at once
            output_dir, training.output_dir = training.output_dir, folder
            trainer = make_trainer(arguments, data)
            _make_optimizer(trainer, missing)
            training.output_dir = output_dir
        return trainer
    return None


def _make_optimizer(trainer: PODSGRPOTrainer, missing: list[str]) -> None:
    """Make what training would make first, so that PyTorch and transformers check its options."""
    try:
        trainer.create_optimizer_and_scheduler(num_training_steps=max(1, trainer.args.max_steps))
    except ImportError as error:
        missing.append(f"the optimizer {trainer.args.optim}, for which a library is not on this machine: {error}")
    except (ValueError, TypeError) as error:
        raise SetupError(
            f"The optimizer and its schedule cannot be made: {error}. Check the learning rate, the optimizer, the "
            "scheduler, and the options of each."
        ) from error


def _is_here(model: str) -> bool:
    """Whether the files of a model are in a folder or in the cache."""
    try:
        return cached_file(model, "config.json", local_files_only=True) is not None
    except OSError:
        return False


def _describe_model(arguments: Arguments, trainer: PODSGRPOTrainer | None) -> str:
    name = str(arguments.model.model_name_or_path)
    if trainer is None:
        return name
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in trainer.model.parameters()]
    total, trained = sum(size for size, _ in sizes), sum(size for size, requires_grad in sizes if requires_grad)
    return f"{name}: {total / 1e6:,.1f} million parameters, of which {trained / total:.1%} are trained"


def _describe_data(data: Any) -> str:
    if data is None:
        return "not loaded"
    counts = [f"{len(rows):,} {name}" if has_length(rows) else f"{name} (streamed)" for name, rows in data.items()]
    first = next(iter(next(iter(data.values()))), None)
    if first is None:
        return "no rows"
    prompt = first["prompt"] if isinstance(first["prompt"], str) else _text_of(first["prompt"][-1]["content"])
    shown = " ".join(prompt.split())
    return f"{', '.join(counts)}; the first prompt ends: {shown[-60:]}"


def _text_of(content: str | list[dict[str, Any]] | None) -> str:
    """The text of a message, which may be a list of blocks: texts, and others such as images, which are named."""
    if isinstance(content, str):
        return content
    return " ".join(block.get("text") or f"<{block.get('type')}>" for block in content or [])
