"""Generators of models: nets as engineers write them, and stranger ones."""
