"""Model files: reading, writing, external data."""
