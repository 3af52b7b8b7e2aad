"""What a model does with each of its inputs: indices, lengths, the state of a recurrent node, ..."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper, numpy_helper

from rnn_lowering.facts.operators import operator_of
from rnn_lowering.model.protobuf import bodies_in, nodes_in
from rnn_lowering.nodes.kinds import AxisName, InputRole, is_recurrent, role_of


@dataclass(frozen=True)
class Use:
    """The uses of an input.

    Attributes:
        axes: What runs along each axis, as a recurrent node reads it.
        bound: Indices are less than this.
        lengths: Whether it is the lengths of sequences.
        cases: The integers that it is compared with.
        bounds: Real numbers are between these.
        starts_a_loop: Whether it is the first state of a Loop or Scan.
    """

    axes: tuple[AxisName, ...] = ()
    bound: int | None = None
    lengths: bool = False
    cases: tuple[int, ...] = ()
    bounds: tuple[float, float] | None = None
    starts_a_loop: bool = False


_PASSING = ("Cast", "Identity")
"""Operators whose consumers count as those of their input."""


def uses_of(graph: onnx.GraphProto, names: Iterable[str]) -> dict[str, Use]:
    """Return the use of each input that says most, by name."""
    names = list(names)
    consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = {name: [] for name in names}
    for node in nodes_in(graph):
        if consumers.keys().isdisjoint(node.input):
            continue
        for slot, name in enumerate(node.input):
            if name in consumers:
                consumers[name].append((node, slot))
        if node.op_type in _PASSING:
            consumers.setdefault(node.output[0], [])
    return {name: _use(graph, name, list(_followed(consumers, name, 3))) for name in names}


def _use(graph: onnx.GraphProto, name: str, consumers: Sequence[tuple[onnx.NodeProto, int]]) -> Use:
    for node, slot in consumers:
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
    starts = any(_is_state_of_a_loop(node, slot) for node, slot in consumers)
    return Use(cases=tuple(_cases(graph, consumers)), starts_a_loop=starts)


def _is_state_of_a_loop(node: onnx.NodeProto, slot: int) -> bool:
    if node.op_type == "Loop":
        return slot >= 2  # the number of steps and the condition come first
    given = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    return node.op_type == "Scan" and slot < len(node.input) - given


def _cases(graph: onnx.GraphProto, consumers: Sequence[tuple[onnx.NodeProto, int]]) -> Iterator[int]:
    """Yield the integers that a value is compared with: a branch may depend on them."""
    for node, slot in consumers:
        if node.op_type == "Equal":
            other = node.input[1 - slot]
            made = (a.t for n in graph.node if other in n.output for a in n.attribute if a.name == "value")
            tensor = next((t for t in graph.initializer if t.name == other), None) or next(made, None)
            if tensor is not None and helper.tensor_dtype_to_np_dtype(tensor.data_type).kind in "iu":
                yield from numpy_helper.to_array(tensor).ravel().tolist()[:1]


def _starts_a_state(graph: onnx.GraphProto, names: set[str]) -> bool:
    """Return whether part of one of these values is the initial state of a node; the parts are added to `names`."""
    for node in graph.node:
        bodies = list(bodies_in(node))
        if not bodies and names.isdisjoint(node.input):
            continue
        states = (name for n, name in enumerate(node.input) if is_recurrent(node) and role_of(node, n).is_state)
        if not names.isdisjoint(states):
            return True
        takes_part = operator_of(node).moves or node.op_type == "Cast"
        if takes_part and not names.isdisjoint(node.input[:1]):
            names.update(filter(None, node.output))
        for body in bodies:
            if _starts_a_state(body, names):
                return True
            outer = zip(node.output, body.output, strict=False)
            names.update(name for name, inner in outer if name and inner.name in names)
    return False


def _followed(
    consumers: Mapping[str, Sequence[tuple[onnx.NodeProto, int]]], name: str, depth: int
) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the nodes that read a value, with the input's index, and those behind casts of it."""
    for node, slot in consumers.get(name, ()):
        yield node, slot
        if depth and node.op_type in _PASSING:
            yield from _followed(consumers, node.output[0], depth - 1)


def length_inputs(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the inputs that are sequence lengths."""
    return {name for name, use in uses_of(graph, [value.name for value in graph.input]).items() if use.lengths}
