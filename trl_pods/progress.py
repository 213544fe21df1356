"""The progress of a training: phase, step, reward and time left."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PrinterCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_utils import has_length

from .checks.batch_sizes import prompts_per_generation
from .progress_line import ProgressLine
from .timing import PHASES
from .trainers import PODSGRPOTrainer
from .wall_clock import TrainingClock, WallClockCallback


@contextmanager
def training_progress(trainer: PODSGRPOTrainer) -> Iterator[None]:
    """
    Show the phase, step, reward and time left of a training, in place of the trainer's own bar and printed logs.

    Args:
        trainer ([`PODSGRPOTrainer`]):
            Trainer that trains inside the `with` block. Only its main process shows anything.

    Example:

    ```python
    from trl_pods import PODSGRPOTrainer
    from trl_pods.progress import training_progress

    trainer = PODSGRPOTrainer(...)
    with training_progress(trainer):  # training ━━━━━━━━ 12/60 generating 8x64 | reward 0.412 | kept 16/64 00:21 left
        trainer.train()
    ```
    """
    replaced = [trainer.pop_callback(kind) for kind in (DEFAULT_PROGRESS_CALLBACK, PrinterCallback)]
    callback = _TrainingProgressCallback(trainer)
    if trainer.accelerator.is_main_process:
        trainer.add_callback(callback)
    try:
        yield
    finally:
        if trainer.accelerator.is_main_process:
            callback.close()
            trainer.remove_callback(callback)
        for own in replaced:
            if own is not None:
                trainer.add_callback(own)


class _TrainingProgressCallback(TrainingClock):
    def __init__(self, trainer: PODSGRPOTrainer):
        super().__init__()
        self._trainer = trainer
        self._line: ProgressLine | None = None
        self._sizes = f"{prompts_per_generation(trainer.args)}x{trainer.num_rollouts}"
        self._phase, self._reward = "", ""
        self._evaluating_batch = 0
        self._evaluated_at: set[int] = set()  # steps
        self._begun: tuple[int, float] | None = None  # step and seconds of training where the first step began

    def on_train_begin(self, args, state, control, **kwargs: Any) -> None:
        super().on_train_begin()
        self.close()
        self._begun = None
        self._line = ProgressLine("training", state.max_steps, state.global_step)
        self._trainer.clock.on_phase = self._on_phase
        if args.eval_on_start:
            self._show("evaluating")

    def on_step_begin(self, args, state, control, **kwargs: Any) -> None:
        if self._begun is None:  # what comes before, such as going through the data on resume, comes only once
            self._cut()
            self._begun = state.global_step, self.seconds

    def on_step_end(self, args, state, control, **kwargs: Any) -> None:
        super().on_step_end()
        rewards = self._trainer._metrics["train"].get("reward")
        if rewards:
            self._reward = f"reward {rewards[-1]:.3f}"
        self._show(self._phase_label(), done=state.global_step, left=self._seconds_left(args, state, control))
        if control.should_evaluate:
            self._show("evaluating")

    def on_epoch_end(self, args, state, control, **kwargs: Any) -> None:
        if control.should_evaluate:
            self._show("evaluating")

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs: Any) -> None:
        super().on_prediction_step()
        self._evaluating_batch += 1
        total = f"/{len(eval_dataloader)}" if has_length(eval_dataloader) else ""
        self._show(f"evaluating {self._evaluating_batch}{total}")

    def on_evaluate(self, args, state, control, **kwargs: Any) -> None:
        super().on_evaluate()
        self._evaluating_batch = 0
        self._evaluated_at.add(state.global_step)
        self._show(self._phase_label(), left=self._seconds_left(args, state, control))

    def close(self) -> None:
        self._trainer.clock.on_phase = lambda phase: None
        if self._line is not None:
            self._line.close()

    def _on_phase(self, phase: str) -> None:
        # The clock also tells of going back to an outer phase, and every step begins inside of "update".
        goes_back = phase == "generate" and self._phase in ("reward", "select", "logps")
        begins = phase == "update" and self._phase in ("", "update")
        if phase in PHASES and not goes_back and not begins:
            self._phase = phase
            self._show(self._phase_label())

    def _phase_label(self) -> str:
        return {
            "generate": f"generating {self._sizes}",
            "reward": f"scoring {self._sizes}",
            "select": "selecting",
            "logps": "log-probs",
            "update": "updating",
        }.get(self._phase, "")

    def _show(self, label: str, **progress: Any) -> None:
        if self._line is not None:
            label = label.ljust(len(f"generating {self._sizes}"))  # what is beside it keeps its place
            kept = f"kept {self._trainer.num_generations}/{self._trainer.num_rollouts}"
            self._line.update(note=" | ".join(part for part in (label, self._reward, kept) if part.strip()), **progress)

    def _seconds_left(self, args, state, control) -> float | None:
        """Of training, told from the steps so far, and of the evaluations to come, told from those so far."""
        if self._begun is None:
            return None
        first_step, seconds_before = self._begun
        per_step = (self.seconds - seconds_before) / (state.global_step - first_step)
        training = per_step * (state.max_steps - state.global_step)
        num_evaluations = float(control.should_evaluate) + _num_evaluations_by_steps(args, state)
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, WallClockCallback):
                if callback.max_seconds is not None:
                    training = min(training, callback.max_seconds - callback.seconds)
                if callback.eval_seconds is not None:
                    num_evaluations += training // callback.eval_seconds
        return training + num_evaluations * self.evaluation_seconds / max(len(self._evaluated_at), 1)


def _num_evaluations_by_steps(args: Any, state: Any) -> int:
    """Evaluations after the present step, by `eval_strategy`."""
    if args.eval_strategy == "steps":
        has_last = state.max_steps % state.eval_steps != 0 and state.global_step < state.max_steps
        return state.max_steps // state.eval_steps - state.global_step // state.eval_steps + has_last
    if args.eval_strategy == "epoch":
        return state.num_train_epochs + 1 - math.ceil(state.epoch)
    return 0
