"""Runtimes, what each supports, and the choice of the form of a node for one."""
