"""The passes that users compose, and the report of what one did."""
