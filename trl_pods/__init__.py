"""Policy optimisation with down-sampling (PODS) for TRL: sample many rollouts, train on the few that teach most."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .config import PODSGRPOConfig
    from .strategies.registry import get_strategy, list_strategies, register_strategy
    from .trainers import PODSGRPOTrainer

__all__ = [
    "PODSGRPOConfig",
    "PODSGRPOTrainer",
    "get_strategy",
    "list_strategies",
    "register_strategy",
]

_MODULE_OF = {
    "PODSGRPOConfig": "config",
    "PODSGRPOTrainer": "trainers",
    "get_strategy": "strategies.registry",
    "list_strategies": "strategies.registry",
    "register_strategy": "strategies.registry",
}


def __getattr__(name: str):
    # Importing lazily keeps `trl-pods --help` from waiting for torch and transformers.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    except ImportError:
        import_module(".checks.trl_seam", __name__).check_trl()  # says so where it is for TRL that a name is missing
        raise


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
