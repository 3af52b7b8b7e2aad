"""Proofs that a lowered node computes what its operator specifies, on symbols."""
