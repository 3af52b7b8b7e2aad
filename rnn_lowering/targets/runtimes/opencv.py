"""OpenCV's dnn (`pip install opencv-python-headless`): no Scan; its own LSTM and RNN are wrong."""

from __future__ import annotations

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.native import OTHER_ACTIVATIONS, Excluded, NativeRule, Speed, features
from rnn_lowering.targets.target import Target

_FLAT = 20.0
"""From here on tanh is 1 in every element type."""


def bounded_tanh(op: Ops, x: Tensor) -> Tensor:
    """Clip before Tanh, which is NaN between 45 and 88 in OpenCV 5.0."""
    return op.emit("Tanh", [op.clip(x, _FLAT)], x.shape)


def gather_by_rank_1(op: Ops, x: Tensor, index: Tensor) -> Tensor | None:
    """Gather a row by an index of rank 1: OpenCV turns scalars into tensors of rank 1."""
    return op.squeeze(op.take(x, op.reshape(index, (1,))), [0]) if index.rank == 0 else None


# Of a batch the speed was not measured, so none stays. From H = 64 on runs disagreed (2.3 and 3.3 at T = 100, 0.87
# and 0.41 at T = 10): the lower numbers stand for both.
RULE = NativeRule(
    "5.0.0",
    "2026-11-23",
    features(
        "GRU, forward, bidirectional, linear_before_reset, linear_before_reset 0, initial state,"
        "constant initial state, Y_c beside others, named outputs, written hidden_size, a shared X, I = 1,"
        "T = 1, no activations, no initial_h, open T, open N, float, opset 7 to 21, opset 22, flipped X and Y,"
        "transposed X and Y, computed weights"
    ),
    (
        *(Excluded((name,), f"ignores {name}") for name in ("clip", "sequence_lens")),
        *(Excluded((name,), f"rejects every {name}") for name in ("LSTM", "RNN")),
        *(Excluded((name,), "rejects activations") for name in OTHER_ACTIVATIONS),
    ),
    (
        Speed(("GRU",), 1, 1, {32: 0.9}),
        Speed(("GRU",), 10, 1, {16: 2.4, 32: 1.65, 64: 0.85, 128: 0.4}),
        Speed(("GRU",), 100, 1, {16: 3.6, 32: 2.6, 64: 0.9, 128: 0.4}),
        Speed(("GRU",), 50, 1, {16: 2.0, 32: 1.5, 64: 0.95}, nodes=2),
        Speed(("GRU", "bidirectional"), 50, 1, {16: 1.8, 32: 1.15, 64: 0.85}),
    ),
)

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
    native=RULE,
    # Between DequantizeLinear and QuantizeLinear it computes Sub as Add, and drops a Sigmoid after an Add.
    quantizes=False,
    unused_constants=False,  # it crashes on one of booleans
    empty_tensors=False,
)
