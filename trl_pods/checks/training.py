"""What concerns training alone: a trainer may also be built to evaluate, and needs none of it."""

from typing import Any

from .batch_sizes import check_dataset
from .columns import check_dataset_prompts
from .models import check_trainable


def check_training(trainer: Any) -> None:
    """Check that a training has steps, something to train, and prompts; and those of evaluations on the way."""
    args = trainer.args
    length = "max_steps" if args.max_steps >= 0 else "num_train_epochs"
    if getattr(args, length) <= 0:
        raise ValueError(
            f"`{length}` is {getattr(args, length)!r}, so nothing would be trained. Raise it"
            + (", or set it to -1 to train for `num_train_epochs`." if length == "max_steps" else ".")
        )
    check_trainable(trainer.model)
    check_dataset(args, trainer.train_dataset)
    for name in ("train_dataset", "eval_dataset"):
        check_dataset_prompts(name, getattr(trainer, name), trainer._tokenizer, with_rows=trainer.rollout_func is None)
