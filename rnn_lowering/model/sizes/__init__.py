"""Sizes in a whole model: those that ONNX infers, that users give, and that follow from them."""
