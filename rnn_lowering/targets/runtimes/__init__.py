"""One file for each runtime with rewrites: its row, and what it gets in place of operators, with the reasons."""
