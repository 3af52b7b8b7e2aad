"""emx-onnx-cgen (`pip install emx-onnx-cgen`), by hand: it makes C code."""

from __future__ import annotations

from rnn_lowering.targets.target import Target

TARGET = Target("emx-onnx-cgen", "1.4.0", ("scan", "unroll"))
