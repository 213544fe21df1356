"""
Processes that stop together: what one of them meets is raised on all, so that none waits for one that is gone.

Processes meet in collectives, such as the gathering of rewards. One that raises before it gets there leaves the others
waiting until a timeout, or with an error of the connection that does not say why. So what each does by itself between
two collectives, of which user code is the most, runs in [`fail_together`]. Code that itself meets the others must
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
def fail_together() -> Iterator[None]:
    """
    Run what needs no other process; where it fails on one, all raise. All processes must run it at the same point.
    """
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    raise_on_all(error)


def raise_on_all(error: Exception | None) -> None:
    """Raise on all processes what one of them has met. All processes must call it at the same point."""
    met = error if PartialState().num_processes == 1 else _first_of_all(error)
    if met is not None:
        raise met


def _first_of_all(error: Exception | None) -> Exception | None:
    """This process's own error, with its traceback, or else one that tells of the first process that has met one."""
    state, said = PartialState(), None
    if error is not None:
        message = f"process {state.process_index} raised {type(error).__name__}: {error}"
        logger.error(f"This {message}")  # at once, in case another process is not to be reached
        said = (isinstance(error, SetupError), message)
    if not gather(torch.tensor([int(error is not None)], device=state.device)).any():
        return None
    is_setup, message = next(found for found in gather_object([said]) if found is not None)
    if error is not None:
        return error
    return (SetupError if is_setup else RuntimeError)(f"All processes stop, because {message}")
