"""Replace the recurrent nodes of ONNX models with primitive operators.

import rnn_lowering as rl
new = rl.lower(model)                          # ModelProto -> new ModelProto; ir.Model in place
report = rl.lower_file("in.onnx", "out.onnx")  # checked in onnxruntime before it is written
check = rl.verify(original, new)               # bool(check), check.max_abs, str(check)
rl.LowerRecurrentPass()(ir_model)              # a pass of onnx_ir
rl.inspect(model)                              # list[NodeSpec]

The examples of each class and function use `model = onnx.load("model.onnx")`, the model in the folder examples/.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from rnn_lowering.api import inspect, lower, lower_file, preview
    from rnn_lowering.compare.options import Check, Tolerance
    from rnn_lowering.compare.result import Verification
    from rnn_lowering.compare.verify import verify, verify_stream
    from rnn_lowering.errors import (
        InternalError,
        InvalidNodeError,
        ModelFileError,
        NotVerifiedError,
        OptionError,
        RnnLoweringError,
        RnnLoweringWarning,
        UnknownLengthsError,
        UnknownSizeError,
        UnknownTripsError,
        UnsupportedError,
        VerificationError,
    )
    from rnn_lowering.options import Lowering
    from rnn_lowering.passes.lower import LowerRecurrentPass
    from rnn_lowering.passes.report import Report
    from rnn_lowering.report.file_report import FileReport
    from rnn_lowering.streaming.integers.calibration import Calibration
    from rnn_lowering.streaming.integers.quantization import Quantization, quantize_stream
    from rnn_lowering.streaming.metadata import StreamPlan
    from rnn_lowering.streaming.stage import StreamPass
    from rnn_lowering.streaming.stream_runner import Stream
    from rnn_lowering.targets.table import TARGETS

_MODULES = {
    "api": ("inspect", "lower", "lower_file", "preview"),
    "errors": (
        "InternalError",
        "InvalidNodeError",
        "ModelFileError",
        "NotVerifiedError",
        "OptionError",
        "RnnLoweringError",
        "RnnLoweringWarning",
        "UnknownLengthsError",
        "UnknownSizeError",
        "UnknownTripsError",
        "UnsupportedError",
        "VerificationError",
    ),
    "compare.options": ("Check", "Tolerance"),
    "options": ("Lowering",),
    "passes.lower": ("LowerRecurrentPass",),
    "passes.report": ("Report",),
    "streaming.stage": ("StreamPass",),
    "report.file_report": ("FileReport",),
    "streaming.integers.calibration": ("Calibration",),
    "streaming.integers.quantization": ("Quantization", "quantize_stream"),
    "streaming.stream_runner": ("Stream",),
    "streaming.metadata": ("StreamPlan",),
    "targets.table": ("TARGETS",),
    "compare.result": ("Verification",),
    "compare.verify": ("verify", "verify_stream"),
}
"""Module -> its public names, imported at first use: the command's --help needs none."""

_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "TARGETS",
    "Calibration",
    "Check",
    "FileReport",
    "InternalError",
    "InvalidNodeError",
    "LowerRecurrentPass",
    "Lowering",
    "ModelFileError",
    "NotVerifiedError",
    "OptionError",
    "Quantization",
    "Report",
    "RnnLoweringError",
    "RnnLoweringWarning",
    "Stream",
    "StreamPass",
    "StreamPlan",
    "Tolerance",
    "UnknownLengthsError",
    "UnknownSizeError",
    "UnknownTripsError",
    "UnsupportedError",
    "Verification",
    "VerificationError",
    "__version__",
    "inspect",
    "lower",
    "lower_file",
    "preview",
    "quantize_stream",
    "verify",
    "verify_stream",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("rnn_lowering.errors").version()
    if name not in _HOMES:
        raise AttributeError(f"module 'rnn_lowering' has no attribute '{name}'")
    return getattr(import_module(f"rnn_lowering.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
