"""The trainings of a comparison: child processes of `trl-pods grpo`, of which finished ones are not repeated."""

import json
import multiprocessing
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint

from ..errors import SetupError
from ..progress_line import ProgressLine
from ..runs.log import STATE
from .methods import Method

_MODULE = "trl_pods.scripts.grpo"
COMMAND = "command.json"
OUTPUT = "output.txt"
# A schedule over steps would treat methods of different speed differently, and `max_seconds` is what ends a run.
FIXED = ("--lr_scheduler_type", "constant", "--max_steps", "1000000", "--eval_on_start", "true")


@dataclass(frozen=True)
class Run:
    """
    One training.

    Args:
        method ([`Method`]):
            What it trains by.
        learning_rate (`float`):
            Its learning rate.
        seed (`int`):
            Its seed.
        folder (`Path`):
            Its `output_dir`.
    """

    method: Method
    learning_rate: float
    seed: int
    folder: Path

    @property
    def is_finished(self) -> bool:
        """Whether it has been trained to the end."""
        return (self.folder / STATE).exists()

    def command(self, arguments: list[str]) -> list[str]:
        """
        Give the arguments of `trl-pods grpo` for it.

        Args:
            arguments (`list[str]`):
                Those that all runs share.

        Returns:
            `list[str]`: All of them, the run's own last.
        """
        own = ("--learning_rate", str(self.learning_rate), "--seed", str(self.seed), "--output_dir", str(self.folder))
        return [*arguments, *FIXED, *self.method.options, *own]


def train(runs: list[Run], arguments: list[str], num_jobs: int = 1) -> None:
    """
    Train the runs that are not finished, in the given order. One that was interrupted goes on from its last checkpoint.

    Args:
        runs (`list[Run]`):
            The runs.
        arguments (`list[str]`):
            Arguments of `trl-pods grpo` that all share.
        num_jobs (`int`, *optional*, defaults to 1):
            How many train at a time.

    Raises:
        SetupError: A run failed, or its folder holds one of another command. What is finished is kept.
    """
    for run in runs:
        _check_folder(run, arguments)
    missing = [run for run in runs if not run.is_finished]
    if not missing:
        return
    children = _Children(len(runs), len(runs) - len(missing))
    try:
        with ThreadPoolExecutor(num_jobs) as pool:
            futures = [pool.submit(children.train, run, arguments) for run in missing]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                children.stop()
                raise
    finally:
        children.close()


def _check_folder(run: Run, arguments: list[str]) -> None:
    mark = run.folder / COMMAND
    if mark.exists() and (found := json.loads(mark.read_text())) != run.command(arguments):
        raise SetupError(
            f"{str(run.folder)!r} holds a run of another command: {' '.join(found)!r}. Name another `--output_dir`, or "
            "remove the folder to train it anew."
        )


class _Children:
    """Starts the child processes and shows how far they are."""

    def __init__(self, num_runs: int, num_finished: int):
        self._line = ProgressLine("comparing", num_runs, num_finished)
        self._lock = threading.Lock()
        self._running: dict[Run, BaseProcess] = {}
        self._is_stopped = False
        # A process of its own for each run, forked from one that has the libraries loaded, which takes ten seconds.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([_MODULE])

    def train(self, run: Run, arguments: list[str]) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        command = run.command(arguments)
        (run.folder / COMMAND).write_text(json.dumps(command) + "\n")
        resume = ["--resume_from_checkpoint", "true"] if get_last_checkpoint(run.folder) else []
        child = self._context.Process(target=_run_command, args=(command + resume, run.folder / OUTPUT))
        with self._lock:
            if self._is_stopped:
                return
            child.start()
            self._running[run] = child
        self._show()
        child.join()
        with self._lock:
            del self._running[run]
        if child.exitcode == 0:
            remove_weights(run.folder)
            self._show(finished=1)
        elif not self._is_stopped:
            raise SetupError(f"The run in {str(run.folder)!r} failed:\n{_last_lines(run.folder / OUTPUT)}")

    def stop(self) -> None:
        self._is_stopped = True
        with self._lock:
            for child in self._running.values():
                child.terminate()

    def close(self) -> None:
        self._line.close()

    def _show(self, finished: int = 0) -> None:
        with self._lock:
            note = ", ".join(f"{run.method.label} (seed {run.seed})" for run in self._running)
            self._line.update(self._line.done + finished, note)


def _run_command(command: list[str], output: Path) -> None:
    """Run a command as a process of its own, with its output in a file."""
    with open(output, "a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    import_module(_MODULE).main(command, prog="trl-pods grpo")


def _last_lines(path: Path, number: int = 5) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-number:])


def remove_weights(folder: Path) -> None:
    """
    Remove what a finished run has saved of its model: those of many runs would fill the disk.

    Args:
        folder (`Path`):
            The run's `output_dir`. Its record, log and completions tables stay.
    """
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    for pattern in ("*.safetensors*", "*.bin"):
        for path in folder.glob(pattern):
            path.unlink()
