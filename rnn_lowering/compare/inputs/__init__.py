"""The inputs of runs: what a model does with each, which sizes and switches there are, and random numbers."""
