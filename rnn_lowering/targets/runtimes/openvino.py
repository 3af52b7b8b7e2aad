"""OpenVINO (`pip install openvino`): its own import is wrong for layout 1, peepholes, input_forget and two nodes on
one X. A recognized Scan becomes its own LSTM, in 0.97 to 1.02 of the node's time. Chunks of a LinearAttention
run 7 times as fast as its steps in a loop (128 steps, 4 heads of 64x64)."""

from __future__ import annotations

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.targets.target import Target

TARGET = Target(
    "openvino",
    "2026.4.1",
    ("loop", "scan", "unroll"),
    attention=("loop", "scan", "unroll", "chunked"),
    exported_forms=("loop", "unroll"),  # a Scan whose rows no step uses has one step
    runs_exported=False,  # it rejects those of Keras and TensorFlow, or takes 30 times as long
    constants_in_scan=True,
    integer_products=True,
    recognized_lstm=True,
    unsupported=("ReduceSum",),  # of what is added to sums, one number for each channel, it adds the first to all
    unroll_up_to=100,
    dialect=Dialect(dequantize_inside=True, join_up_to=128, stack_up_to=128),
)
