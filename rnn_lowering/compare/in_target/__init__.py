"""The result in the runtime of its target: `comparison` compares, `runs` runs models there."""
