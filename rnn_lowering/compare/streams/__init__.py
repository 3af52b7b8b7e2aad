"""The comparison of a stream with the original: sequences, and outputs of chunks beside those of the whole."""
