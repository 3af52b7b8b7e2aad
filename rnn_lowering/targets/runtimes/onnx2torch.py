"""onnx2torch (`pip install onnx2torch`), by hand, and two that take what it makes: ExecuTorch and Core ML."""

from __future__ import annotations

from rnn_lowering.targets.target import Target

ONNX2TORCH = Target(
    "onnx2torch", "1.5.15", ("unroll",), newest_opset=17, oldest_opset=9, unsupported=("ThresholdedRelu",)
)

# It has no Split whose sizes are an input, as from opset 13 on.
EXECUTORCH = Target(
    "executorch", "1.5.1", ("unroll",), newest_opset=12, oldest_opset=9, unsupported=("ThresholdedRelu",)
)

COREML = Target(
    "coreml",
    "coremltools 9.0",
    ("unroll",),
    other_names=("coremltools",),
    newest_opset=17,
    oldest_opset=9,
    unsupported=("ThresholdedRelu", "Less"),
    sequence_lens=False,
    converted_only=True,
)
