"""One file for each runtime that was tried: its row, and what it gets instead of operators, with the reasons."""
