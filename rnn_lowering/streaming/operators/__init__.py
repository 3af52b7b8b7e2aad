"""Operators along the frames: for each kind the framing of its output, its state, and its edit."""
