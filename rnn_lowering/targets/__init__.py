"""Runtimes, what each supports, and the form of a node for one."""
