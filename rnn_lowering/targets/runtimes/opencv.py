"""OpenCV's dnn (`pip install opencv-python-headless`): no Scan; its own recurrent operators are wrong."""

from __future__ import annotations

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.target import Target

_FLAT = 20.0
"""From here on tanh is 1 in every element type."""


def bounded_tanh(op: Ops, x: Tensor) -> Tensor:
    """Clip before Tanh, which is NaN between 45 and 88 in OpenCV 5.0."""
    return op.emit("Tanh", [op.clip(x, _FLAT)], x.shape)


def gather_by_rank_1(op: Ops, x: Tensor, index: Tensor) -> Tensor | None:
    """Gather a row by an index of rank 1: OpenCV turns scalars into tensors of rank 1."""
    return op.squeeze(op.take(x, op.reshape(index, (1,))), [0]) if index.rank == 0 else None


TARGET = Target(
    "opencv",
    "5.0.0",
    ("unroll", "loop"),
    other_names=("cv2",),
    attention=("unroll", "loop", "chunked"),
    exported_forms=("unroll",),
    unsupported=("Softplus",),
    # In a Loop it makes one state of two that start from one value.
    dialect=Dialect(matrix_product=True, matrix_steps=True, zeros_apart=True, join_up_to=128, stack_up_to=128),
    instead=(("Tanh", bounded_tanh), ("Gather", gather_by_rank_1)),
    integer_products=False,
    unused_constants=False,  # it crashes on one of booleans
)
