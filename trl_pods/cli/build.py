"""Making what a training needs, from parsed arguments: data, rewards, trainer."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.integrations import get_reporting_integration_callbacks
from trl import get_dataset, get_peft_config, get_quantization_config
from trl import rewards as trl_rewards

from ..checks.columns import FROM_TRL
from ..checks.reward_functions import check_signature
from ..checks.training import check_training
from ..data import adapt, check_prompts, drop_long_prompts, load_named, load_task
from ..resume.checkpoints import checkpoint_to_resume_from
from ..rewards import REWARDS
from ..strategies.importing import import_path
from ..trainers import PODSGRPOTrainer
from ..wall_clock import WallClockCallback
from .arguments import Arguments

logger = logging.getLogger(__name__)

TRL_REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")


def make_trainer(arguments: Arguments, data: Any) -> PODSGRPOTrainer:
    """Make the trainer."""
    script, training, model = arguments.script, arguments.training, arguments.model
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    _check_model(arguments)
    _check_reporting(training.report_to)
    wanted_by = "eval_seconds" if script.eval_seconds is not None else "eval_strategy"
    evaluates = training.eval_strategy != "no" or script.eval_seconds is not None
    rewards, train_dataset = load_rewards(arguments), _split(data, "dataset_train_split", script.dataset_train_split)
    _check_rewards(rewards, train_dataset, columns_removed=training.remove_unused_columns)
    trainer = PODSGRPOTrainer(
        model=model.model_name_or_path,
        reward_funcs=rewards,
        args=training,
        train_dataset=train_dataset,
        eval_dataset=_split(data, "dataset_test_split", script.dataset_test_split, wanted_by) if evaluates else None,
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    check_training(trainer)
    WallClockCallback(script.max_seconds, script.save_seconds, script.eval_seconds).attach(trainer)
    return trainer


def load_setup(arguments: Arguments) -> Callable[[], None] | None:
    """Import the recipe's `setup_func`."""
    script, model = arguments.script, arguments.model
    if model.model_name_or_path is None:
        raise ValueError("There is no model to train. Set `model_name_or_path`.")
    if script.setup_func is None:
        _check_path(model.model_name_or_path)
        return None
    set_up = _import_function("setup_func", script.setup_func)
    kwargs = {} if script.task_kwargs is None else {"task_kwargs": script.task_kwargs}
    return functools.partial(set_up, model.model_name_or_path, script.dataset_name, **kwargs)


def load_data(arguments: Arguments) -> Any:
    """Load the dataset, or the mixture of datasets, with prompts as TRL takes them."""
    script, training = arguments.script, arguments.training
    tokenizer = functools.cache(functools.partial(_load_tokenizer, arguments))  # once, if at all
    with training.main_process_first(desc="data"):  # the others find it in the cache
        try:
            data = _load(arguments)
        except StopIteration:  # of an empty file
            raise ValueError("The dataset has no rows. Check `dataset_name` or `datasets`.") from None
        if script.dataset_adapter is not None:
            data = adapt(
                data,
                script.dataset_adapter,
                conversational=tokenizer().chat_template is not None,
                system_prompt=script.system_prompt,
                question_column=script.question_column,
                answer_column=script.answer_column,
            )
        check_prompts(data)
        if script.max_prompt_length is not None:
            data = drop_long_prompts(data, tokenizer(), script.max_prompt_length)
    return data


def load_rewards(arguments: Arguments) -> list[Any]:
    """Load the reward model and the reward functions."""
    model, names = arguments.script.reward_model_name_or_path, arguments.script.reward_funcs
    if not model and not names:
        raise ValueError(
            "There is nothing to reward completions by. Set `reward_funcs` to names or import paths, or "
            "`reward_model_name_or_path`."
        )
    return [*([model] if model else []), *map(_load_reward, names or [])]


def checkpoint_to_resume(arguments: Arguments) -> str | None:
    """Find the checkpoint that `resume_from_checkpoint` means: a folder, or `true` for the last one in `output_dir`."""
    training = arguments.training
    wanted = str(training.resume_from_checkpoint or "no")
    if wanted.lower() in ("no", "false", "none"):
        return None
    return checkpoint_to_resume_from(wanted.lower() in ("true", "yes") or wanted, training.output_dir)


def _check_model(arguments: Arguments) -> None:
    model = arguments.model
    try:
        AutoConfig.from_pretrained(
            model.model_name_or_path,
            revision=model.model_revision,
            trust_remote_code=arguments.training.trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise ValueError(
            f"`model_name_or_path` is {model.model_name_or_path!r}, which is no model that can be loaded: {error}"
        ) from error


def _check_path(name: str) -> None:
    """Check a name that can only be a path: those of the hub are `model` or `owner/model`."""
    path = Path(name)
    if not path.exists() and (path.is_absolute() or name.startswith(".") or len(path.parts) > 2):
        raise ValueError(f"`model_name_or_path` is {name!r}, but there is no such folder. Check the path.")


def _check_reporting(report_to: list[str]) -> None:
    """Check that what reports to these services can be built, of which each has its own error where it cannot."""
    try:
        for callback in get_reporting_integration_callbacks(report_to):
            callback()
    except (ValueError, RuntimeError, ImportError) as error:
        raise ValueError(f"`report_to` is {report_to!r}, to which nothing can be reported: {error}") from error


def _check_rewards(rewards: list[Any], dataset: Any, columns_removed: bool) -> None:
    """Check what reward functions need against the columns, before anything is generated."""
    if dataset.column_names is None:  # streamed
        return
    from_trl = [keyword for keyword in FROM_TRL if keyword != "environments"]  # a recipe has none
    columns = [] if columns_removed else [name for name in dataset.column_names if name != "prompt"]
    for reward in rewards:
        if not isinstance(reward, str):
            check_signature(reward.__name__, reward, (*from_trl, *columns), columns_removed=columns_removed)


def _load(arguments: Arguments) -> Any:
    script = arguments.script
    if arguments.dataset.datasets:
        if script.dataset_name is not None:
            logger.warning("`datasets` and `dataset_name` are both set. The latter is ignored, as by `trl grpo`.")
        return get_dataset(arguments.dataset)
    if script.dataset_name is None:
        raise ValueError("There is no data to train on. Set `dataset_name` or `datasets`.")
    if script.dataset_adapter == "reasoning_gym":
        return load_task(script.dataset_name, script.task_kwargs)  # type: ignore[arg-type]  # no text any more
    return load_named(script.dataset_name, script.dataset_config, streaming=script.dataset_streaming)


def _load_tokenizer(arguments: Arguments) -> PreTrainedTokenizerBase:
    model = arguments.model
    return AutoTokenizer.from_pretrained(
        model.model_name_or_path,
        revision=model.model_revision,
        trust_remote_code=arguments.training.trust_remote_code,
    )


def _split(data: Any, option: str, name: str, wanted_by: str | None = None) -> Any:
    if name not in data:
        why = f", and `{wanted_by}` needs one to evaluate on" if wanted_by else ""
        raise ValueError(
            f"`{option}` is {name!r}, but the dataset has the splits {list(data)}{why}. Name a split of it."
        )
    return data[name]


def _load_reward(name: str) -> Callable:
    if "." in name:
        return _import_function("reward_funcs", name)
    if name in REWARDS:
        return REWARDS[name]
    if name == "get_soft_overlong_punishment":  # with the values that `trl grpo` gives it
        return trl_rewards.get_soft_overlong_punishment(max_completion_len=1280, soft_punish_cache=256)
    if name not in TRL_REWARDS:
        raise ValueError(
            f"`reward_funcs`: there is no reward function {name!r}. Choose one of {sorted([*REWARDS, *TRL_REWARDS])}, "
            "or give a dotted import path such as 'my_rewards.my_reward'."
        )
    return getattr(trl_rewards, name)


def _import_function(option: str, path: str) -> Callable:
    try:
        function = import_path(path)
    except Exception as error:  # whatever the module does when it is imported
        raise ValueError(f"`{option}`: {path!r} cannot be imported: {error!r}. Check its import path.") from error
    if not callable(function):
        raise ValueError(f"`{option}`: {path!r} is {function!r}, not a function. Name a function.")
    return function
