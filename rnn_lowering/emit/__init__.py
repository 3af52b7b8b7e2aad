"""Emit graphs: tensors, primitive operators at each opset, names. Knows nothing of recurrence."""
