"""Zeros and counts of sizes that may be known at run time only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.emit.constants import literal, zeros_of
from rnn_lowering.emit.ops import Ops, is_short
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.emit.versions import since
from rnn_lowering.types import Dims

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64


def zeros(op: Ops, sizes: Sequence[Tensor]) -> Tensor:
    """Return zeros of the recurrence's type; each size is an int64 [1]."""
    dims = tuple(size.number for size in sizes)
    if None not in dims and is_short(math.prod(static(dims))):
        return op.known(zeros_of(op.dtype, static(dims)))
    return _full_of_zeros(op, op.concat(sizes, axis=0), dims)


@since(1)
def _full_of_zeros(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    """Return zeros of the recurrence's type and of a shape that is computed; `dims` is what is known of it."""
    return op.emit("Tile", [op.known(zeros_of(op.dtype, (1,) * len(dims))), shape], [dims])[0]


@_full_of_zeros.since(9)
def _full_of_zeros_9(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    value = zeros_of(op.dtype, (1,)).tensor("")
    found: Tensor | None = op.substitute("ConstantOfShape", shape, dims)
    return found or op.emit("ConstantOfShape", [shape], [dims], value=value)[0]


def count(op: Ops, length: Tensor) -> Tensor:
    """Return 0, 1, ..., length - 1 as int64 [length]; `length` is an int64 [1]."""
    number = length.number
    if number is not None and is_short(number):
        return op.known(literal(range(number), _INT64, "steps"))
    return _count(op, length)


@since(1)
def _count(op: Ops, length: Tensor) -> Tensor:
    """Return the numbers of the iterations of a Loop."""
    trips = op.squeeze(length, [0])
    with op.body():
        i, going = op.loop_inputs()
        carried = op.body_input("trips", _INT64, ())  # a Loop before opset 11 must carry something
        body = op.body_graph([i, going, carried], [going, carried, i])
    return op.emit("Loop", [trips, op.true(), trips], [(), (None,)], [_INT64] * 2, body=body)[1]


@_count.since(9)
def _count_9(op: Ops, length: Tensor) -> Tensor:
    """Return the indices of the nonzero elements of `length` ones."""
    one = literal([1.0], _FLOAT).tensor("")
    ones = op.emit("ConstantOfShape", [length], [(None,)], value=one)
    return op.squeeze(op.emit("NonZero", ones, [(1, None)], [_INT64])[0], [0])


@_count.since(11)
def _count_11(op: Ops, length: Tensor) -> Tensor:
    bounds = [op.constant(0, _INT64), op.squeeze(length, [0]), op.constant(1, _INT64)]
    return op.emit("Range", bounds, [(None,)], [_INT64])[0]


def count_needs_loop(opset: int) -> bool:
    """Return whether `count` of a length that is known at run time only emits a Loop."""
    return opset < _count.variants[1][0]
