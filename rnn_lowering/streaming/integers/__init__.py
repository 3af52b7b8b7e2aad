"""Streams in integers, by onnxruntime's quantizer."""
