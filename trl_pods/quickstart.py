"""Moved to `trl_pods.examples.quickstart`; kept for this release."""

from .examples.quickstart import prepare, run, spelled_backward

__all__ = ["prepare", "run", "spelled_backward"]
