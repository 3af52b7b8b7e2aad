"""Infer types, shapes and small numbers of values, node by node, with sizes that are polynomials."""
