"""Operators along the frames: for each kind what it does to them, the state that it needs, and its edit."""
