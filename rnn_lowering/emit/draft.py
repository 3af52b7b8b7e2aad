"""A graph or body that is being built."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant


@dataclass
class Draft:
    """A (sub)graph under construction.

    Attributes:
        nodes, initializers: Those that were added.
        cache: The values of its constants by `Constant.key`; earlier nodes may have brought some of them.
        added: The keys of the constants that were added.
        matrices: The products of rank 2.
    """

    nodes: list[ir.Node] = field(default_factory=list)
    initializers: list[ir.Value] = field(default_factory=list)
    cache: dict[Hashable, ir.Value] = field(default_factory=dict)
    added: list[Hashable] = field(default_factory=list)
    matrices: set[ir.Value] = field(default_factory=set)

    def prune(self, outputs: Collection[ir.Value] = ()) -> None:
        """Remove unused nodes and constants; `outputs` are the future ones of the graph."""
        wanted = set(outputs)

        def is_used(value: ir.Value) -> bool:
            return bool(value.uses()) or value.is_graph_output() or value in wanted

        for node in reversed(self.nodes):
            if not any(map(is_used, node.outputs)):
                _detach(node)
        self.nodes[:] = [node for node in self.nodes if any(map(is_used, node.outputs))]
        self.initializers[:] = filter(is_used, self.initializers)
        for key in self.added:
            if not is_used(self.cache[key]):
                del self.cache[key]

    def abandon(self) -> None:
        """Disconnect the nodes from their inputs, and forget the constants."""
        for node in self.nodes:
            _detach(node)
        for key in self.added:
            self.cache.pop(key, None)

    def initializer(self, name: str, constant: Constant) -> ir.Value:
        """Add a constant as an initializer."""
        kind, shape = ir.TensorType(constant.dtype), ir.Shape(constant.shape)
        value = ir.Value(name=name, type=kind, shape=shape, const_value=constant.tensor(name))
        self.initializers.append(value)
        return value

    def computes(self, value: ir.Value) -> bool:
        """Return whether one of the nodes computes a value; a Constant does not count, it may be shared."""
        producer = value.producer()
        if producer is None or producer.op_type == "Constant":
            return False
        return any(node is producer for node in reversed(self.nodes))


def _detach(node: ir.Node) -> None:
    """Disconnect a node and the nodes in its bodies from their inputs."""
    graphs = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH and not a.is_ref()]
    for inner in (node, *(each for graph in graphs for each in graph.all_nodes())):
        for index in range(len(inner.inputs)):
            inner.replace_input_with(index, None)
