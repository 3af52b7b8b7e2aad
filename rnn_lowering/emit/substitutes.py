"""Replace operators that a runtime does not support, or runs slowly, with equivalent ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from rnn_lowering.emit.constants import Constant, elementwise, literal, one_hot, zeros_of
from rnn_lowering.emit.ops import Ops, Rule
from rnn_lowering.emit.tensor import Tensor, static


def as_sum(op: Ops, a: Tensor, b: Tensor) -> Tensor:
    """Return a - b as a + -b."""
    if isinstance(b.value, Constant):
        return a + op.known(elementwise("Sub", zeros_of(b.dtype, ()), b.value))
    return a + op.neg(b)


def constant_minus(op: Ops, a: Tensor, b: Tensor) -> Tensor | None:
    """Return a constant minus b as b * -1 + a."""
    if not isinstance(a.value, Constant) or not b.dtype.is_floating_point():
        return None
    return b * op.known(literal(-1.0, b.dtype)) + a


def as_max_and_min(op: Ops, x: Tensor, bound: float) -> Tensor:
    """Bound x to [-bound, bound] by Max and Min."""
    floored = op.emit("Max", [x, op.constant(-bound)], x.shape)
    return op.emit("Min", [floored, op.constant(bound)], x.shape)


def as_max(op: Ops, x: Tensor) -> Tensor:
    """Return Relu of x by Max."""
    return op.emit("Max", [x, op.known(zeros_of(x.dtype, ()))], x.shape)


def as_transpose(op: Ops, x: Tensor) -> Tensor:
    """Return x by a Transpose that moves nothing, also where x is a constant."""
    return op.emit("Transpose", [x], x.shape, perm=[*range(x.rank)])


def above(op: Ops, x: Tensor, threshold: float) -> Tensor:
    """Return 1 where x > threshold, else 0, without a comparison."""
    one = op.constant(1.0)
    over = op.unary("Relu", x - op.constant(threshold))
    return one - op.unary("Relu", one - op.unary("Ceil", over))


def ceiling(op: Ops, x: Tensor) -> Tensor:
    """Return the least whole numbers not below x by Floor."""
    return op.neg(op.unary("Floor", op.neg(x)))


def rows_by_product(op: Ops, x: Tensor, index: Tensor) -> Tensor | None:
    """Return x[index] for finite x [rows, n] and a constant index [a, b] as a product with one-hot rows."""
    if index.rank != 2 or not isinstance(index.value, Constant):
        return None
    (count, width), (a, b) = static(x.shape), index.value.shape
    return op.reshape(op.known(one_hot(index.value, count, x.dtype)) @ x, (a, b, width))


def by_columns(op: Ops, a: Tensor, b: Tensor, *, least: int, batch: int = 1) -> Tensor | None:
    """Return a [..., m, k] @ b [k, n] as the transpose of bᵀ @ aᵀ, where b is a constant, k is at least `least` and
    m at least `batch`; None elsewhere.

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
    product = op.emit("MatMul", [op.known(weights.transposed([1, 0])), columns], shape)
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


_MOST_PARTS = 16


def sum_of_parts(op: Ops, x: Tensor, axis: int) -> Tensor | None:
    """Return the sums along an axis of known size by additions; along a long last one by a product with ones."""
    size = x.shape[axis]
    if not size:
        return None
    if size > _MOST_PARTS and axis == x.rank - 1:
        return x @ op.known(literal([[1.0]] * size, x.dtype))
    first, *others = op.split(x, [1] * size, axis)
    return sum(others, first)


COMPOSED: dict[str, Rule] = {
    "Ceil": ceiling,
    "Clip": as_max_and_min,
    "Conv": taps,
    "Gather": rows_by_product,
    "Identity": as_transpose,
    "Less": above,
    "ReduceSum": sum_of_parts,
    "Relu": as_max,
    "Split": slices,
    "Sub": as_sum,
}
"""What replaces an operator that a runtime does not support, except activations. Less: only comparisons with a
number. Gather: only rows by a constant index of rank 2."""
