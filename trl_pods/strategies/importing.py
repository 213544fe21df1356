"""Importing what a recipe names by a dotted path, also from the current directory, as TRL does for `reward_funcs`."""

import os
import pkgutil
import sys
from typing import Any


def import_path(path: str) -> Any:
    """Import an attribute of a module; raises whatever importing the module raises."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return pkgutil.resolve_name(path)
