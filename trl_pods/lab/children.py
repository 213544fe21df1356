"""Trainings in child processes, which end when this process does, with all that they launch."""

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

_MODULE = "trl_pods.cli.train"
_GRACE = 40.0  # seconds in which a launcher may end its processes, of which torchrun takes up to 30


def start(command: list[str], output: Path) -> BaseProcess:
    """Start a training."""
    # Forked from a process that has the libraries loaded, which takes ten seconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_MODULE])
    child = context.Process(target=_run, args=(_MODULE, command, output, _free_port()))
    child.start()
    return child


def end(child: BaseProcess) -> None:
    """End a training, and what it has launched."""
    if child.pid is None:
        return
    try:
        os.killpg(child.pid, signal.SIGTERM)
    except ProcessLookupError:  # it has ended, or has no group yet and has launched nothing
        child.terminate()


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return server.getsockname()[1]


def _run(module: str, command: list[str], output: Path, port: int) -> None:
    os.setsid()  # a group of its own, in which what it launches is ended with it
    os.environ.setdefault("MASTER_PORT", str(port))  # vLLM's: two that start at once would both choose TRL's first
    with open(output, "a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import_module(module).main(command, prog="trl-pods grpo")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGTERM)  # not SIGKILL at once: torchrun must end its processes, which have other groups
        time.sleep(_GRACE)
        os.killpg(0, signal.SIGKILL)
