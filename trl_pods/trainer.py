"""Moved to `trl_pods.trainers`; kept for this release."""

from .trainers import PODSGRPOTrainer

__all__ = ["PODSGRPOTrainer"]
