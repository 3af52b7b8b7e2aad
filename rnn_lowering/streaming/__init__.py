"""Models that are called chunk by chunk: where frames are, which states come out, how a host drives them."""
