"""Tensors whose sizes may be known at run time only: zeros, and the range 0, 1, 2, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, literal, zeros_of
from rnn_lowering.emit.ops import Ops, is_short
from rnn_lowering.emit.tensors import Tensor, static
from rnn_lowering.emit.versions import since
from rnn_lowering.types import Dims

_INT64 = ir.DataType.INT64


def zeros(op: Ops, sizes: Sequence[Tensor]) -> Tensor:
    """Return zeros of the recurrence's type; each size is an int64 [1]."""
    dims = tuple(_known(size) for size in sizes)
    if None not in dims and is_short(math.prod(static(dims))):
        return op.known(zeros_of(op.dtype, static(dims)))
    return _full_of_zeros(op, op.concat(sizes, axis=0), dims)


@since(1)
def _full_of_zeros(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    return op.emit("Tile", [op.known(zeros_of(op.dtype, (1,) * len(dims))), shape], [dims])[0]


@_full_of_zeros.since(9)
def _full_of_zeros_9(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    dtype = ir.DataType.FLOAT if op.dialect.cast_zeros else op.dtype
    made = op.emit("ConstantOfShape", [shape], [dims], [dtype], value=zeros_of(dtype, (1,)).tensor(""))[0]
    return op.cast(made, op.dtype)


def steps(op: Ops, length: Tensor) -> Tensor:
    """Return 0, 1, ..., length - 1 as int64 [length]; `length` is an int64 [1]."""
    count = _known(length)
    if count is not None and is_short(count):
        return op.known(literal(range(count), _INT64, "steps"))
    return _counted(op, length)


@since(1)
def _counted(op: Ops, length: Tensor) -> Tensor:
    """The numbers of the iterations of a Loop."""
    trips = op.squeeze(length, [0])
    with op.body():
        i, going = op.loop_inputs()
        carried = op.body_input("trips", _INT64, ())  # a Loop before opset 11 must carry something
        body = op.body_graph([i, going, carried], [going, carried, i])
    return op.emit("Loop", [trips, op.true(), trips], [(), (None,)], [_INT64] * 2, body=body)[1]


@_counted.since(9)
def _counted_9(op: Ops, length: Tensor) -> Tensor:
    """The indices of the nonzero elements of `length` ones."""
    one = literal([1.0], ir.DataType.FLOAT).tensor("")
    ones = op.emit("ConstantOfShape", [length], [(None,)], value=one)
    return op.squeeze(op.emit("NonZero", ones, [(1, None)], [_INT64])[0], [0])


@_counted.since(11)
def _counted_11(op: Ops, length: Tensor) -> Tensor:
    bounds = [op.constant(0, _INT64), op.squeeze(length, [0]), op.constant(1, _INT64)]
    return op.emit("Range", bounds, [(None,)], [_INT64])[0]


def counting_needs_loop(opset: int) -> bool:
    """Return whether `steps` of a length that is known at run time only emits a Loop."""
    return _counted.at(opset) is _counted.variants[0][1]


def _known(size: Tensor) -> int | None:
    """Return the number of an int64 [1]; None where it is known at run time only."""
    return int(size.value.read()[0]) if isinstance(size.value, Constant) else None
