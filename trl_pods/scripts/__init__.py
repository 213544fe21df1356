"""Moved to `trl_pods.cli`; kept for this release."""
