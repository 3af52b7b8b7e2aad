"""Models as onnxruntime runs them, in a child process."""
