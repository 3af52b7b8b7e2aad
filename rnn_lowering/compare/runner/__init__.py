"""Run models with onnxruntime in a child process."""
