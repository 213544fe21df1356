"""Data for TRL: published columns as prompts and reward columns, reasoning-gym's tasks, filters."""

from .adapters import adapt, check_adapter, check_prompts, drop_long_prompts, list_adapters
from .loading import load_named
from .reasoning_gym import load_task

__all__ = ["adapt", "check_adapter", "check_prompts", "drop_long_prompts", "list_adapters", "load_named", "load_task"]
