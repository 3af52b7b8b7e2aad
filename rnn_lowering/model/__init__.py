"""Recurrent nodes in a whole model: scopes, sizes, old opsets, replacement."""
