"""What runs models: onnxruntime, in a child process."""
