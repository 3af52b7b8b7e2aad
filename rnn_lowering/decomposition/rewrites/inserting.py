"""`Inserter`: nodes and constants that come into a finished model, with names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.open_scopes import Names
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.scopes import add_constant, all_names


class Inserter:
    """Inserts nodes into the graphs of a model."""

    def __init__(self, model: ir.Model) -> None:
        self._names = Names(all_names(model))
        self._functions = {function.graph for function in model.functions.values()}

    def unique(self, hint: str) -> str:
        """Return a name that nothing in the model has."""
        return self._names.unique(hint)

    def before(
        self, node: ir.Node, operator: str, inputs: Sequence[ir.Value | None], attributes: Any = None
    ) -> ir.Value:
        """Insert a node with one output before another node; return its output."""
        hint = f"{node.name or node.op_type}/{operator}"
        new = ir.node(operator, inputs, attributes, name=self._names.unique(hint))
        new.outputs[0].name = self._names.unique(hint)
        assert isinstance(node.graph, ir.Graph)
        node.graph.insert_before(node, new)
        return new.outputs[0]

    def behind(
        self, value: ir.Value, operator: str, others: Sequence[ir.Value], attributes: Any = None, *, suffix: str
    ) -> None:
        """Put a node of a value and others in its place; the value itself gets a name with the suffix."""
        node = value.producer()
        assert node is not None
        assert isinstance(node.graph, ir.Graph)
        name = self._names.unique(f"{node.name or value.name}/{operator}")
        behind = ir.node(operator, [value, *others], attributes, name=name)
        node.graph.insert_after(node, behind)
        given = value.name
        take_over(value, behind.outputs[0])
        for slot, read in enumerate([value, *others]):
            behind.replace_input_with(slot, read)
        value.name = self._names.unique(f"{given}/{suffix}")

    def constant(self, node: ir.Node, numbers: object, dtype: Any = np.int64, hint: str = "constant") -> ir.Value:
        """Return a constant that a node and what is inserted before it can use: a function has no initializers."""
        tensor = ir.tensor(np.array(numbers, dtype))
        if node.graph in self._functions:
            return self.before(node, "Constant", (), {"value": tensor})
        assert isinstance(node.graph, ir.Graph)
        return add_constant(node.graph, self._names.unique(f"{node.name or node.op_type}/{hint}"), tensor)
