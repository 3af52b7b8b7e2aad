"""The passes that users compose, and their report."""
