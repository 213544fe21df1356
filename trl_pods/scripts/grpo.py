"""
What `trl-pods grpo` runs: a recipe's model, data and rewards through `PODSGRPOTrainer`.

It takes the arguments of `trl grpo` and the fields of `PODSGRPOConfig`. For several processes, launch it as a module:
`torchrun --nproc_per_node 2 -m trl_pods.scripts.grpo --config recipe.yaml`.
"""

import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from datasets import load_dataset
from trl import DatasetMixtureConfig, ModelConfig, TrlParser, get_dataset, get_peft_config, get_quantization_config
from trl import rewards as trl_rewards
from trl.scripts.grpo import GRPOScriptArguments

from ..config import PODSGRPOConfig
from ..importing import import_path
from ..progress import training_progress
from ..trainer import PODSGRPOTrainer


@dataclass
class PODSScriptArguments(GRPOScriptArguments):
    """
    Arguments of the script beside those of the trainer and the model.

    Args:
        setup_func (`str`, *optional*):
            Dotted import path of a function that makes what the recipe needs before it is loaded. It is called by one
            process, with `model_name_or_path` and `dataset_name`.
    """

    setup_func: str | None = field(
        default=None,
        metadata={
            "help": "Dotted import path of a function that makes what the recipe needs before it is loaded. It is "
            "called by one process, with `model_name_or_path` and `dataset_name`."
        },
    )


def make_parser(prog: str | None = None) -> TrlParser:
    """
    Make the parser of the script's arguments.

    Args:
        prog (`str`, *optional*):
            Name of the command, for its help.

    Returns:
        [`~trl.TrlParser`]: Parser of `PODSScriptArguments`, `PODSGRPOConfig`, `ModelConfig`, `DatasetMixtureConfig`.
    """
    return TrlParser((PODSScriptArguments, PODSGRPOConfig, ModelConfig, DatasetMixtureConfig), prog=prog)


def run(arguments: list[str], prog: str | None = None) -> PODSGRPOTrainer:
    """
    Parse the arguments and train.

    Args:
        arguments (`list[str]`):
            Command-line arguments, such as `["--config", "recipe.yaml", "--learning_rate", "1.0e-5"]`.
        prog (`str`, *optional*):
            Name of the command, for its help.

    Returns:
        [`PODSGRPOTrainer`]: The trainer, after training. The model and the log are saved in its `output_dir`.

    Raises:
        ValueError: An argument is unknown or does not fit the others.
    """
    script_args, training_args, model_args, dataset_args = make_parser(prog).parse_args_and_config(arguments)
    if model_args.model_name_or_path is None:
        raise ValueError("There is no model to train. Set `model_name_or_path`.")
    if script_args.setup_func is not None:
        with training_args.main_process_first(desc="setup"):
            if training_args.process_index == 0:
                import_function(script_args.setup_func)(model_args.model_name_or_path, script_args.dataset_name)
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    dataset = _load_data(script_args, dataset_args)
    trainer = PODSGRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=_load_rewards(script_args),
        args=training_args,
        train_dataset=dataset[script_args.dataset_train_split],
        eval_dataset=dataset[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
    )
    with training_progress(trainer):
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model(training_args.output_dir)
    trainer.save_state()  # the log, as trainer_state.json
    trainer.accelerator.print(f"Saved the model and the log (trainer_state.json) in {training_args.output_dir}.")
    return trainer


def set_up_output() -> None:
    """Show what trl_pods logs, and not what transformers and TRL say of their own deprecations."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("trl_pods").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|accelerate)\.")


def import_function(path: str) -> Callable:
    """
    Import a function by its dotted path, see [`~importing.import_path`].

    Args:
        path (`str`):
            Import path, such as `"my_lib.rewards.my_reward"`.

    Returns:
        `Callable`: The function.

    Raises:
        ValueError: It cannot be imported.
    """
    try:
        return import_path(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"The function {path!r} cannot be imported: {error}. Check its import path.") from error


def _load_data(script_args: PODSScriptArguments, dataset_args: DatasetMixtureConfig) -> Any:
    if dataset_args.datasets:
        return get_dataset(dataset_args)
    if script_args.dataset_name is None:
        raise ValueError("There is no data to train on. Set `dataset_name` or `datasets`.")
    return load_dataset(
        script_args.dataset_name, name=script_args.dataset_config, streaming=script_args.dataset_streaming
    )


def _load_rewards(script_args: PODSScriptArguments) -> list[Any]:
    model = script_args.reward_model_name_or_path
    return [*([model] if model else []), *map(_load_reward, script_args.reward_funcs or [])]


def _load_reward(name: str) -> Callable:
    if "." in name:
        return import_function(name)
    if name == "get_soft_overlong_punishment":  # with the values that `trl grpo` gives it
        return trl_rewards.get_soft_overlong_punishment(max_completion_len=1280, soft_punish_cache=256)
    named = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
    if name not in named:
        raise ValueError(
            f"There is no reward function {name!r}. Choose one of {[*named, 'get_soft_overlong_punishment']}, or give "
            "a dotted import path."
        )
    return getattr(trl_rewards, name)


if __name__ == "__main__":
    set_up_output()
    run(sys.argv[1:])
