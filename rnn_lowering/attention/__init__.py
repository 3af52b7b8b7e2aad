"""LinearAttention and its kin, and CausalConvWithState: reader, equivalent and float64 of each side by side."""
