"""The trainings of a comparison: child processes of `trl-pods grpo`, of which finished ones are not repeated."""

import json
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from ..checks.errors import SetupError
from ..resume.checkpoints import last_complete_checkpoint
from ..runs.atomic import atomic_write
from ..runs.log import STATE, has_log, last_checkpoint_with_log, read_log, read_state
from ..wall_clock import METRIC as TRAIN_SECONDS
from ..wall_clock import WallClockCallback
from . import children
from .methods import Method

COMMAND = "command.json"
OUTPUT = "output.txt"


@dataclass(frozen=True)
class Run:
    """One training."""

    method: Method
    learning_rate: float
    seed: int
    folder: Path

    @property
    def is_finished(self) -> bool:
        """Whether it has been trained to the end."""
        return has_log(self.folder)

    def command(self, arguments: list[str]) -> list[str]:
        """Give the arguments of `trl-pods grpo` for it."""
        own = ("--learning_rate", str(self.learning_rate), "--seed", str(self.seed), "--output_dir", str(self.folder))
        return [*arguments, *self.method.options, *own]


class Job(NamedTuple):
    """What all runs share: options, the recipe's own ones, and after how many seconds or else steps each ends."""

    arguments: list[str]
    recipe: dict[str, Any]
    max_seconds: float | None
    max_steps: int
    num_jobs: int = 1


def train(runs: list[Run], job: Job) -> None:
    """
    Train the runs that are not finished, in the given order. One that was interrupted resumes from its last checkpoint.
    """
    for run in runs:
        _check_folder(run, job)
        _finish(run, job)
    missing = [run for run in runs if not run.is_finished]
    if not missing:
        return
    trainings = _Trainings(job, len(runs), len(runs) - len(missing))
    try:
        with ThreadPoolExecutor(job.num_jobs) as pool:
            futures = [pool.submit(trainings.train, run) for run in missing]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                trainings.stop()
                raise
    finally:
        trainings.close()


def _made_by(run: Run, job: Job) -> dict[str, Any]:
    return {"arguments": run.command(job.arguments), "recipe": job.recipe}


def _check_folder(run: Run, job: Job) -> None:
    """Refuse a folder in which something else was trained."""
    mark = run.folder / COMMAND
    was_trained = run.is_finished or last_checkpoint_with_log(run.folder) is not None
    if was_trained and mark.exists() and _noted(mark) != _made_by(run, job):
        raise SetupError(
            f"{str(run.folder)!r} holds a run of another command or of another recipe, see {COMMAND} in it. Name "
            "another `--output_dir`, or remove the folder to train it from scratch; the others are kept."
        )


def _noted(mark: Path) -> Any:
    try:
        return json.loads(mark.read_text())
    except (OSError, ValueError):  # cut off by what ended the process, so nobody knows what the folder holds
        return None


def _finish(run: Run, job: Job) -> None:
    """Do what is left to do of a run that was interrupted after it had trained."""
    checkpoint = None if run.is_finished else last_checkpoint_with_log(run.folder)
    if checkpoint is not None and _is_trained(checkpoint, job):
        with atomic_write(run.folder / STATE) as draft:
            shutil.copy(Path(checkpoint) / STATE, draft)
    if run.is_finished:
        remove_weights(run.folder)


def _is_trained(checkpoint: str, job: Job) -> bool:
    if job.max_seconds is None:
        return read_state(checkpoint)["global_step"] >= job.max_steps
    return _trained_seconds(checkpoint) >= job.max_seconds


def _trained_seconds(checkpoint: str) -> float:
    """Seconds of training at a checkpoint: by its log, or by its clock, which also counts how long saving it took."""
    logged = [entry[TRAIN_SECONDS] for entry in read_log(checkpoint) if TRAIN_SECONDS in entry]
    callbacks = read_state(checkpoint).get("stateful_callbacks", {})
    clock = callbacks.get(WallClockCallback.__name__, {"attributes": {"seconds": 0.0}})
    return max([clock["attributes"]["seconds"], *logged])


class _Trainings:
    """Starts the child processes and shows how far they are."""

    def __init__(self, job: Job, num_runs: int, num_finished: int):
        self._job = job
        self._progress = Progress(console=Console(stderr=True))
        self._task = self._progress.add_task("comparing", total=num_runs, completed=num_finished)
        self._progress.start()
        self._lock = threading.Lock()
        self._running: dict[Run, BaseProcess] = {}
        self._is_stopped = False

    def train(self, run: Run) -> None:
        with atomic_write(run.folder / COMMAND) as draft:
            draft.write_text(json.dumps(_made_by(run, self._job)) + "\n")
        resume = ["--resume_from_checkpoint", "true"] if last_complete_checkpoint(run.folder) else []
        command = run.command(self._job.arguments) + resume
        with self._lock:
            if self._is_stopped:
                return
            self._running[run] = child = children.start(command, run.folder / OUTPUT)
        child.join()
        with self._lock:
            del self._running[run]
        if child.exitcode == 0:
            remove_weights(run.folder)
            self._progress.print(f"finished: {run.method.label}, seed {run.seed}")
            self._progress.advance(self._task)
        elif not self._is_stopped:
            raise SetupError(_failure(run, child.exitcode))

    def stop(self) -> None:
        self._is_stopped = True
        with self._lock:
            for child in self._running.values():
                children.end(child)

    def close(self) -> None:
        self._progress.stop()


def _failure(run: Run, code: int | None) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else "failed"
    output = run.folder / OUTPUT
    lines = output.read_text(errors="replace").splitlines() if output.exists() else []  # it may fail before that
    said = [line for line in lines if line.strip() and "%|" not in line][-5:]
    first = f"The run in {str(run.folder)!r} {how}. The last lines of its {OUTPUT}:"
    return "\n".join([first, *said, "What is finished is kept; the same command resumes from there."])


def remove_weights(folder: Path) -> None:
    """Remove what a finished run has saved of its model: those of many runs would fill the disk."""
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    for pattern in ("*.safetensors*", "*.bin"):
        for path in folder.glob(pattern):
            path.unlink()
