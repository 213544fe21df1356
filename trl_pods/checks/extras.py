"""Libraries that only a part of the package needs."""

from importlib import import_module
from typing import Any

from .errors import SetupError


class MissingExtraError(SetupError, ImportError):
    """A library is not installed; the message says which extra brings it."""


def require(module: str, extra: str, needed_by: str) -> Any:
    """Import a module of an extra, or say which extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        if error.name not in (package, module):
            raise
        raise MissingExtraError(
            f"{needed_by} needs {package.replace('_', '-')}. Install it with: pip install 'trl-pods[{extra}]'"
        ) from error
