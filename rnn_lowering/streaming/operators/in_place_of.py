"""Nodes that are put in the place of a node before the frames are followed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.facts.parameters import inputs_and_attributes
from rnn_lowering.model.scopes import ORIGIN
from rnn_lowering.nodes.node_spec import node_ref
from rnn_lowering.types import Array


class InPlaceOf:
    """Emits nodes before a node, which errors name instead.

    Args:
        node: The node.
        names: The names of the model.
        opset: The opset of the model.
    """

    def __init__(self, node: ir.Node, names: Names, opset: int) -> None:
        self.node, self.names, self.opset = node, names, opset
        self.label = node.name or node.op_type.lower()
        self.origin = node.meta.get(ORIGIN) or node_ref(node)
        assert isinstance(node.graph, ir.Graph)
        self.graph = node.graph

    def __call__(
        self, op_type: str, *inputs: ir.Value, name: str = "", **attributes: int | float | Sequence[int]
    ) -> ir.Value:
        """Emit a node and return its output. Attributes that the operator takes as inputs become constants."""
        return self.several(1, op_type, *inputs, name=name, **attributes)[0]

    def several(
        self, count: int, op_type: str, *inputs: ir.Value, name: str = "", **attributes: int | float | Sequence[int]
    ) -> Sequence[ir.Value]:
        """Emit a node and return its outputs, so many."""
        all_inputs, rest = inputs_and_attributes(
            op_type, self.opset, inputs, attributes, lambda numbers: self.constant(np.array(numbers, np.int64))
        )
        made = [ir.convenience.convert_attribute(*each) for each in rest.items()]
        label = name or self.names.unique(f"{self.label}_{op_type}")
        node = ir.Node("", op_type, all_inputs, made, num_outputs=count, name=label)
        for output in node.outputs:
            output.name = self.names.unique(f"{label}_out")
        node.meta[ORIGIN] = self.origin
        self.graph.insert_before(self.node, [node])
        return node.outputs

    def constant(self, array: Array) -> ir.Value:
        name = self.names.unique(f"{self.label}_constant")
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(array, name=name))], name=name)
        node.outputs[0].name = name
        self.graph.insert_before(self.node, [node])
        return node.outputs[0]

    def numbers(self, *numbers: int) -> ir.Value:
        return self.constant(np.array(numbers, np.int64))

    def replace(self, new: ir.Value) -> None:
        """Let the readers of the node read `new`, and remove the node."""
        self.give(self.node.outputs[0], new)
        self.graph.remove(self.node, safe=True)

    def give(self, old: ir.Value, new: ir.Value) -> None:
        """Let the readers of an output of the node read `new`."""
        here = new.producer() is not None and new.graph is old.graph
        if old.is_graph_output() and (new.is_graph_output() or not here):
            new = self("Identity", new)
        new.type, new.shape = new.type or old.type, new.shape or old.shape
        name, is_output = old.name, old.is_graph_output()
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if is_output:
            old.name, new.name = None, name
