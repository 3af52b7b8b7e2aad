"""Sequences of a known length become their elements: SplitToSequence with SequenceAt is a Split.

torch writes them for `chunk`, `split` and `unbind` where the length of a list is not known to the exporter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.draft import Names
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.model.onnx_checks import infer_shapes
from rnn_lowering.model.scopes import all_names
from rnn_lowering.streaming.operators.in_place_of import InPlaceOf
from rnn_lowering.types import Array, array_of

_READERS = ("SequenceAt", "ConcatFromSequence")
"""Not SequenceLength: the length may be the number of frames that the exporter fixed."""

_MOST_ELEMENTS = 1 << 12
"""A longer sequence stays."""


def expand_sequences(model: ir.Model) -> None:
    """Let nodes read the elements of sequences, in the main graph and its branches. A sequence whose length is not
    known, or that a Loop, an If or an output of the model reads, stays."""
    nodes = [node for node in model.graph.all_nodes() if node.op_type in _READERS and node.domain == ""]
    if not nodes:
        return
    infer_shapes(model)
    expansion = _Expansion(Names(all_names(model)), default_opset(model.opset_imports))
    for node in nodes:
        expansion.read(node)


class _Expansion:
    """The elements of the sequences of a model, found as nodes read them."""

    def __init__(self, names: Names, opset: int) -> None:
        self.names, self.opset = names, opset
        self.found: dict[ir.Value, list[ir.Value] | None] = {}

    def read(self, node: ir.Node) -> None:
        """Replace a node that reads a sequence with nodes that read its elements, if these are known."""
        sequence = node.inputs[0]
        elements = None if sequence is None else self.elements(sequence)
        if elements is None:
            return
        emit = InPlaceOf(node, self.names, self.opset)
        if node.op_type == "SequenceAt":
            position = self._position(node, 1, len(elements))
            if position is not None:
                emit.replace(elements[position])
        elif elements:
            axis = node.attributes.get_int("axis", 0) or 0
            if node.attributes.get_int("new_axis", 0):
                elements = [emit("Unsqueeze", element, axes=[axis]) for element in elements]
            emit.replace(emit("Concat", *elements, axis=axis))

    def elements(self, sequence: ir.Value) -> list[ir.Value] | None:
        """Return the elements of a sequence; None if they are not known."""
        if sequence not in self.found:
            node = sequence.producer()
            made = None if node is None or node.domain else self._made(node)
            self.found[sequence] = None if made is None or len(made) > _MOST_ELEMENTS else made
        return self.found[sequence]

    def _made(self, node: ir.Node) -> list[ir.Value] | None:
        """Return the elements of the sequence that a node returns."""
        if node.op_type == "SequenceEmpty":
            return []
        if node.op_type == "SequenceConstruct":
            return [value for value in node.inputs if value is not None]
        if node.op_type == "SplitToSequence":
            return self._split(node)
        if node.op_type not in ("SequenceInsert", "SequenceErase"):
            return None
        before = node.inputs[0]
        elements = None if before is None else self.elements(before)
        if elements is None:
            return None
        if node.op_type == "SequenceErase":
            position = self._position(node, 1, len(elements))
            return None if position is None else elements[:position] + elements[position + 1 :]
        position, new = self._position(node, 2, len(elements)), node.inputs[1]
        return None if position is None or new is None else [*elements[:position], new, *elements[position:]]

    def _position(self, node: ir.Node, slot: int, length: int) -> int | None:
        """Return the position in a sequence that an input of a node names; None if it is not known or not there."""
        value = node.inputs[slot] if slot < len(node.inputs) else None
        if value is None:  # behind the last element, or the last one
            return length if node.op_type == "SequenceInsert" else length - 1 if length else None
        number = self._constant(value)
        last = length if node.op_type == "SequenceInsert" else length - 1
        if number is None or number.size != 1 or not -length <= int(number.item()) <= last:
            return None
        position = int(number.item())
        return position + length if position < 0 else position

    def _split(self, node: ir.Node) -> list[ir.Value] | None:
        """Return the parts of a value that a SplitToSequence splits: the outputs of a Split."""
        value, sizes = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
        if value is None or value.shape is None or len(value.shape) == 0:
            return None
        axis = (node.attributes.get_int("axis", 0) or 0) % len(value.shape)
        numbers = np.array(1) if sizes is None else self._constant(sizes)
        parts = None if numbers is None else _sizes_of_parts(numbers, value.shape[axis])
        if not parts:
            return None
        emit = InPlaceOf(node, self.names, self.opset)
        elements = list(emit.several(len(parts), "Split", value, axis=axis, split=parts))
        if sizes is None and not node.attributes.get_int("keepdims", 1):
            elements = [emit("Squeeze", element, axes=[axis]) for element in elements]
        return elements

    def _constant(self, value: ir.Value) -> Array | None:
        tensor = constant_of(value, self.opset)
        return None if tensor is None else array_of(tensor)


def _sizes_of_parts(sizes: Array, length: int | ir.SymbolicDim) -> Sequence[int] | None:
    """Return the sizes of the parts of an axis: those that are given, or all of one size and a smaller last one."""
    if sizes.ndim:
        return [int(size) for size in sizes.tolist()]
    size = int(sizes)
    if not isinstance(length, int) or size < 1 or length > _MOST_ELEMENTS:
        return None
    return [min(size, length - start) for start in range(0, length, size)]
