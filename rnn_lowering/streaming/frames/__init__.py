"""The frames in each value: which they are, how late they are, and the past frames that a node reads."""
