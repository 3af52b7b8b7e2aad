"""Each lowered node beside its operator in float64."""
