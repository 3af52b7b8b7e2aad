"""Where the axes of a value come from: the input of a node whose axis has the same rows, one operator at a time.

`origin_of` follows an axis back while its size stays the same, `input_moved` a value while its elements do. What an
operator does to its axes is in `facts/operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.axes import Axes, AxisRule, Label, Mixed, NodeShapes
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import DEFAULT_DOMAIN, operator_of
from rnn_lowering.facts.parameters import parameter
from rnn_lowering.nodes.cell import CELLS
from rnn_lowering.types import Array, array_of

_MOST_AXES = 8
"""Maximum rank of an input that no shape declares."""


@dataclass(frozen=True)
class Output:
    """An output of a node, and its rank."""

    node: ir.Node
    rank: int
    opset: int

    def constant(self, place: int) -> ir.TensorProtocol | None:
        """Return an input of the node that is a constant."""
        value = self.node.inputs[place] if place < len(self.node.inputs) else None
        return None if value is None else constant_of(value, self.opset)

    def numbers(self, name: str) -> list[int] | None:
        """Return a parameter of integers: none if it is absent, None if it is not constant."""
        given = parameter(self.node, name, self.opset)
        if given is None:
            return []
        if isinstance(given, ir.Attr):
            return [*given.as_ints()]
        tensor = constant_of(given, self.opset)
        return None if tensor is None else [int(n) for n in array_of(tensor).reshape(-1)]

    def axes(self) -> Axes | None:
        """Return how the node uses its axes; None if unknown. An undeclared rank follows from the output."""
        rule = operator_of(self.node).axes
        if rule is None:
            return None
        given = [(n, value) for n, value in enumerate(self.node.inputs) if value is not None]
        ranks = {value: rank for n, value in given if (rank := self._rank(n)) is not None}
        undeclared = next((value for _, value in given if value not in ranks), None)
        tried = [ranks] if undeclared is None else [{**ranks, undeclared: n} for n in range(_MOST_AXES)]
        numbers = cache(self.numbers)  # each rank that is tried asks for them
        found = [
            axes for each in tried if (axes := self._axes_at(rule, each, numbers)) and len(axes.output) == self.rank
        ]
        return found[0] if len(found) == 1 else None

    def _axes_at(
        self, rule: AxisRule, ranks: Mapping[ir.Value, int], numbers: Callable[[str], list[int] | None]
    ) -> Axes | None:
        """Return how the node uses its axes by a rule, if its inputs have these ranks."""

        def shape(value: ir.Value) -> list[None]:
            return [None] * (self.rank if value is self.node.outputs[0] else ranks[value])

        try:
            return rule(NodeShapes(self.node, self.opset, shape, numbers))
        except (LookupError, ValueError, ArithmeticError, TypeError):  # an unknown rank, or an invalid node
            return None

    def _rank(self, place: int) -> int | None:
        tensor = self.constant(place)
        return _rank(self.node.inputs[place]) if tensor is None else len(tensor.shape)


def origin_of(value: ir.Value, axis: int, opset: int) -> tuple[ir.Value, int]:
    """Follow an axis of a value of rank 3 back while its size stays the same."""
    rank = 3
    while (node := value.producer()) is not None and (value.index() == 0 or node.op_type == "Split"):
        found = _source(Output(node, rank, opset), axis)
        if found is None:
            break
        value, axis, rank = found
    return value, axis


def _source(out: Output, axis: int) -> tuple[ir.Value, int, int] | None:
    """Return the input that has the size of an axis of the output, the axis there, and its rank."""
    node, found = out.node, _recurrent(out.node) or out.axes()
    if found is None or found.repeats:
        return None
    label = found.output[axis]
    label = label.label if isinstance(label, Mixed) else label
    slots = [slot for slot, labels in found.inputs.items() if label in labels]
    if not (operator_of(node).same_shape or operator_of(node).moves):  # an axis of size 1 may be broadcast
        slots = [slot for slot in slots if not _has_size_1(out.constant(slot), found.inputs[slot], label)]
        slots = slots if len(slots) == 1 else []
    source = node.inputs[slots[0]] if slots else None
    if source is None or label is None:
        return None
    labels = found.inputs[slots[0]]
    return source, labels.index(label), len(labels)


def _has_size_1(tensor: ir.TensorProtocol | None, labels: Sequence[Label], label: Label | None) -> bool:
    return tensor is not None and label is not None and tensor.shape[labels.index(label)] == 1


def _recurrent(node: ir.Node) -> Axes | None:
    """Return how RNN, GRU and LSTM use the axes of X and Y; None for any other node."""
    if ("", node.op_type) not in CELLS or node.domain not in DEFAULT_DOMAIN:
        return None
    batch_first = node.attributes.get_int("layout", 0)
    X, Y = ("NTI", "NTDH") if batch_first else ("TNI", "TDNH")
    return Axes({0: X}, Y)


def input_moved(out: Output, axes: list[str]) -> tuple[int, list[str]] | None:
    """Return the input whose elements an output has, moved or plus a constant, as its number and its axes."""
    if operator_of(out.node).keeps_axes:
        found = out.axes()
        if found is None:
            return None
        places = [found.output.index(label) if label in found.output else None for label in found.inputs[0]]
        return 0, ["1" if place is None else axes[place] for place in places]
    if out.node.op_type == "Reshape" and _merges_directions(out) and axes[2:] == ["H"]:
        return 0, [*axes[:2], "1", "H"]
    constant = _place_added(out, axes) if out.node.op_type == "Add" else None
    return None if constant is None else (1 - constant, axes)


def _place_added(out: Output, axes: list[str]) -> int | None:
    """Return the number of the operand of an Add that is a constant, finite and the same at every step and row."""
    if out.node.attributes:  # of opset 6 and earlier: axis aligns other axes
        return None
    for place in (1, 0):
        tensor = out.constant(place)
        if tensor is None or len(tensor.shape) > len(axes):
            continue
        sizes = (1,) * (len(axes) - len(tensor.shape)) + tuple(tensor.shape.numpy())
        same = all(size == 1 or axis == "H" for size, axis in zip(sizes, axes, strict=True))
        if same and _is_finite(tensor):
            return place
    return None


def _is_finite(tensor: ir.TensorProtocol) -> bool:
    numbers: Array = array_of(tensor)
    return tensor.dtype.is_floating_point() and bool(np.isfinite(numbers.astype(np.float64)).all())


def _merges_directions(out: Output) -> bool:
    """Return whether a Reshape merges directions and hidden size as exporters do: rank 4 to [0, 0, -1]."""
    shape = out.constant(1)
    if shape is None or out.node.attributes.get_int("allowzero") or _rank(out.node.inputs[0]) != 4:
        return False
    return array_of(shape).reshape(-1).tolist() == [0, 0, -1]


def _rank(value: ir.Value | None) -> int | None:
    """Return the rank of a value: the declared rank, or the rank that a Transpose gives."""
    if value is None:
        return None
    node = value.producer()
    perm = node.attributes.get("perm") if node is not None and node.op_type == "Transpose" else None
    if perm is not None and not perm.is_ref():
        return len(perm.as_ints())
    return None if value.shape is None else value.shape.rank()
