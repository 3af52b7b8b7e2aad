"""Models that are called chunk by chunk: where frames are, which states there are, how a host drives them."""
