"""Importing what a recipe names by a dotted path, also from the current directory, as TRL does for `reward_funcs`."""

import os
import pkgutil
import sys
from typing import Any


def import_path(path: str) -> Any:
    """Import an attribute of a module; raises whatever importing the module raises."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    # With a colon, so that an error within the module is not hidden, nor a function by a module of its name.
    return pkgutil.resolve_name(":".join(path.rsplit(".", 1)))
