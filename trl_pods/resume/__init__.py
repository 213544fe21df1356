"""Resuming exactly, at any step."""
