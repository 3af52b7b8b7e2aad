"""The recurrent nodes of a whole model: scopes, shapes, sizes, old opsets, and their replacement."""
