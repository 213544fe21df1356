"""What trl_pods logs, on the console, where nobody has set up logging: a script shows warnings alone by itself."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def shown_on_console() -> Iterator[None]:
    """Show the package's lines of level INFO in the `with` block, unless a handler or a level was set by the user."""
    logger = logging.getLogger("trl_pods")
    if logger.hasHandlers() or logger.level:
        yield
        return
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:  # a logging that is set up later would show each line twice
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
