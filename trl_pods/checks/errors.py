"""User errors, and how the command line reports them."""

import difflib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # what a shell makes of Ctrl-C


class SetupError(ValueError):
    """A user error, in the recipe, on the command line or on the machine: reported without a traceback."""


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The nearest known word as a question, or what to do otherwise."""
    nearest = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {nearest[0]!r}?" if nearest else otherwise


@contextmanager
def exit_on_user_error(prog: str, interrupted: str | None = None) -> Iterator[None]:
    """
    End the process without a traceback where the `with` block raises a [`SetupError`], or is interrupted.

    `interrupted` is what to say then.
    """
    try:
        yield
    except SetupError as error:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(5)  # if the first process fails too, it says so, and the launcher ends this one
        print(f"{prog}: error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print(f"\n{interrupted or f'{prog}: interrupted'}", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)
