"""What computes the same in another way, for runtimes that run it faster."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_lowering.emit.builder import Emitter
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.tensors import Tensor
from rnn_lowering.emit.versions import since
from rnn_lowering.types import Dims


def by_columns(op: Emitter, a: Tensor, weights: Constant) -> Tensor:
    """Return a [..., m, k] @ weights [k, n] as the transpose of weightsᵀ @ aᵀ.

    A compiler that does not block a product reads both operands in order then, also weights as the node has them.
    """
    columns = _swapped(op, a)  # [..., k, m]
    shape = (*a.shape[:-2], weights.shape[-1], columns.shape[-1])
    (product,) = op.emit("MatMul", [op.known(weights.transposed([1, 0])), columns], [shape])
    return _swapped(op, product)


def _swapped(op: Emitter, x: Tensor) -> Tensor:
    """Swap the last two axes."""
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    return op.emit("Transpose", [x], [tuple(x.shape[axis] for axis in perm)], [x.dtype], perm=perm)[0]


def as_rows(op: Emitter, x: Tensor, count: int, size: int) -> Tensor:
    """Return x [1, count * size] as [count, 1, size].

    tract computes a product of which there are parts once for each part; behind a Reshape it is one product. With a
    row of rank 3 it multiplies a product in one kernel, and adds to it.
    """
    shape = (count, 1, size)
    return op.emit("Reshape", [x, op.constant(list(shape))], [shape], [x.dtype])[0]


def equal_parts(op: Emitter, x: Tensor, size: int, count: int) -> list[Tensor]:
    """Split x [..., count * size] into equal parts without a list of their sizes."""
    return _equal_parts(op, x, [(*x.shape[:-1], size)] * count)


@since(1)
def _equal_parts(op: Emitter, x: Tensor, shapes: Sequence[Dims]) -> list[Tensor]:
    return op.emit("Split", [x], shapes, axis=x.rank - 1)


@_equal_parts.since(18)
def _equal_parts_18(op: Emitter, x: Tensor, shapes: Sequence[Dims]) -> list[Tensor]:
    return op.emit("Split", [x], shapes, axis=x.rank - 1, num_outputs=len(shapes))
