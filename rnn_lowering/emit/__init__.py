"""The language in which graphs are written: tensors, operators at an opset, names. Knows nothing of recurrence."""
