"""OpenVINO (`pip install openvino`): layout 1, peepholes, input_forget and two nodes on one X go wrong in its own
import. Of a Scan that it recognizes it makes its own LSTM, which takes 0.97 to 1.02 of the time of the node."""

from __future__ import annotations

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.targets.target import Target

TARGET = Target(
    "openvino",
    "2026.4.1",
    ("loop", "scan", "unroll"),
    constants_in_scan=True,
    integer_products=True,
    recognized_lstm=True,
    unroll_up_to=100,
    dialect=Dialect(dequantize_inside=True),
)
