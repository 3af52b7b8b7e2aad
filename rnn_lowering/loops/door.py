"""What other rooms use of Loops and Scans: how they are read, and how they are lowered."""

from rnn_lowering.loops.body import ScanBody, checked_axis, read_body
from rnn_lowering.loops.lowering import LoopForms, LoopReport, lower_loops
from rnn_lowering.loops.rolling.rolling import raise_all, traced_loops
from rnn_lowering.loops.step_values import LoopLimits

__all__ = [
    "LoopForms",
    "LoopLimits",
    "LoopReport",
    "ScanBody",
    "checked_axis",
    "lower_loops",
    "raise_all",
    "read_body",
    "traced_loops",
]
