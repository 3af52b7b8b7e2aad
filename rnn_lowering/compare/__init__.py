"""Whether two models compute the same. Shares no code with what it checks."""
