"""The float64 reference of each kind of recurrent nodes, and test inputs for it."""
