"""The recurrent nodes in a whole model: its scopes, shapes, sizes and old opsets."""
