"""
The wall clock of training: stop, save and evaluate after so many seconds, evaluation excluded.

This is how the PODS paper (arXiv 2504.13818) compares methods: each trains for the same time, and is evaluated on the
way without paying for it.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import broadcast
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import has_length
from trl import GRPOConfig

from .checks.batch_sizes import check_evaluation
from .checks.errors import SetupError

METRIC = "pods/train_seconds"


class _TrainingClock(TrainerCallback):
    """
    Counts the seconds of training, without those of evaluation.

    Time is cut into pieces at the events of the trainer, because no event says that an evaluation begins: a piece that
    ends in a prediction step is evaluation, and so is what follows until the evaluation is over. What a process does
    before training begins is not counted; saving is.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.seconds = 0.0  # up to the last event
        self._clock = clock
        self._since: float | None = None  # when the last piece ended; None outside of training
        self._evaluating = False

    def on_train_begin(self, *args, **kwargs) -> None:
        self._since, self._evaluating = self._clock(), False

    def on_step_end(self, *args, **kwargs) -> None:
        self._cut()

    def on_prediction_step(self, *args, **kwargs) -> None:
        self._evaluating = True
        self._cut()

    def on_log(self, *args, **kwargs) -> None:
        self._cut()

    def on_evaluate(self, *args, **kwargs) -> None:
        self._evaluating = True  # also where there was nothing to predict
        self._cut()
        self._evaluating = False

    on_predict = on_evaluate

    def on_train_end(self, *args, **kwargs) -> None:
        self._cut()
        self._since = None

    def _cut(self) -> None:
        """End a piece and count it."""
        if self._since is None:
            return
        now = self._clock()
        if not self._evaluating:
            self.seconds += now - self._since
        self._since = now


class WallClockCallback(_TrainingClock, ExportableState):
    """
    Stops, saves and evaluates by the seconds of training, with evaluation excluded from the time budget.

    It acts only after steps at which a generation batch is used up, see [`is_generation_used_up`], because only there
    does a run of `GRPOTrainer` resume exactly; so it may act late by what one generation batch takes. When training
    ends, it saves and evaluates once more where `save_seconds` and `eval_seconds` are set. The seconds are kept in
    the checkpoints (`trainer_state.json`), and a resumed run continues from there. With several processes, the
    clock of the main process decides for all.

    The seconds are logged as `pods/train_seconds` with everything that the trainer logs, in evaluation, too. Use it
    with [`PODSGRPOTrainer`] or [`~trl.GRPOTrainer`].

    Args:
        max_seconds (`float`, *optional*):
            Seconds of training after which it stops.
        save_seconds (`float`, *optional*):
            Save a checkpoint each time that so many seconds of training have passed.
        eval_seconds (`float`, *optional*):
            Evaluate each time that so many seconds of training have passed.
        clock (`Callable[[], float]`, *optional*, defaults to `time.monotonic`):
            Where the time in seconds is read. It is not kept in the checkpoints.

    Raises:
        ValueError: A number of seconds is not above 0.

    Example:

    ```python
    from trl_pods import PODSGRPOTrainer
    from trl_pods.wall_clock import WallClockCallback

    trainer = PODSGRPOTrainer(..., eval_dataset=test_dataset)
    WallClockCallback(max_seconds=2400, eval_seconds=120).attach(trainer)
    trainer.train()
    ```
    """

    def __init__(
        self,
        max_seconds: float | None = None,
        save_seconds: float | None = None,
        eval_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(clock)
        for name, value in (
            ("max_seconds", max_seconds),
            ("save_seconds", save_seconds),
            ("eval_seconds", eval_seconds),
        ):
            if value is not None and not value > 0:
                raise ValueError(
                    f"`{name}` is {value!r}, but it must be above 0. Give seconds of training, or leave it out."
                )
        self.max_seconds, self.save_seconds, self.eval_seconds = max_seconds, save_seconds, eval_seconds
        self.checked_at = 0.0  # seconds when it was last decided what to do

    def attach(self, trainer: Trainer) -> None:
        """
        Add the callback to a trainer, ahead of those that report what is logged, so that they report the seconds.

        With `trainer.add_callback` it works as well, but only the trainer's own log then has the seconds.

        Args:
            trainer ([`PODSGRPOTrainer`] or [`~trl.GRPOTrainer`]):
                Trainer that has not begun to train.

        Raises:
            ValueError: `eval_seconds` is set, and the trainer has no `eval_dataset`, or its evaluation batches do not
                hold whole groups.
        """
        if self.eval_seconds is not None:
            if trainer.eval_dataset is None:
                raise ValueError(
                    f"`eval_seconds` is {self.eval_seconds!r}, but the trainer has no `eval_dataset`. Give it one, or "
                    "leave `eval_seconds` out."
                )
            check_evaluation(trainer.args)
        trainer.callback_handler.callbacks.insert(0, self)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the arguments, and the seconds up to now."""
        self._cut()
        return {
            "args": {
                "max_seconds": self.max_seconds,
                "save_seconds": self.save_seconds,
                "eval_seconds": self.eval_seconds,
            },
            "attributes": {"seconds": self.seconds, "checked_at": self.checked_at},
        }

    def on_train_begin(self, args: GRPOConfig, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        name = type(self).__name__
        self.seconds = self.checked_at = 0.0
        if state.global_step > 0:  # resumed, perhaps from a checkpoint of a run without this callback
            for attribute, value in state.stateful_callbacks.get(name, {}).get("attributes", {}).items():
                setattr(self, attribute, value)
        if self.max_seconds is not None and self.seconds >= self.max_seconds:
            raise SetupError(
                f"`max_seconds` is {self.max_seconds!r}, but the checkpoint has been trained for {self.seconds:.1f} "
                "seconds. Raise `max_seconds` to train on."
            )
        super().on_train_begin(args, state, control)
        state.stateful_callbacks.setdefault(name, self.state())  # the trainer expects it there when it saves

    def on_step_end(
        self, args: GRPOConfig, state: TrainerState, control: TrainerControl, train_dataloader: Any = None, **kwargs
    ) -> None:
        super().on_step_end()
        is_last = state.global_step >= state.max_steps
        if not (is_last or is_generation_used_up(args, state.global_step, train_dataloader)):
            return
        if args.world_size > 1:
            seconds = torch.tensor(self.seconds, dtype=torch.float64, device=args.device)
            self.seconds = broadcast(seconds).item()
        if self.max_seconds is not None and self.seconds >= self.max_seconds:
            control.should_training_stop = is_last = True
        control.should_save |= self._is_due(self.save_seconds, is_last)
        control.should_evaluate |= self._is_due(self.eval_seconds, is_last)
        self.checked_at = self.seconds

    def on_log(self, args, state: TrainerState, control, logs: dict[str, float], **kwargs) -> None:
        super().on_log()
        logs[METRIC] = state.log_history[-1][METRIC] = self.seconds  # the trainer has just written the latter

    def _is_due(self, interval: float | None, is_last: bool) -> bool:
        return interval is not None and (is_last or self.seconds // interval > self.checked_at // interval)


def is_generation_used_up(args: GRPOConfig, step: int, train_dataloader: Any = None) -> bool:
    """
    Tell whether a step was the last to train on its generation batch, so that a run saved there resumes exactly.

    In each epoch, it is where the micro-batches trained, `gradient_accumulation_steps` a step, are a multiple of
    `steps_per_generation * num_iterations`.

    The last step of an epoch may train fewer micro-batches than the others, which a `train_dataloader` of known length
    tells.

    ```python
    >>> from types import SimpleNamespace
    >>> from trl_pods.wall_clock import is_generation_used_up

    >>> args = SimpleNamespace(gradient_accumulation_steps=2, steps_per_generation=4, num_iterations=2)
    >>> [step for step in range(1, 13) if is_generation_used_up(args, step)]
    [4, 8, 12]

    ```
    """
    if train_dataloader is not None and has_length(train_dataloader):
        step %= -(-len(train_dataloader) // args.gradient_accumulation_steps)
    return step * args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations) == 0
