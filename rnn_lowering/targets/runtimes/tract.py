"""tract (`pip install tract`): reverse and other activations of its own operators go wrong; no Loop."""

from __future__ import annotations

from collections.abc import Sequence

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.target import Target

MOST_ROWS = 4
"""Maximum batch size; above it, a Split behind a Reshape is slower than a Split alone."""


def rows_of_split(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor] | None:
    """Split x [N, count * size] of few rows into equal parts behind a Reshape to [N, count, size], or to
    [count, 1, size] where N is 1.

    tract computes a product of which there are parts once for each part; behind a Reshape it is one product. With a
    part of rank 3 it multiplies a product in one kernel, and adds to it.
    """
    N, count = x.shape[0], len(sizes)
    if N is None or not 0 < N <= MOST_ROWS or x.rank != 2 or axis != 1 or len(set(sizes)) > 1:
        return None
    shape, axis = ((count, 1, sizes[0]), 0) if N == 1 else ((N, count, sizes[0]), 1)
    return [op.squeeze(row, [axis]) for row in op.split(op.reshape(x, shape), [1] * count, axis)]


TARGET = Target(
    "tract",
    "0.23.9",
    ("scan", "unroll"),
    attention=("scan", "unroll", "chunked"),
    scans_need_rows=True,
    unsupported=("Softplus",),
    integer_products=True,
    named_sizes=False,
    # It does not see that a Slice with step -1 keeps an unknown length.
    dialect=Dialect(reverse_in_loop=True, gates_apart=True, matrix_product=True, join_up_to=128, stack_up_to=128),
    instead=(("Split", rows_of_split),),
)
