"""What is known of a value, and what ONNX's operators do; knows onnx, nothing of recurrence."""
