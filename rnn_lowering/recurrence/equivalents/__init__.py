"""The equivalents of nodes: what is emitted in place of each kind."""
