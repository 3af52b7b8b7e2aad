"""Operators that a runtime lacks, by ONNX's own tests, and what is put in their place."""
