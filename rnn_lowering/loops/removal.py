"""Put a value in the place of another; remove nodes, and what only they used."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.model.scopes import bodies_of
from rnn_lowering.model.sizes import merged


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Replace an output of a node by a value, which gets its name and what it declares."""
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name = name
    new.type = new.type or old.type
    new.shape = merged(new.shape, old.shape)
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)


def drop_unused(values: Sequence[ir.Value]) -> None:
    """Remove what only a removed node used, and what only that used."""
    pending = list(values)
    while pending:
        value = pending.pop()
        node = value.producer()
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        if node is None:
            if value.graph is not None and value.name is not None:
                value.graph.initializers.pop(value.name, None)
        elif node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            pending += values_used(node)
            detach(node)
            node.graph.remove(node, safe=True)


def detach(node: ir.Node) -> None:
    """Let a node that is dropped use nothing, nor the nodes in its bodies."""
    for inner in (node, *(n for body in bodies_of(node) for n in body.all_nodes())):
        for index in range(len(inner.inputs)):
            inner.replace_input_with(index, None)


def values_used(node: ir.Node) -> list[ir.Value]:
    """Return what a node and the nodes in its bodies use."""
    nodes = (node, *(inner for body in bodies_of(node) for inner in body.all_nodes()))
    return list(dict.fromkeys(value for each in nodes for value in each.inputs if value is not None))
