"""onnxruntime's QNN execution provider (`pip install onnxruntime-qnn`): the HTP of a phone, in float16.

Measured in the simulator of the HTP, with no node on the CPU.
"""

from __future__ import annotations

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.target import STATIC, Target

_FLAT = 88.0
"""Beyond it, and its negative, exp(x) is infinite or next to 0 in float32, and far earlier in float16."""


def bounded_exp(op: Ops, x: Tensor) -> Tensor:
    """Clip before Exp: the HTP's is 131008 at -300."""
    return op.emit("Exp", [op.clip(x, _FLAT)], x.shape)


TARGET = Target(
    "qnn",
    "onnxruntime-qnn 2.7.0",
    ("unroll",),
    other_names=("onnxruntimeqnn",),
    attention=("chunked",),  # steps have 6 axes
    unsupported=("Softplus", "Softsign"),
    sizes=STATIC,
    most_axes=5,
    integer_products=False,
    instead=(("Exp", bounded_exp),),
)
