"""Which outputs count as equal: within a tolerance, or as close to float64 as rounding explains."""
