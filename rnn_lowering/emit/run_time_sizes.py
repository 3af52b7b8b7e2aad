"""Emit zeros, counts, and flipped or cut rows, for sizes that are known now or only at run time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, literal, zeros_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.emit.versions import BEFORE_THE_START, since
from rnn_lowering.types import Dims

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64

_LONGEST_WRITTEN = 1 << 20


def _is_short(length: int | None) -> bool:
    """Return whether a constant of this many numbers is stored in the model, not computed at run time."""
    return length is not None and length <= _LONGEST_WRITTEN


def zeros(op: Ops, sizes: Sequence[Tensor]) -> Tensor:
    """Return zeros of the recurrence's type; each size is an int64 [1]."""
    dims = tuple(size.number for size in sizes)
    if None not in dims and _is_short(math.prod(static(dims))):
        return op.known(zeros_of(op.dtype, static(dims)))
    return _full_of_zeros(op, op.concat(sizes, axis=0), dims)


def followed_by_zeros(op: Ops, x: Tensor, count: Tensor) -> Tensor:
    """Return x [batch, seq, ...] with `count` more rows of zeros along axis 1; `count` is an int64 [1]."""
    if count.number == 0:
        return x
    if count.number is not None and x.shape[0] is None:
        return _padded(op, x, count.number)
    return _with_zeros(op, x, count)


def _with_zeros(op: Ops, x: Tensor, count: Tensor) -> Tensor:
    sizes = [op.dim(x, 0), count, *(op.dim(x, axis) for axis in range(2, x.rank))]
    return op.concat([x, zeros(op, sizes)], axis=1)


@since(1)
def _padded(op: Ops, x: Tensor, count: int) -> Tensor:
    return _with_zeros(op, x, op.constant([count]))


@_padded.since(11)
def _padded_11(op: Ops, x: Tensor, count: int) -> Tensor:
    """TVM loses the shape of zeros whose number is computed."""
    pads = [0] * (2 * x.rank)
    pads[x.rank + 1] = count
    shape = (x.shape[0], None if x.shape[1] is None else x.shape[1] + count, *x.shape[2:])
    return op.emit("Pad", [x, op.constant(pads)], shape)


@since(1)
def _full_of_zeros(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    """Return zeros of the recurrence's type and of a computed shape; `dims` are its known sizes."""
    return op.emit("Tile", [op.known(zeros_of(op.dtype, (1,) * len(dims))), shape], dims)


@_full_of_zeros.since(9)
def _full_of_zeros_9(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    value = zeros_of(op.dtype, (1,)).tensor("")
    found: Tensor | None = op.substitute("ConstantOfShape", shape, dims)
    return found or op.emit("ConstantOfShape", [shape], dims, op.dtype, value=value)


def count(op: Ops, length: Tensor) -> Tensor:
    """Return 0, 1, ..., length - 1 as int64 [length]; `length` is an int64 [1]."""
    number = length.number
    if number is not None and _is_short(number):
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
    return op.emit_all("Loop", [trips, op.true(), trips], [(), (None,)], [_INT64] * 2, body=body)[1]


@_count.since(9)
def _count_9(op: Ops, length: Tensor) -> Tensor:
    """Return the indices of the nonzero elements of `length` ones."""
    one = literal([1.0], _FLOAT).tensor("")
    ones = op.emit("ConstantOfShape", [length], (None,), _FLOAT, value=one)
    return op.squeeze(op.emit("NonZero", [ones], (1, None), _INT64), [0])


@_count.since(11)
def _count_11(op: Ops, length: Tensor) -> Tensor:
    bounds = [op.constant(0, _INT64), op.squeeze(length, [0]), op.constant(1, _INT64)]
    return op.emit("Range", bounds, (None,))


def count_needs_loop(opset: int) -> bool:
    """Return whether `count` of a length that is known at run time only emits a Loop."""
    return opset < _count.variants[1][0]


def can_flip(opset: int, length: int | None) -> bool:
    """Return whether `flip` is possible: by constant indices, or (from opset 10 on) by a Slice with steps."""
    return opset >= 10 or _is_short(length)


def flip(op: Ops, x: Tensor) -> Tensor:
    """Reverse x along axis 0: by a Gather of constant indices if the length is known, else by a Slice."""
    length = x.shape[0]
    if length == 1:
        return x
    if isinstance(x.value, Constant):
        return op.known(x.value.flipped())
    if length is not None and _is_short(length):
        return op.take(x, op.constant(range(length - 1, -1, -1)))
    bounds = {"starts": [-1], "ends": [BEFORE_THE_START], "axes": [0], "steps": [-1]}
    return op.emit("Slice", [x], x.shape, **bounds)


def first_rows(op: Ops, x: Tensor, length: Tensor) -> Tensor:
    """Return the first rows of x along axis 0; `length` is an int64 [1]."""
    number, rows = length.number, x.shape[0]
    if number is None or rows is None:
        return _first_rows(op, x, length)
    return x if number == rows else op.split(x, [number, rows - number], axis=0)[0]


@since(1)
def _first_rows(op: Ops, x: Tensor, length: Tensor) -> Tensor:
    return op.take(x, count(op, length))


@_first_rows.since(10)
def _first_rows_10(op: Ops, x: Tensor, length: Tensor) -> Tensor:
    zero = op.constant([0])  # the start, and the axis
    return op.emit("Slice", [x, zero, length, zero], x.shape_with(0, length.number))
