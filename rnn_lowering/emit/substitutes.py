"""Operators that a runtime does not support, or runs slowly, as others that compute the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rnn_lowering.emit.constants import Constant, elementwise, literal, one_hot, zeros_of
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.faster import by_columns, rows_of_split
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.emit.versions import since

Rule = Callable[..., Any]
"""Takes `Ops` and the operands of an operator; returns what is computed, or None to keep the operator."""

SUBSTITUTED = frozenset({"Ceil", "Clip", "Gather", "Identity", "Less", "Relu", "Split", "Sub"})
"""The operators, beside activations, that `Dialect.unsupported` replaces: Less only in a comparison with a number,
Gather only of rows by a constant index of rank 2."""


def instead(dialect: Dialect) -> dict[str, Rule]:
    """Return what emits others in place of an operator, by operator; None from it keeps the operator."""
    composed: dict[str, Rule] = {"Clip": bounded, "Less": above, "Identity": as_transpose, "Relu": as_max}
    found = {name: rule for name, rule in composed.items() if name in dialect.unsupported}
    if "Sub" in dialect.unsupported or dialect.no_constant_minus:
        found["Sub"] = difference
    if "Split" in dialect.unsupported or dialect.split_as_rows:
        found["Split"] = parts
    if "Gather" in dialect.unsupported or dialect.gather_by_rank_1:
        found["Gather"] = rows
    if dialect.columns_from < math.inf:
        found["MatMul"] = by_columns
    return found


def difference(op: Ops, a: Tensor, b: Tensor) -> Tensor | None:
    """Return a - b as a sum; with `no_constant_minus` only where a is constant."""
    of_constant = isinstance(a.value, Constant) and b.dtype.is_floating_point()
    if "Sub" not in op.dialect.unsupported and not of_constant:
        return None
    if op.dialect.no_constant_minus:
        return b * op.known(literal(-1.0, b.dtype)) + a
    if isinstance(b.value, Constant):
        return a + op.known(elementwise("Sub", zeros_of(b.dtype, ()), b.value))
    return a + op.neg(b)


def bounded(op: Ops, x: Tensor, bound: float) -> Tensor:
    """Bound x to [-bound, bound] by Max and Min."""
    (floored,) = op.emit("Max", [x, op.constant(-bound)], [x.shape])
    return op.emit("Min", [floored, op.constant(bound)], [x.shape])[0]


def as_max(op: Ops, x: Tensor) -> Tensor:
    """Return Relu of x by Max."""
    return op.emit("Max", [x, op.known(zeros_of(x.dtype, ()))], [x.shape], [x.dtype])[0]


def as_transpose(op: Ops, x: Tensor) -> Tensor:
    """Return x by a Transpose that moves nothing."""
    return op.emit("Transpose", [x], [x.shape], [x.dtype], perm=list(range(x.rank)))[0]


def above(op: Ops, x: Tensor, threshold: float) -> Tensor:
    """Return 1 where x > threshold, else 0, without a comparison."""
    one = op.constant(1.0)
    over = op.unary("Relu", x - op.constant(threshold))
    return one - op.unary("Relu", one - _ceiling(op, over))


def _ceiling(op: Ops, x: Tensor) -> Tensor:
    """Return the least whole numbers not below x, where Ceil is not supported by Floor."""
    operators = ["Neg", "Floor", "Neg"] if "Ceil" in op.dialect.unsupported else ["Ceil"]
    for operator in operators:
        (x,) = op.emit(operator, [x], [x.shape])
    return x


def rows(op: Ops, x: Tensor, index: Tensor) -> Tensor | None:
    """Return x[index] without Gather for finite x [rows, n] and a constant index [a, b]: as a product with one-hot
    rows. With `gather_by_rank_1` a scalar index becomes one of rank 1."""
    if index.rank == 2 and isinstance(index.value, Constant) and "Gather" in op.dialect.unsupported:
        (count, width), (a, b) = static(x.shape), index.value.shape
        return op.reshape(op.known(one_hot(index.value, count, x.dtype)) @ x, (a, b, width))
    if index.rank == 0 and op.dialect.gather_by_rank_1:
        return op.squeeze(op.take(x, op.reshape(index, (1,))), [0])
    return None


def parts(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor] | None:
    """Return parts of x of the given sizes, by a Reshape where that is faster, each by a Slice where Split is not
    supported."""
    found = rows_of_split(op, x, sizes, axis)
    return _slices(op, x, sizes, axis) if found is None and "Split" in op.dialect.unsupported else found


@since(1)
def _slices(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
    """Return parts of x of the given sizes, each by a Slice of its own."""
    found = []
    for start, end, shape in _ranges(x, sizes, axis):
        found += op.emit("Slice", [x], [shape], [x.dtype], starts=[start], ends=[end], axes=[axis])
    return found


@_slices.since(10)
def _slices_10(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
    found = []
    for start, end, shape in _ranges(x, sizes, axis):
        bounds = [op.constant([number]) for number in (start, end, axis)]
        found += op.emit("Slice", [x, *bounds], [shape], [x.dtype])
    return found


def _ranges(x: Tensor, sizes: Sequence[int], axis: int) -> list[tuple[int, int, tuple[int | None, ...]]]:
    """Return the start, the end and the shape of each part."""
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    return [(end - size, end, (*before, size, *after)) for size, end in zip(sizes, ends, strict=True)]
