"""
Processes that stop together: what one of them meets is raised on all, so that none waits for one that is gone.

Processes meet in collectives, such as the gathering of rewards. One that raises before it gets there leaves the others
waiting until a timeout, or with an error of the connection that does not say why. So what each does by itself between
two collectives, of which user code is the most, runs in [`stopping_together`]. Code that itself meets the others must
not fail on one process alone before it has.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import PartialState
from accelerate.utils import gather, gather_object

from .errors import SetupError

logger = logging.getLogger(__name__)


@contextmanager
def stopping_together() -> Iterator[None]:
    """
    Run what needs no other process; where it fails on one, all raise. All processes must run it at the same point.

    Raises:
        Exception: What the `with` block raised.
        SetupError: Another process raised one. The message says which process, and has its message.
        RuntimeError: Another process raised another exception. So does this message.
    """
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    raise_on_all(error)


def raise_on_all(error: Exception | None) -> None:
    """
    Raise on all processes what one of them has met. All processes must call it at the same point.

    Args:
        error (`Exception`, *optional*):
            What this process has met.

    Raises:
        Exception: `error`.
        SetupError or RuntimeError: See [`stopping_together`].
    """
    state = PartialState()
    if error is not None and state.num_processes > 1:  # told at once, in case another process is not to be reached
        logger.error(f"Process {state.process_index} raised {type(error).__name__}: {error}")
    if state.num_processes > 1 and gather(torch.tensor([int(error is not None)], device=state.device)).any():
        said = None if error is None else (isinstance(error, SetupError), f"{type(error).__name__}: {error}")
        # The first of those that failed; one that failed itself raises its own, with its traceback.
        process, (is_setup, message) = next(
            (i, found) for i, found in enumerate(gather_object([said])) if found is not None
        )
        if error is None:
            kind = SetupError if is_setup else RuntimeError
            raise kind(f"All processes stop, because process {process} raised {message}")
    if error is not None:
        raise error
