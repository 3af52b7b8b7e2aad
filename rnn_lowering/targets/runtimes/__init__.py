"""One file for each runtime with rewrites: its row, and what it gets in place of operators, with the reasons.

A new one also gets a line in `targets/table.py` and its name in `targets/names.py`.
"""
