"""Whether outputs have the right shape, and whether those that differ may differ."""
