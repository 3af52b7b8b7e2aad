"""What a model does with an input, as far as random numbers for it must know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import helper, numpy_helper

from rnn_lowering.facts.operators import operator_of
from rnn_lowering.model.protobuf import bodies_in, nodes_in
from rnn_lowering.nodes.kinds import is_recurrent, role_of
from rnn_lowering.nodes.node_spec import AxisName, InputRole


@dataclass(frozen=True)
class Use:
    """The uses of an input.

    Attributes:
        axes: What runs along each axis, as a recurrent node reads it.
        bound: Indices are less than this.
        lengths: Whether it is the lengths of sequences.
        compared: The integers that it is compared with.
        bounds: Real numbers are between these.
        starts_a_loop: Whether it is the first state of a Loop or Scan.
    """

    axes: tuple[AxisName, ...] = ()
    bound: int | None = None
    lengths: bool = False
    compared: tuple[int, ...] = ()
    bounds: tuple[float, float] | None = None
    starts_a_loop: bool = False


def use_of(graph: onnx.GraphProto, name: str) -> Use:
    """Return the use of an input that says most."""
    for node, slot in _consumers(graph, name, depth=3):
        role = role_of(node, slot) if is_recurrent(node) else InputRole()
        if role.axes or role.is_lengths:
            return Use(axes=role.axes, lengths=role.is_lengths, bounds=role.bounds)
        if node.op_type == "ReverseSequence" and slot == 1:
            return Use(lengths=True)
        if node.op_type.startswith("Gather") and slot == 1:
            table = next((t for t in graph.initializer if t.name == node.input[0]), None)
            return Use(bound=table.dims[0] if table is not None else 1)
    if _starts_a_state(graph, {name}):
        return Use(axes=(None, "N"))
    starts = any(_is_state_of_a_loop(node, slot) for node, slot in _consumers(graph, name, depth=3))
    return Use(compared=tuple(_compared(graph, name)), starts_a_loop=starts)


def _is_state_of_a_loop(node: onnx.NodeProto, slot: int) -> bool:
    if node.op_type == "Loop":
        return slot >= 2  # the number of steps and the condition come first
    given = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    return node.op_type == "Scan" and slot < len(node.input) - given


def _compared(graph: onnx.GraphProto, name: str) -> Iterator[int]:
    """Yield the integers that a value is compared with: a branch may depend on them."""
    nodes = {output: node for node in graph.node for output in node.output}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node, slot in _consumers(graph, name, depth=3):
        if node.op_type == "Equal":
            other = node.input[1 - slot]
            values = (a.t for a in nodes[other].attribute if a.name == "value") if other in nodes else ()
            tensor = tensors.get(other) or next(iter(values), None)
            if tensor is not None and helper.tensor_dtype_to_np_dtype(tensor.data_type).kind in "iu":
                yield from numpy_helper.to_array(tensor).ravel().tolist()[:1]


def _starts_a_state(graph: onnx.GraphProto, names: set[str]) -> bool:
    """Return whether part of one of these values is the initial state of a node; the parts are added to `names`."""
    for node in graph.node:
        states = (name for n, name in enumerate(node.input) if is_recurrent(node) and role_of(node, n).is_state)
        if not names.isdisjoint(states):
            return True
        takes_part = operator_of(node).moves or node.op_type == "Cast"
        if takes_part and not names.isdisjoint(node.input[:1]):
            names.update(filter(None, node.output))
        for body in bodies_in(node):
            if _starts_a_state(body, names):
                return True
            outer = zip(node.output, body.output, strict=False)
            names.update(name for name, inner in outer if name and inner.name in names)
    return False


def _consumers(graph: onnx.GraphProto, name: str, depth: int) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the nodes that read a value, with the input's index; casts are followed, subgraphs searched."""
    for node in nodes_in(graph):
        for slot, given in enumerate(node.input):
            if given == name:
                yield node, slot
                if depth and node.op_type in ("Cast", "Identity"):
                    yield from _consumers(graph, node.output[0], depth - 1)
