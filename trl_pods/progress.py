"""Progress a person can follow: one live line on a terminal or in a notebook, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from .batching import prompts_per_generation
from .trainer import PODSGRPOTrainer

PLAIN_EVERY = 5.0  # seconds between plain lines


class ProgressLine:
    """
    Shows how far a piece of work with a known number of steps has come, and what it is doing.

    Args:
        title (`str`):
            What is being done.
        total (`int`):
            Steps of it.
        done (`int`, *optional*, defaults to 0):
            Steps done before, of a training that is resumed.
    """

    def __init__(self, title: str, total: int, done: int = 0):
        self.console = Console(stderr=True)
        self._title, self._total = title, total
        self._first = self._done = done
        self._note = ""
        self._started = self._printed = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=8),  # the whole line fits into 80 columns
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        self._live = Progress(*columns, console=self.console) if self.console.is_interactive else None
        if self._live is not None:
            self._task = self._live.add_task(title, total=total, completed=done, note="")
            self._live.start()

    def update(self, done: int | None = None, note: str | None = None) -> None:
        """
        Show the state of the work.

        Args:
            done (`int`, *optional*):
                Steps done so far.
            note (`str`, *optional*):
                What is going on.
        """
        stepped = done is not None and done != self._done
        self._done = self._done if done is None else done
        self._note = self._note if note is None else note
        if self._live is not None:
            self._live.update(self._task, completed=self._done, note=self._note)
        elif stepped:
            is_end = self._done in (self._first + 1, self._total)
            if is_end or time.monotonic() - self._printed >= PLAIN_EVERY:
                self._print()

    def close(self) -> None:
        """Leave the line as it stands."""
        if self._live is not None:
            self._live.stop()

    def _print(self) -> None:
        self._printed = time.monotonic()
        elapsed = self._printed - self._started
        left = elapsed / (self._done - self._first) * (self._total - self._done)
        parts = [
            f"{self._title} {self._done}/{self._total}",
            " ".join(self._note.split()),
            f"{elapsed:.0f} s, {left:.0f} s left",
        ]
        self.console.print(" | ".join(part for part in parts if part), highlight=False, soft_wrap=True)


@contextmanager
def training_progress(trainer: PODSGRPOTrainer) -> Iterator[None]:
    """
    Show the phase, step, reward and time left of a training, in place of the trainer's own bar and printed logs.

    Args:
        trainer ([`PODSGRPOTrainer`]):
            Trainer that trains inside the `with` block. Only its main process shows anything.
    """
    trainer.remove_callback(DEFAULT_PROGRESS_CALLBACK)  # the one for notebooks, in a notebook
    trainer.remove_callback(PrinterCallback)
    if not trainer.accelerator.is_main_process:
        yield
        return
    callback = _TrainingProgressCallback(trainer)
    trainer.add_callback(callback)
    try:
        yield
    finally:
        callback.close()


class _TrainingProgressCallback(TrainerCallback):
    def __init__(self, trainer: PODSGRPOTrainer):
        self._trainer = trainer
        self._line: ProgressLine | None = None
        self._phase, self._reward = "", ""

    def on_train_begin(self, args, state, control, **kwargs: Any) -> None:
        self._line = ProgressLine("training", state.max_steps, state.global_step)
        self._trainer.clock.on_phase = self._show_phase

    def on_step_end(self, args, state, control, **kwargs: Any) -> None:
        rewards = self._trainer._metrics["train"].get("reward")
        if rewards:
            self._reward = f"reward {rewards[-1]:.3f}"
        self._show(done=state.global_step)

    def close(self) -> None:
        self._trainer.clock.on_phase = lambda phase: None
        if self._line is not None:
            self._line.close()

    def _show_phase(self, phase: str) -> None:
        trainer = self._trainer
        sizes = f"{prompts_per_generation(trainer.args)}x{trainer.num_rollouts}"
        self._phase = {
            "generate": f"generating {sizes}",
            "reward": f"scoring {sizes}",
            "select": "selecting",
            "update": "updating",
        }.get(phase, self._phase)
        self._phase = self._phase.ljust(len(f"generating {sizes}"))  # the bar beside it keeps its place
        self._show()

    def _show(self, done: int | None = None) -> None:
        if self._line is not None:
            kept = f"kept {self._trainer.num_generations}/{self._trainer.num_rollouts}"
            self._line.update(done, " | ".join(part for part in (self._phase, self._reward, kept) if part.strip()))
