"""What computes the same in another way, for runtimes that run it faster."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.emit.versions import since
from rnn_lowering.types import Dims


def by_columns(op: Ops, a: Tensor, b: Tensor) -> Tensor | None:
    """Return a [..., m, k] @ b [k, n] as the transpose of bᵀ @ aᵀ, where b is a constant that is large enough.

    A compiler that does not block a product reads both operands in order then, also weights as the node has them.
    """
    weights, many_rows = b.value, (a.shape[-2] or 1) >= op.dialect.columns_from_batch
    if not many_rows or not isinstance(weights, Constant) or weights.shape[0] < op.dialect.columns_from:
        return None
    columns = _swapped(op, a)  # [..., k, m]
    shape = (*a.shape[:-2], weights.shape[-1], columns.shape[-1])
    (product,) = op.emit("MatMul", [op.known(weights.transposed([1, 0])), columns], [shape])
    return _swapped(op, product)


def _swapped(op: Ops, x: Tensor) -> Tensor:
    """Swap the last two axes."""
    perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    return op.emit("Transpose", [x], [tuple(x.shape[axis] for axis in perm)], [x.dtype], perm=perm)[0]


def rows_of_split(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor] | None:
    """Split x [N, count * size], where N is at most `split_as_rows`, into equal parts: behind a Reshape to
    [N, count, size], or [count, 1, size] where N is 1.

    tract computes a product of which there are parts once for each part; behind a Reshape it is one product. With a
    part of rank 3 it multiplies a product in one kernel, and adds to it.
    """
    few = x.shape[0] is not None and 0 < x.shape[0] <= op.dialect.split_as_rows
    if not few or x.rank != 2 or axis != 1 or len(set(sizes)) > 1:
        return None
    N, count, size = x.shape[0], len(sizes), sizes[0]
    shape, axis = ((count, 1, size), 0) if N == 1 else ((N, count, size), 1)
    return [op.squeeze(row, [axis]) for row in op.split(op.reshape(x, shape), [1] * count, axis)]


def equal_parts(op: Ops, x: Tensor, size: int, count: int) -> list[Tensor]:
    """Split x [..., count * size] into equal parts without a list of their sizes."""
    return _equal_parts(op, x, [(*x.shape[:-1], size)] * count)


@since(1)
def _equal_parts(op: Ops, x: Tensor, shapes: Sequence[Dims]) -> list[Tensor]:
    return op.emit("Split", [x], shapes, axis=x.rank - 1)


@_equal_parts.since(18)
def _equal_parts_18(op: Ops, x: Tensor, shapes: Sequence[Dims]) -> list[Tensor]:
    return op.emit("Split", [x], shapes, axis=x.rank - 1, num_outputs=len(shapes))
