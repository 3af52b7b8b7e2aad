"""Models that are called chunk by chunk: their frames, their states, and how to run them."""
