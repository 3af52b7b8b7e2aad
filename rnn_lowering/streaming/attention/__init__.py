"""Attention to past frames: pair values, masks as functions of positions, keys and values that are kept."""
