"""Models given as objects: whether TRL can load by their name what it needs beside them, and whether they train."""

from typing import Any

import torch
from trl.trainer.utils import get_config_model_id


def check_model_names(arguments: dict[str, Any]) -> None:
    """Check that a model object has a name wherever TRL loads its tokenizer, or the model once more, by that."""
    model, args = arguments["model"], arguments["args"]
    if _has_no_name(model):
        if arguments.get("processing_class") is None:
            raise ValueError(_without_name("processing_class", f"`model`, a `{type(model).__name__}`,"))
        if args.beta != 0 and arguments.get("peft_config") is None and not hasattr(model, "peft_config"):
            raise ValueError(
                f"`beta` is {args.beta!r}, for which TRL loads the model a second time by its name, but `model`, a "
                f"`{type(model).__name__}`, has none. Save it with its tokenizer and pass the folder, or set `beta` "
                "to 0."
            )
    rewards, tokenizers = (_as_list(arguments.get(name)) for name in ("reward_funcs", "reward_processing_classes"))
    for i, reward in enumerate(rewards):
        if _has_no_name(reward) and (i >= len(tokenizers) or tokenizers[i] is None):
            what = f"the reward model {i} of `reward_funcs`, a `{type(reward).__name__}`,"
            raise ValueError(_without_name("reward_processing_classes", what))


def check_trainable(model: torch.nn.Module) -> None:
    """Check that something of a model is trained."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "Nothing of the model is trained: `requires_grad` is False for all its parameters. Load an adapter with "
            "`PeftModel.from_pretrained(..., is_trainable=True)`, or pass a `peft_config`."
        )


def _has_no_name(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and not get_config_model_id(model.config)


def _as_list(value: Any) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


def _without_name(argument: str, model: str) -> str:
    return (
        f"`{argument}` has no tokenizer for {model} and the model has no name to load it by. Pass the tokenizer as "
        f"`{argument}`."
    )
