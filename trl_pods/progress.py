"""The progress of a training: steps, time left, phase, reward and what is kept, in one line."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import PrinterCallback, ProgressCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from .timing import PHASES

if TYPE_CHECKING:
    from .trainers import PODSGRPOTrainer

SECONDS_BETWEEN_LINES = 5.0  # where what is shown is not a terminal


@contextmanager
def training_progress(trainer: "PODSGRPOTrainer") -> Iterator[None]:
    """
    Show the progress of a training in one line, in place of the trainer's own bar and printed logs.

    In a notebook, it is transformers' own table.

    Args:
        trainer ([`PODSGRPOTrainer`]):
            Trainer that trains inside the `with` block. Only its main process shows anything.

    Example:

    ```python
    from trl_pods import PODSGRPOTrainer
    from trl_pods.progress import training_progress

    trainer = PODSGRPOTrainer(...)
    with training_progress(trainer):  # training: 20%|██  | 12/60 [00:05<00:21, updating, reward=0.412, kept=16/64]
        trainer.train()
    ```
    """
    in_notebook = DEFAULT_PROGRESS_CALLBACK is not ProgressCallback
    replaced = [trainer.pop_callback(kind) for kind in (DEFAULT_PROGRESS_CALLBACK, PrinterCallback)]
    callback = DEFAULT_PROGRESS_CALLBACK() if in_notebook else TrainingProgressCallback(trainer)
    trainer.add_callback(callback)
    try:
        yield
    finally:
        trainer.clock.on_phase = lambda phase: None
        trainer.remove_callback(callback)
        for own in replaced:
            if own is not None:
                trainer.add_callback(own)


class TrainingProgressCallback(ProgressCallback):
    """transformers' bar, with the phase, the reward and what is kept beside it, and without printed logs."""

    def __init__(self, trainer: "PODSGRPOTrainer"):
        super().__init__()
        self._trainer = trainer
        self._shown: dict[str, Any] = {"phase": "", "kept": f"{trainer.num_generations}/{trainer.num_rollouts}"}
        self._shown_at = 0.0

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is None:
            return
        bar = self.training_bar
        bar.initial = bar.n = self.current_step = state.global_step  # of a run that is resumed
        if not sys.stderr.isatty():
            bar.mininterval = SECONDS_BETWEEN_LINES
        bar.set_description("training")
        self._trainer.clock.on_phase = self._on_phase

    def on_step_end(self, args, state, control, **kwargs) -> None:
        rewards = self._trainer._metrics["train"].get("reward")
        if rewards:
            self._shown["reward"] = f"{rewards[-1]:.3f}"
        if self.training_bar is not None:
            self.training_bar.set_postfix(self._shown, refresh=state.global_step == state.max_steps)
        super().on_step_end(args, state, control, **kwargs)

    def on_log(self, *args, **kwargs) -> None:
        pass

    def _on_phase(self, phase: str) -> None:
        bar = self.training_bar
        if phase in PHASES and bar is not None:
            self._shown["phase"] = phase
            now = time.monotonic()
            if now - self._shown_at >= bar.mininterval:
                self._shown_at = now
                bar.set_postfix(self._shown)
