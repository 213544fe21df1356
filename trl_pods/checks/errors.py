"""User errors, and how the command line reports them."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # what a shell makes of Ctrl-C


class SetupError(ValueError):
    """A user error, in the recipe, on the command line or on the machine: reported without a traceback."""


@contextmanager
def exit_on_user_error(prog: str) -> Iterator[None]:
    """End the process without a traceback where the `with` block raises a [`SetupError`], or is interrupted."""
    try:
        yield
    except SetupError as error:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(5)  # if the first process fails too, it says so, and the launcher ends this one
        print(f"{prog}: error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print(f"\n{prog}: interrupted", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)
