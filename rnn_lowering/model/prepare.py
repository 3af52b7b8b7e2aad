"""Sorting the nodes of a model."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError

SORTED = "sorted the nodes by their dependencies"


def sort_nodes(model: ir.Model) -> bool:
    """Sort the nodes of every graph by their dependencies, in place; return False if they were sorted already.

    Raises:
        UnsupportedError: A value depends on itself.
    """
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    if all(_is_sorted(graph) for graph in graphs):
        return False
    try:
        for graph in graphs:
            graph.sort()
    except ValueError as error:
        raise UnsupportedError(
            f"the nodes cannot be sorted: {error}", hint="does a value depend on itself?"
        ) from error
    return True


def _is_sorted(graph: ir.Graph) -> bool:
    """Return whether every node, also in bodies, comes after those whose values it uses."""
    behind: set[ir.Node] = set()
    homes = {graph, *graph.subgraphs()}
    for node in graph.all_nodes():
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer.graph in homes and producer not in behind:
                return False
        behind.add(node)
    return True
