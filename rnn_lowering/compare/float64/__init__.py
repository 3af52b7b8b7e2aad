"""A node or a model in float64: the specification, computed apart from the lowering. Read rnn_equations first."""
