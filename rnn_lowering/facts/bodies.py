"""The bodies of a node: the graphs in its attributes, and what they use."""

from __future__ import annotations

from collections.abc import Iterator

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
    used = [value for each in with_bodies(node) for value in each.inputs]
    used += [value for body in bodies_of(node) for graph in (body, *body.subgraphs()) for value in graph.outputs]
    return list(dict.fromkeys(value for value in used if value is not None))


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Return what the bodies of a node use of the graphs around them."""
    graphs = [graph for body in bodies_of(node) for graph in (body, *body.subgraphs())]
    used = [value for graph in graphs for each in graph for value in each.inputs]
    used += [value for graph in graphs for value in graph.outputs]
    return list(dict.fromkeys(value for value in used if value is not None and value.graph not in graphs))
