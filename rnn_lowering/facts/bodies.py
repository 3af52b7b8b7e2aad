"""The bodies of a node: the graphs in its attributes, and what they use; whether anything uses a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs in the attributes of a node."""
    if not node.attributes:
        return []
    return [graph for attribute in node.attributes.values() for graph in graphs_of(attribute)]


def graphs_of(attribute: ir.Attr) -> tuple[ir.Graph, ...]:
    """Return the graphs in an attribute; none if it has another type or is a reference."""
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else ()


def with_bodies(node: ir.Node) -> Iterator[ir.Node]:
    """Yield a node and the nodes in its bodies."""
    yield node
    for body in bodies_of(node):
        yield from body.all_nodes()


def values_used(node: ir.Node) -> list[ir.Value]:
    """Return what a node and the nodes in its bodies use, and what its bodies return."""
    used = [value for value in node.inputs if value is not None]
    return list(dict.fromkeys([*used, *_used_in(_graphs_in(node))]))


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Return what the bodies of a node use of the graphs around them."""
    graphs = _graphs_in(node)
    return list(dict.fromkeys(value for value in _used_in(graphs) if value.graph not in graphs))


def _graphs_in(node: ir.Node) -> list[ir.Graph]:
    """Return the bodies of a node, each with the bodies in it."""
    return [graph for body in bodies_of(node) for graph in (body, *body.subgraphs())]


def _used_in(graphs: Sequence[ir.Graph]) -> Iterator[ir.Value]:
    """Yield what the nodes of graphs use, and what the graphs return."""
    yield from (value for graph in graphs for node in graph for value in node.inputs if value is not None)
    yield from (value for graph in graphs for value in graph.outputs)


def is_used(value: ir.Value) -> bool:
    """Whether a node or the caller reads a value."""
    return bool(value.uses()) or value.is_graph_output()
