"""What each operator of a step computes, as polynomials."""
