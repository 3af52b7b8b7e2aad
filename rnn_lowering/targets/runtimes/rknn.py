"""rknn-toolkit2 (`pip install rknn-toolkit2`), by hand: the simulator of an NPU, in float16."""

from __future__ import annotations

from rnn_lowering.targets.target import Target

TARGET = Target("rknn", "rknn-toolkit2 2.5.0", ("scan", "unroll"), other_names=("rknntoolkit2",), newest_opset=19)
