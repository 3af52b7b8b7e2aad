"""Compare each lowered node with its operator in float64."""
