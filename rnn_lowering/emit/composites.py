"""Operators composed of others: where a runtime lacks one, or for zeros, counts, and flipped or cut rows.

Sizes may be known now or only at run time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant, elementwise, literal, one_hot, zeros_of
from rnn_lowering.emit.dialect import since
from rnn_lowering.emit.open_scopes import Rule
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.facts.operators import BEFORE_THE_START
from rnn_lowering.types import Dims

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64

_MOST_STORED = 1 << 20
"""Maximum elements of a constant that is stored in the model; a larger one is computed at run time."""

_MOST_PARTS = 16
"""Maximum parts that additions sum along a last axis; above it, a product with ones does."""


def as_sum(op: Ops, a: Tensor, b: Tensor) -> Tensor:
    """Return a - b as a + -b."""
    if isinstance(b.value, Constant):
        return a + op.from_constant(elementwise("Sub", zeros_of(b.dtype, ()), b.value))
    return a + op.neg(b)


def constant_minus(op: Ops, a: Tensor, b: Tensor) -> Tensor | None:
    """Return a constant minus b as b * -1 + a."""
    if not isinstance(a.value, Constant) or not b.dtype.is_floating_point():
        return None
    return b * op.from_constant(literal(-1.0, b.dtype)) + a


def as_max_and_min(op: Ops, x: Tensor, bound: float) -> Tensor:
    """Bound x to [-bound, bound] by Max and Min."""
    floored = op.emit("Max", [x, op.constant(-bound)], x.shape)
    return op.emit("Min", [floored, op.constant(bound)], x.shape)


def as_max(op: Ops, x: Tensor) -> Tensor:
    """Return Relu of x by Max."""
    return op.emit("Max", [x, op.from_constant(zeros_of(x.dtype, ()))], x.shape)


def as_transpose(op: Ops, x: Tensor) -> Tensor:
    """Return x by a Transpose that moves nothing, also where x is a constant."""
    return op.emit("Transpose", [x], x.shape, perm=[*range(x.rank)])


def as_sum_with_zero(op: Ops, x: Tensor) -> Tensor:
    """Return x by an Add of 0."""
    return op.emit("Add", [x, op.from_constant(zeros_of(x.dtype, ()))], x.shape)


def as_reshape(op: Ops, x: Tensor) -> Tensor:
    """Return x [..., n] as [rows, n] by a Reshape."""
    shape = x.rows_and_columns
    return op.reshape(x, shape, [op.constant([-1 if size is None else size]) for size in shape])


def above(op: Ops, x: Tensor, threshold: float) -> Tensor:
    """Return 1 where x > threshold, else 0, without a comparison."""
    one = op.constant(1.0)
    over = op.unary("Relu", x - op.constant(threshold))
    return one - op.unary("Relu", one - op.unary("Ceil", over))


def ceiling(op: Ops, x: Tensor) -> Tensor:
    """Return x rounded up, by Floor."""
    return op.neg(op.unary("Floor", op.neg(x)))


def rows_by_product(op: Ops, x: Tensor, index: Tensor) -> Tensor | None:
    """Return x[index] for finite x [rows, n] and a constant index [a, b] as a product with one-hot rows."""
    if index.rank != 2 or not isinstance(index.value, Constant):
        return None
    (count, width), (a, b) = static(x.shape), index.value.shape
    return op.reshape(op.from_constant(one_hot(index.value, count, x.dtype)) @ x, (a, b, width))


def by_columns(op: Ops, a: Tensor, b: Tensor, *, least: int, batch: int = 1) -> Tensor | None:
    """Return a [..., m, k] @ b [k, n] as the transpose of bᵀ @ aᵀ, where b is a constant, k is at least `least` and
    m at least `batch`; else None.

    Then a compiler that does not block products reads both operands in order, and weights stay as the node has
    them.
    """
    weights = b.value
    if (a.shape[-2] or 1) < batch or not isinstance(weights, Constant):
        return None
    if len(weights.shape) != 2 or weights.shape[0] < least:
        return None
    columns = op.transpose_last(a)  # [..., k, m]
    shape = (*a.shape[:-2], weights.shape[-1], columns.shape[-1])
    product = op.emit("MatMul", [op.from_constant(weights.transposed([1, 0])), columns], shape)
    return op.transpose_last(product)


def equal_parts(op: Ops, x: Tensor, size: int, count: int) -> list[Tensor]:
    """Split x [..., count * size] into equal parts without a list of their sizes."""
    parts: dict[str, Any] = {"num_outputs": count} if op.opset >= 18 else {}
    shapes, types = [x.shape_with(-1, size)] * count, [x.dtype] * count
    return op.emit_all("Split", [x], shapes, types, axis=x.rank - 1, **parts)


def slices(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
    """Return parts of x of the given sizes, each by a Slice of its own."""
    ends = accumulate(sizes)
    return [
        op.emit("Slice", [x], x.shape_with(axis, size), starts=[end - size], ends=[end], axes=[axis])
        for size, end in zip(sizes, ends, strict=True)
    ]


def taps(op: Ops, x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Return what `Ops.conv` does, by a product for each element of the kernel."""
    k = weight.shape[2]
    assert k is not None
    reach = (k - 1) * dilation
    columns = [op.squeeze(column, [1]) for column in op.split(weight, [1] * k, axis=2)]  # each [channels, 1]
    ends = [None if n == k - 1 else n * dilation - reach for n in range(k)]
    parts = [op.slice(x, 2, n * dilation, end) * c for n, (end, c) in enumerate(zip(ends, columns, strict=True))]
    return sum(parts[1:], parts[0]) + op.unsqueeze(bias, [1])


def sum_of_parts(op: Ops, x: Tensor, axis: int) -> Tensor | None:
    """Return the sums along an axis of known size by additions; along a long last one by a product with ones."""
    size = x.shape[axis]
    if not size:
        return None
    if size > _MOST_PARTS and axis == x.rank - 1:
        return x @ op.from_constant(literal([[1.0]] * size, x.dtype))
    first, *others = op.split(x, [1] * size, axis)
    return sum(others, first)


def max_of_outputs(op: Ops, outputs: Sequence[ir.Value]) -> None:
    """Replace Relu with Max(0, x) if x is an output, which some runtimes lose when they fuse Relu with what
    computes x; before opset 8, where Max does not broadcast, with Clip. Of Max(x, 0) onnx2tf makes a Relu again.
    """
    nodes = op.nodes[:]
    op.nodes.clear()
    for node in nodes:
        if node.op_type == "Relu" and node.inputs[0] in outputs:
            node.op_type = "Max" if op.opset >= 8 else "Clip"
            node.name = op.unique_name(node.op_type)
            if node.op_type == "Max":
                node.resize_inputs(2)
                node.replace_input_with(1, node.inputs[0])
                node.replace_input_with(0, op.value(op.from_constant(zeros_of(op.dtype, ()))))
            else:
                bounds = ir.AttrFloat32("min", 0.0), ir.AttrFloat32("max", math.inf)
                node.attributes.update({bound.name: bound for bound in bounds})
        op.nodes.append(node)


COMPOSED: dict[str, Rule] = {
    "Ceil": ceiling,
    "Clip": as_max_and_min,
    "Conv": taps,
    "Flatten": as_reshape,
    "Gather": rows_by_product,
    "Identity": as_transpose,
    "Less": above,
    "ReduceSum": sum_of_parts,
    "Relu": as_max,
    "Split": slices,
    "Sub": as_sum,
}
"""Replacements of operators that a runtime does not support, except activations. Less is replaced only in
comparisons with a number, Gather only for rows by a constant index of rank 2."""


def _is_short(length: int | None) -> bool:
    """Return whether a constant of this many numbers is stored in the model."""
    return length is not None and length <= _MOST_STORED


def zeros(op: Ops, sizes: Sequence[Tensor]) -> Tensor:
    """Return zeros of the recurrence's type; each size is an int64 [1]."""
    dims = tuple(size.number for size in sizes)
    if None not in dims and _is_short(math.prod(static(dims))):
        return op.from_constant(zeros_of(op.dtype, static(dims)))
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
    return op.emit("Tile", [op.from_constant(zeros_of(op.dtype, (1,) * len(dims))), shape], dims)


@_full_of_zeros.since(9)
def _full_of_zeros_9(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    value = zeros_of(op.dtype, (1,)).tensor("")
    instead: Tensor | None = op.substitute("ConstantOfShape", shape, dims)
    return instead or op.emit("ConstantOfShape", [shape], dims, op.dtype, value=value)


def count(op: Ops, length: Tensor) -> Tensor:
    """Return 0, 1, ..., length - 1 as int64 [length]; `length` is an int64 [1]."""
    number = length.number
    if number is not None and _is_short(number):
        return op.from_constant(literal(range(number), _INT64, "steps"))
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
        return op.from_constant(x.value.flipped())
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
