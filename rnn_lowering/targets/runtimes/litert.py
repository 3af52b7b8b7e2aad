"""LiteRT, formerly TensorFlow Lite (`pip install onnx2tf`, with Python 3.12 or later; it needs no TensorFlow).

onnx2tf 2.6.9 ignores alpha of Elu, and computes Softplus as Log(Exp(x) + 1), which is infinite from x = 89 on. It
lets a Flatten read the input of an Unsqueeze instead of its output, but keeps the axis of the Flatten. It has no
bfloat16, and turns inputs of float16 into float32. LiteRT has no Slice above rank 5 and no Add of float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.emit.composites import as_sum_with_zero, max_of_outputs
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.targets.target import STATIC, Target

MOST_AXES = 5
"""The highest rank of a Slice in LiteRT; onnx2tf makes Slices of a Split."""


def split_of_rank_3(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor] | None:
    """Split x of more than 5 axes as [before, size, behind]."""
    if x.rank <= MOST_AXES:
        return None
    before, behind = (math.prod(static(part)) for part in (x.shape[:axis], x.shape[axis + 1 :]))
    parts = op.split(op.reshape(x, (before, sum(sizes), behind)), sizes, axis=1)
    return [op.reshape(part, x.shape_with(axis, n)) for part, n in zip(parts, sizes, strict=True)]


TARGET = Target(
    "litert",
    "onnx2tf 2.6.9, ai-edge-litert 2.1.2",
    ("unroll",),
    other_names=("tflite", "tensorflowlite", "onnx2tf"),
    unsupported=("Elu", "Flatten", "Softplus"),
    lacks_types=(ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16),
    sizes=STATIC,  # with an open batch size XNNPACK rejects some
    integer_products=True,
    # Sixteen steps on [batch, hidden] take 0.8 to 0.9 of the time of those on [1, batch, hidden].
    dialect=Dialect(matrix_product=True, matrix_steps=True),
    instead=(("Split", split_of_rank_3),),
    # It fuses a Relu with the Add, Sub, Mul or Div before it, and loses what these compute, also where it is an
    # output; of a Transpose that moves nothing it loses the output.
    finish=(max_of_outputs,),
    outputs_apart=as_sum_with_zero,
    loses_copies=True,
)
