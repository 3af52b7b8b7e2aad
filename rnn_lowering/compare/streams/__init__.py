"""Compare a stream, chunk by chunk, with the original on whole sequences."""
