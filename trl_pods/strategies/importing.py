"""Importing what a recipe names by a dotted path."""

import os
import sys
from importlib import import_module
from typing import Any


def import_path(path: str) -> Any:
    """
    Import an attribute of a module by its dotted path, also from the current directory, as TRL does for `reward_funcs`.
    """
    module_path, _, name = path.rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return getattr(import_module(module_path), name)
