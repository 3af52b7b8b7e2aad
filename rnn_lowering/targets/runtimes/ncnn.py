"""ncnn (`pip install ncnn pnnx`): converted by pnnx; no recurrent ONNX operator, Scan or Loop."""

from __future__ import annotations

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.targets.target import Target

TARGET = Target(
    "ncnn",
    "pnnx 20261020",
    ("unroll",),
    other_names=("pnnx",),
    newest_opset=26,
    unsupported=("Softplus", "Softsign", "ThresholdedRelu", "Less", "Gather", "ReduceSum"),
    lacks=(("LinearAttention", "its tensors have at most 4 axes"),),
    sequence_lens=False,
    integer_products=False,
    dialect=Dialect(matrix_product=True, matrix_steps=True),
    outputs_apart=True,  # pnnx aborts at an Identity of an output of the model
)
