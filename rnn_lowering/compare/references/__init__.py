"""Each kind of recurrent nodes in float64, and test inputs for it."""
