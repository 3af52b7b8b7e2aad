"""The step equations of recurrent nodes, their repetition over time, and the equivalents of whole nodes."""
