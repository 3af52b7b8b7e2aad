"""Find the axis whose size a number is: a Loop that counts to T reads T rows."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.loops.facts import Facts, Item, Known
from rnn_lowering.spec.node_outputs import ELEMENTWISE
from rnn_lowering.spec.node_spec import DEFAULT_DOMAIN

Length = str | tuple[ir.Value, int]
"""A size: its name, or a value and its axis."""

_SAME_NUMBER = frozenset(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"))


def length_of_axis(facts: Facts, value: ir.Value, axis: int) -> Length:
    """Return the size of an axis of a value: equal ones are the same size."""
    while True:
        kind = facts.kind(value)
        size = None if kind is None or kind.shape is None else kind.shape[axis]
        if isinstance(size, str):
            return size
        node = value.producer()
        if node is None or node.domain not in DEFAULT_DOMAIN or not node.inputs or node.inputs[0] is None:
            return value, axis
        if node.op_type == "Transpose" and "perm" in node.attributes:
            axis = node.attributes["perm"].as_ints()[axis]
        elif node.op_type not in ELEMENTWISE or len(node.inputs) > 1:
            return value, axis
        value = node.inputs[0]


def length_in(facts: Facts, value: ir.Value) -> Length | None:
    """Return the size that a value of one element holds: an element of a Shape."""
    node = _behind(value, _SAME_NUMBER)
    axis: int | None = 0
    if node is not None and node.op_type in ("Gather", "Slice") and len(node.inputs) > 1:
        axis = _number(facts, node.inputs[1])
        source = node.inputs[0]
        node = None if source is None or _steps_back(facts, node) else _behind(source, ("Identity", "Cast"))
    if node is None or node.op_type != "Shape" or axis is None or node.inputs[0] is None:
        return None
    kind = facts.kind(node.inputs[0])
    if kind is None or kind.shape is None:
        return None
    axes = range(len(kind.shape))[_bound(node, "start") : _bound(node, "end")]
    return length_of_axis(facts, node.inputs[0], axes[axis]) if -len(axes) <= axis < len(axes) else None


def _behind(value: ir.Value, operators: frozenset[str] | tuple[str, ...]) -> ir.Node | None:
    """Return the node behind operators that keep numbers."""
    node = value.producer()
    while node is not None and node.domain in DEFAULT_DOMAIN and node.inputs and node.inputs[0] is not None:
        single = node.op_type == "Concat" and len(node.inputs) == 1
        if not single and node.op_type not in operators:
            return node
        node = node.inputs[0].producer()
    return None


def _number(facts: Facts, value: ir.Value | None) -> int | None:
    item: Item = None if value is None else facts.known(value)
    single = isinstance(item, Known) and item.array.size == 1
    return int(item.array.reshape(())) if single and isinstance(item, Known) else None


def _steps_back(facts: Facts, node: ir.Node) -> bool:
    """Whether a Slice does not take its elements from the start on, one after the other."""
    return node.op_type == "Slice" and len(node.inputs) > 4 and _number(facts, node.inputs[4]) != 1


def _bound(node: ir.Node, name: str) -> int | None:
    attribute = node.attributes.get(name)
    return None if attribute is None else attribute.as_int()
