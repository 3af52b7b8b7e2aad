"""Runtimes that were tested by hand and need no rewrites: emx-onnx-cgen, ezkl, jaxonnxruntime and rknn-toolkit2."""

from __future__ import annotations

from rnn_lowering.targets.target import Target

EMX = Target("emx-onnx-cgen", "1.4.0", ("scan", "unroll"))
"""It makes C code."""

EZKL = Target("ezkl", "23.0.5", ("unroll", "scan"))
"""It computes in fixed point."""

JAXONNXRUNTIME = Target(
    "jaxonnxruntime",
    "0.3.0",
    ("unroll",),
    newest_opset=20,
    oldest_opset=13,
    unsupported=("Softsign", "ThresholdedRelu", "HardSigmoid", "Elu", "Clip"),
    since=(("Relu", 14),),  # Relu-13 fails, Relu-14 does not
)

RKNN = Target("rknn", "rknn-toolkit2 2.5.0", ("scan", "unroll"), other_names=("rknntoolkit2",), newest_opset=19)
"""The simulator of an NPU, in float16."""
