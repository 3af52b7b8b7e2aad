"""Runtimes with rewrites: their rows, and what they get in place of operators, with the reasons.

A new one also gets a line in `targets/table.py` and its name in `targets/names.py`.
"""
