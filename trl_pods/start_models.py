"""Moved to `trl_pods.examples.start_models`; kept for this release."""

from .examples.start_models import make_start_model, prepare

__all__ = ["make_start_model", "prepare"]
