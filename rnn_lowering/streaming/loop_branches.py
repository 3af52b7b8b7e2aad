"""An If in the body of a Loop becomes a Where of its branches, so that the body is straight-line.

Both branches are computed in each step then. So no node of a branch may fail in a step that does not take it, the
condition may not depend on sizes or options, which may decide that, and both branches return the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import (
    bodies_of,
    default_opset,
    inputs_of,
    keeps_numbers,
    operator_of,
    reached,
    values_used,
)
from rnn_lowering.model.onnx_checks import infer_shapes
from rnn_lowering.model.scopes import all_names
from rnn_lowering.streaming.editor import input_of
from rnn_lowering.streaming.sizes import TimeInputs
from rnn_lowering.types import array_of

_BRANCHES = ("then_branch", "else_branch")

_FAIL_BY_SHAPE = (
    *("BatchNormalization", "CastLike", "Constant", "ConstantOfShape", "Conv", "Einsum", "Gemm"),
    *("LayerNormalization", "LogSoftmax", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    *("ReduceSum", "Softmax"),
)
"""Operators that may fail on values of some shapes, but not on some values of a shape."""

_DIVISIONS = ("Div", "Mod")
"""Operators that fail if an integer is divided by 0."""

_CHOSEN = {
    *(ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE),
    *(ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8),
}
"""Types of which onnxruntime has a Where."""


def choose_in_loops(model: ir.Model, time: TimeInputs, is_wanted: Callable[[ir.Node], bool]) -> None:
    """Put a Where in place of each If in the bodies of wanted Loops, where both branches can be computed."""
    loops = [node for node in model.graph if _is(node, "Loop") and is_wanted(node)]
    loops = [loop for loop in loops if any(_is(node, "If") for node in loop.attributes["body"].as_graph())]
    if not loops:
        return
    infer_shapes(model)
    for loop in loops:
        for value, initial in zip(loop.attributes["body"].as_graph().inputs[2:], loop.inputs[2:], strict=True):
            if value.shape is None and initial is not None:
                value.shape = initial.shape  # a Scan keeps the shapes of its states, or is refused
    infer_shapes(model)
    names, opset = Names(all_names(model)), default_opset(model.opset_imports)
    for loop in loops:
        body = loop.attributes["body"].as_graph()
        _choose_in(body, _Steps(body, opset, frozenset(time.axes)), names)


def _is(node: ir.Node, op_type: str) -> bool:
    return node.op_type == op_type and not node.domain


def _choose_in(graph: ir.Graph, steps: _Steps, names: Names) -> None:
    """Put a Where in place of each If of a graph: the body of a Loop, or a branch in it."""
    for node in [each for each in graph if _is(each, "If")]:
        branches = [node.attributes[name].as_graph() for name in _BRANCHES]
        for branch in branches:
            _choose_in(branch, steps, names)
        never_fail = all(steps.never_fails(each) for branch in branches for each in branch)
        if never_fail and steps.is_of_data(node.inputs[0]) and _have_equal_shapes(branches):
            _choose(node, branches, graph, names)


@dataclass(frozen=True)
class _Steps:
    """What may differ between the steps of a Loop.

    Attributes:
        body: Its body.
        opset: The opset of the model.
        streamed: The inputs of the model that have frames.
    """

    body: ir.Graph
    opset: int
    streamed: frozenset[str]

    def is_of_data(self, condition: ir.Value | None) -> bool:
        """Whether a value is computed from the number of the step, constants, states and frames, not from sizes."""

        def is_known(value: ir.Value) -> bool:
            return value in self.body.inputs or constant_of(value, self.opset) is not None

        def is_followed(value: ir.Value) -> bool:
            node = value.producer()
            if node is None:
                return value.name in self.streamed
            return not (bodies_of(node) or _is_size(node) or operator_of(node).random)

        sources = reached([condition], lambda value: [] if is_known(value) else inputs_of(value))
        return condition is not None and all(is_known(value) or is_followed(value) for value in sources)

    def never_fails(self, node: ir.Node) -> bool:
        """Whether a node succeeds in each step if it succeeds in one."""
        row = operator_of(node)
        if bodies_of(node) or row.random or node.domain:
            return False
        if node.op_type == "Gather":
            return self.is_number(input_of(node, 1)) and self.has_frames(input_of(node))
        if node.op_type in _DIVISIONS:
            divisor = None if node.inputs[1] is None else constant_of(node.inputs[1], self.opset)
            dtype = node.outputs[0].dtype
            never_zero = divisor is not None and bool(np.all(array_of(divisor)))
            return never_zero or (dtype is not None and dtype.is_floating_point())
        sizes = [] if row.data is None else [v for v in node.inputs[row.data :] if v is not None]
        by_shape = not row.may_fail or node.op_type in _FAIL_BY_SHAPE
        return by_shape and not any(self.differs(size) for size in sizes)

    def is_number(self, value: ir.Value) -> bool:
        """Whether a value is the number of the step, in any shape: what has a row for each step has that one."""
        node = value.producer()
        if node is None or not keeps_numbers(node):
            return value is self.body.inputs[0]
        return self.is_number(input_of(node))

    def has_frames(self, value: ir.Value) -> bool:
        """Whether a value is computed from frames; a table may have fewer rows than there are steps."""
        sources = reached([value], _used_but_sizes)
        return any(source.name in self.streamed and source.producer() is None for source in sources)

    def differs(self, size: ir.Value) -> bool:
        """Whether a size depends on numbers that differ between steps: that of the step, or a state."""
        for value in reached([size], _used_but_sizes):  # the shapes of the states stay
            node = value.producer()
            if value in self.body.inputs or (node is not None and bodies_of(node)):
                return True
        return False


def _used_but_sizes(value: ir.Value) -> list[ir.Value]:
    """Return what the node of a value uses, its bodies too; nothing of a node that reads a size."""
    node = value.producer()
    return [] if node is None or _is_size(node) else values_used(node)


def _is_size(node: ir.Node) -> bool:
    return node.op_type in ("Shape", "Size") and not node.domain


def _have_equal_shapes(branches: Sequence[ir.Graph]) -> bool:
    """Whether both branches are known to return the same shapes, so that a Where broadcasts nothing, of types that
    onnxruntime chooses from."""
    types = {value.dtype for branch in branches for value in branch.outputs}
    if not types <= _CHOSEN:
        return False
    shapes = [[value.shape for value in branch.outputs] for branch in branches]
    known = all(
        shape is not None and all(isinstance(dim, int) or dim.value is not None for dim in shape)
        for shape in shapes[0]
    )
    return known and shapes[0] == shapes[1]


def _choose(node: ir.Node, branches: Sequence[ir.Graph], graph: ir.Graph, names: Names) -> None:
    """Move the nodes of both branches in front of an If, and put a Where for each output in its place."""
    ends = [list(branch.outputs) for branch in branches]
    for branch in branches:
        _move(branch, node, graph, names)
    for output, first, second in zip(node.outputs, *ends, strict=True):
        where = ir.node("Where", [node.inputs[0], first, second])
        where.name = names.unique(f"{node.name}_where")
        chosen = where.outputs[0]
        chosen.name, chosen.type, chosen.shape = names.unique(f"{output.name}_where"), first.type, first.shape
        graph.insert_before(node, where)
        output.replace_all_uses_with(chosen, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _move(branch: ir.Graph, node: ir.Node, graph: ir.Graph, names: Names) -> None:
    """Move the nodes and constants of a branch in front of a node of another graph."""
    branch.outputs.clear()
    for value in list(branch.initializers.values()):
        branch.initializers.pop(value.name or "")
        value.name = names.unique(value.name or "constant")
        graph.register_initializer(value)
    for inner in list(branch):
        branch.remove(inner)
        inner.name = names.unique(inner.name or inner.op_type)
        for value in inner.outputs:
            value.name = names.unique(value.name) if value.name else value.name
        graph.insert_before(node, inner)
