"""Compare a stream with the original: the sequences, then chunk by chunk."""
