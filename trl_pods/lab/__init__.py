"""Comparing methods by what they reach in the same wall-clock time: what `trl-pods compare` runs."""
