"""jaxonnxruntime (`pip install jaxonnxruntime`), by hand: Relu-13 fails, Relu-14 does not."""

from __future__ import annotations

from rnn_lowering.targets.target import Target

TARGET = Target(
    "jaxonnxruntime",
    "0.3.0",
    ("unroll",),
    newest_opset=20,
    oldest_opset=13,
    unsupported=("Softsign", "ThresholdedRelu", "HardSigmoid", "Elu", "Clip"),
    since=(("Relu", 14),),
)
