"""The inputs of runs: sizes, switches, random numbers, and those of the user."""
