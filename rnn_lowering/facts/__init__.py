"""What is known of a value, and what ONNX's operators do; imports nothing of recurrent nodes."""
