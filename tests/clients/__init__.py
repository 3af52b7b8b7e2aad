"""Runtimes that need lowered models, run for real: each in an environment of its own."""
