"""What calls a stream: the metadata for any host, `rl.Stream`, and the calls for a quantizer."""
