"""Where the axes of a value come from: the input of a node whose axis has the same rows, one operator at a time.

`origin_of` follows an axis back while its size stays the same, `input_moved` a value while its elements do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.facts.parameters import parameter
from rnn_lowering.nodes.cell import CELLS
from rnn_lowering.types import Array, array_of


@dataclass(frozen=True)
class Output:
    """An output of a node, its number and rank."""

    node: ir.Node
    number: int
    rank: int
    opset: int

    def attribute(self, name: str) -> Any:
        given = self.node.attributes.get(name)
        return None if given is None or given.is_ref() else given.value

    def constant(self, place: int) -> ir.TensorProtocol | None:
        """Return an input of the node that is a constant."""
        value = self.node.inputs[place] if place < len(self.node.inputs) else None
        return None if value is None else constant_of(value, self.opset)

    def axes(self) -> list[int] | None:
        """Return the axes that are given, by an attribute or a constant input; None if there is neither."""
        axes = parameter(self.node, "axes", self.opset)
        if isinstance(axes, ir.Attr):
            return list(axes.as_ints())
        tensor = None if axes is None else constant_of(axes, self.opset)
        return None if tensor is None else [int(n) for n in array_of(tensor).reshape(-1)]


def origin_of(value: ir.Value, axis: int, opset: int) -> tuple[ir.Value, int]:
    """Follow an axis of a value of rank 3 back while its size stays the same."""
    rank = 3
    while (node := value.producer()) is not None and node.domain in DEFAULT_DOMAIN and node.op_type in _RULES:
        place, axes = _RULES[node.op_type](Output(node, value.index() or 0, rank, opset)) or (0, [])
        source = node.inputs[place]
        if source is None or axis not in axes:
            break
        value, axis, rank = source, axes.index(axis), len(axes)
    return value, axis


def input_moved(out: Output, axes: list[str]) -> tuple[int, list[str]] | None:
    """Return the input whose elements an output has, moved or plus a constant, as its number and its axes."""
    if out.node.op_type in _MOVES:
        found = _RULES[out.node.op_type](out)
        return None if found is None else (found[0], ["1" if n is None else axes[n] for n in found[1]])
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
    if shape is None or out.attribute("allowzero") or _rank(out.node.inputs[0]) != 4:
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


Source = tuple[int, list[int | None]] | None
"""The number of an input of a node, and for each axis of that input the axis of the output that has its size; None
if none has. A rule returns None if nothing is known."""


def _kept(out: Output) -> Source:
    return None if out.number else (0, [*range(out.rank)])


def _transposed(out: Output) -> Source:
    perm = out.attribute("perm") or list(reversed(range(out.rank)))
    return (0, [perm.index(n) for n in range(out.rank)]) if sorted(perm) == [*range(out.rank)] else None


def _squeezed(out: Output) -> Source:
    axes = out.axes()
    if axes is None:
        return None
    before, left = out.rank + len(axes), iter(range(out.rank))
    dropped = {n % before for n in axes}
    return (0, [None if n in dropped else next(left) for n in range(before)]) if len(dropped) == len(axes) else None


def _unsqueezed(out: Output) -> Source:
    axes = out.axes()
    return None if axes is None else (0, [n for n in range(out.rank) if n not in {m % out.rank for m in axes}])


def _sliced(out: Output) -> Source:
    axes = out.axes()
    return None if axes is None else (0, _but(out, axes))


def _split_or_joined(out: Output) -> Source:
    return 0, _but(out, [out.attribute("axis") or 0])


def _but(out: Output, axes: Sequence[int]) -> list[int | None]:
    """Return the axes of an output, None in place of these."""
    changed = {n % out.rank for n in axes}
    return [None if n in changed else n for n in range(out.rank)]


def _reshaped(out: Output) -> Source:
    """Handle a Reshape that copies the first axes."""
    shape, rank = out.constant(1), _rank(out.node.inputs[0])
    if shape is None or rank is None or out.attribute("allowzero"):
        return None
    copied = [*takewhile(lambda size: size == 0, array_of(shape).reshape(-1))]
    return 0, [n if n < len(copied) else None for n in range(rank)]


def _multiplied(out: Output) -> Source:
    """Handle a product with a constant matrix."""
    matrix = out.constant(1)
    return (0, _but(out, [-1])) if matrix is not None and len(matrix.shape) == 2 else None


def _with_constant(out: Output) -> Source:
    """Handle an element-wise operator with a constant operand: an axis of size 1 there has the other's size."""
    for place in (1, 0):
        tensor = out.constant(place)
        if tensor is not None and len(tensor.shape) < out.rank:
            sizes = (1,) * (out.rank - len(tensor.shape)) + tuple(tensor.shape.numpy())
            return 1 - place, [n if size == 1 else None for n, size in enumerate(sizes)]
    return None


def _recurrent(out: Output) -> Source:
    """Handle Y [seq, directions, batch, hidden], with layout 1 [batch, seq, directions, hidden]."""
    return None if out.number else (0, [0, 1 if out.attribute("layout") else 2, None])


_ELEMENTWISE = (
    *("Identity", "Cast", "Relu", "Sigmoid", "Tanh", "LeakyRelu", "PRelu", "Elu", "Selu", "Softplus", "Softsign"),
    *("HardSigmoid", "Gelu", "Erf", "Neg", "Abs", "Exp", "Log", "Sqrt", "Clip", "Dropout", "Softmax", "LogSoftmax"),
    *("LayerNormalization", "BatchNormalization", "InstanceNormalization"),
)

_MOVES = ("Identity", "Transpose", "Squeeze", "Unsqueeze")
"""Operators whose output has the elements of the input."""

_RULES: dict[str, Callable[[Output], Source]] = {
    **dict.fromkeys(_ELEMENTWISE, _kept),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), _with_constant),
    **dict.fromkeys(("Split", "Concat"), _split_or_joined),
    **dict.fromkeys((name for domain, name in CELLS if not domain), _recurrent),
    "Transpose": _transposed,
    "Slice": _sliced,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "MatMul": _multiplied,
    "Reshape": _reshaped,
}
