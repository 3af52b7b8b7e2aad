"""`AdaptedModel`: a model that is adapted to a runtime: what is known of it, and how nodes come into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, inputs_and_attributes
from rnn_lowering.model.model_sizes import inferred_values, take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import add_constant, all_names, standard_nodes


class AdaptedModel:
    """A model whose nodes are replaced by others, with names of their own.

    Attributes:
        model: The model, which is changed in place.
        graph: Its main graph.
        opset: The version of its operators.
    """

    def __init__(self, model: ir.Model, replaces: Sequence[Callable[[AdaptedModel], set[ir.Node]]] = ()) -> None:
        self.model, self.graph, self.opset = model, model.graph, default_opset(model.opset_imports)
        self._replaces = replaces
        self._functions = {function.graph for function in model.functions.values()}

    # What is known of it

    @cached_property
    def known(self) -> dict[ir.Value, ir.Value]:
        """For each computed value one whose type and shape follow from the inputs, as of the first question."""
        return dict(inferred_values(self.model))

    @cached_property
    def replaced(self) -> set[ir.Node]:
        """The nodes that adaptations replace, as each of `replaces` says of the model."""
        return {node for replaced_by in self._replaces for node in replaced_by(self)}

    def shape_of(self, value: ir.Value | None) -> ir.Shape | None:
        return None if value is None else self.known.get(value, value).shape

    def dtype_of(self, value: ir.Value | None) -> ir.DataType | None:
        return None if value is None else self.known.get(value, value).dtype

    def constant_of(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        return constant_of(value, self.opset)

    def nodes(self, *operators: str, since: int = 1, in_functions: bool = True) -> list[ir.Node]:
        """Return the nodes of some of ONNX's operators, in all scopes from an opset on."""
        scoped_nodes = standard_nodes(self.model, *operators)
        return [n for scope, n in scoped_nodes if scope.opset >= since and (in_functions or scope.function is None)]

    # What comes into it

    @cached_property
    def _names(self) -> Names:
        return Names(all_names(self.model))

    def unique(self, hint: str) -> str:
        """Return a name that nothing in the model has."""
        return self._names.unique(hint)

    def before(
        self, node: ir.Node, operator: str, inputs: Sequence[ir.Value | None], /, **parameters: Any
    ) -> ir.Value:
        """Insert a node with one output before another node; return its output. Parameters that the operator takes
        as inputs become constants."""
        slots, attributes = inputs_and_attributes(
            operator, self.opset, inputs, parameters, lambda numbers: self.constant(node, numbers)
        )
        hint = f"{node.name or node.op_type}/{operator}"
        new = ir.node(operator, slots, attributes, name=self.unique(hint))
        new.outputs[0].name = self.unique(hint)
        _graph_of(node).insert_before(node, new)
        return new.outputs[0]

    def behind(
        self, value: ir.Value, operator: str, others: Sequence[ir.Value], attributes: Any = None, *, suffix: str
    ) -> None:
        """Put a node of a value and others in its place; the value itself gets a name with the suffix."""
        node = value.producer()
        assert node is not None
        name = self.unique(f"{node.name or value.name}/{operator}")
        behind = ir.node(operator, [value, *others], attributes, name=name)
        _graph_of(node).insert_after(node, behind)
        given = value.name
        take_over(value, behind.outputs[0])
        for slot, read in enumerate([value, *others]):
            behind.replace_input_with(slot, read)
        value.name = self.unique(f"{given}/{suffix}")

    def constant(self, node: ir.Node, numbers: object, dtype: Any = np.int64, hint: str = "constant") -> ir.Value:
        """Return a constant that a node and what is inserted before it can use: a function has no initializers."""
        tensor = ir.tensor(np.array(numbers, dtype))
        if node.graph in self._functions:
            return self.before(node, "Constant", (), value=tensor)
        return add_constant(_graph_of(node), self.unique(f"{node.name or node.op_type}/{hint}"), tensor)

    def replace(self, node: ir.Node, value: ir.Value, unused: Iterable[ir.Value | None] = ()) -> None:
        """Let a value take over the output of a node, and remove the node.

        Args:
            node: The node.
            value: The value.
            unused: Inputs of the node, whose nodes are removed too if nothing else reads them.
        """
        take_over(node.outputs[0], value)
        _graph_of(node).remove(node, safe=True)
        drop_unused(unused)


def _graph_of(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph
