"""Nodes that are written in another way for a runtime, a module for each kind. adaptations.py lists them."""
