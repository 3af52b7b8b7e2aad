"""Operators that a runtime does not support, as others that compute the same."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_lowering.emit.builder import Emitter
from rnn_lowering.emit.constants import Constant, elementwise, literal, zeros_of
from rnn_lowering.emit.tensors import Tensor
from rnn_lowering.emit.versions import since

SUBSTITUTED = frozenset({"Ceil", "Clip", "Gather", "Identity", "Less", "Relu", "Split", "Sub"})
"""The operators, beside activations, that `Dialect.unsupported` replaces: Less only in a comparison with a number,
Gather only of rows by a constant index of rank 2."""


def lacks_difference(op: Emitter, a: Tensor, b: Tensor) -> bool:
    """Whether a - b is emitted by `difference`."""
    of_constant = isinstance(a.value, Constant) and b.dtype.is_floating_point()
    return "Sub" in op.dialect.unsupported or (op.dialect.no_constant_minus and of_constant)


def difference(op: Emitter, a: Tensor, b: Tensor) -> Tensor:
    """Return a - b as a sum."""
    if op.dialect.no_constant_minus:
        return op.add(op.mul(b, op.known(literal(-1.0, b.dtype))), a)
    if isinstance(b.value, Constant):
        return op.add(a, op.known(elementwise("Sub", zeros_of(b.dtype, ()), b.value)))
    return op.add(a, op.emit("Neg", [b], [b.shape], [b.dtype])[0])


def bounded(op: Emitter, x: Tensor, bound: float) -> Tensor:
    """Bound x to [-bound, bound] by Max and Min."""
    (floored,) = op.emit("Max", [x, op.constant(-bound)], [x.shape])
    return op.emit("Min", [floored, op.constant(bound)], [x.shape])[0]


def positive_part(op: Emitter, x: Tensor) -> Tensor:
    """Return max(x, 0): Relu, or Max where that is not supported."""
    if "Relu" in op.dialect.unsupported:
        return op.emit("Max", [x, op.known(zeros_of(x.dtype, ()))], [x.shape], [x.dtype])[0]
    return op.emit("Relu", [x], [x.shape], [x.dtype])[0]


def above(op: Emitter, x: Tensor, threshold: float) -> Tensor:
    """Return 1 where x > threshold, else 0, without a comparison."""
    one = op.constant(1.0)
    over = positive_part(op, op.sub(x, op.constant(threshold)))
    return op.sub(one, positive_part(op, op.sub(one, _ceiling(op, over))))


def _ceiling(op: Emitter, x: Tensor) -> Tensor:
    """Return the least whole numbers not below x, where Ceil is not supported by Floor."""
    operators = ["Neg", "Floor", "Neg"] if "Ceil" in op.dialect.unsupported else ["Ceil"]
    for operator in operators:
        (x,) = op.emit(operator, [x], [x.shape])
    return x


@since(1)
def parts(op: Emitter, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
    """Return parts of x of the given sizes, each by a Slice of its own."""
    found = []
    for start, end, shape in _ranges(x, sizes, axis):
        found += op.emit("Slice", [x], [shape], [x.dtype], starts=[start], ends=[end], axes=[axis])
    return found


@parts.since(10)
def _parts_10(op: Emitter, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor]:
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
