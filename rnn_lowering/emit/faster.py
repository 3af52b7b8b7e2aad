"""What computes the same in another way, for runtimes that run it faster."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_lowering.emit.builder import Emitter
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.tensors import Tensor, static
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


def are_rows(op: Emitter, x: Tensor, sizes: Sequence[int], axis: int) -> bool:
    """Return whether x [N, ...] is split by `as_rows`: into equal parts, and N is at most `split_as_rows`."""
    few = x.shape[0] is not None and 0 < x.shape[0] <= op.dialect.split_as_rows
    return few and x.rank == 2 and axis == 1 and len(set(sizes)) == 1


def as_rows(op: Emitter, x: Tensor, count: int) -> tuple[Tensor, int]:
    """Return x [N, count * size] as [N, count, size], or [count, 1, size] where N is 1, and the axis of count.

    tract computes a product of which there are parts once for each part; behind a Reshape it is one product. With a
    part of rank 3 it multiplies a product in one kernel, and adds to it.
    """
    N, gates = static(x.shape)
    shape, axis = ((count, 1, gates // count), 0) if N == 1 else ((N, count, gates // count), 1)
    return op.emit("Reshape", [x, op.constant(list(shape))], [shape], [x.dtype])[0], axis


def equal_parts(op: Emitter, x: Tensor, size: int, count: int) -> list[Tensor]:
    """Split x [..., count * size] into equal parts without a list of their sizes."""
    return _equal_parts(op, x, [(*x.shape[:-1], size)] * count)


@since(1)
def _equal_parts(op: Emitter, x: Tensor, shapes: Sequence[Dims]) -> list[Tensor]:
    return op.emit("Split", [x], shapes, axis=x.rank - 1)


@_equal_parts.since(18)
def _equal_parts_18(op: Emitter, x: Tensor, shapes: Sequence[Dims]) -> list[Tensor]:
    return op.emit("Split", [x], shapes, axis=x.rank - 1, num_outputs=len(shapes))
