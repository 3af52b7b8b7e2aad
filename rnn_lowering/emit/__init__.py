"""Emit graphs: tensors, primitive operators at each opset, names. Knows no recurrent node."""
