"""A stream, chunk by chunk, beside the original on whole sequences."""
