"""Whether outputs that differ may differ."""
