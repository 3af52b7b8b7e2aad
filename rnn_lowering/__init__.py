"""Turn ONNX models with RNN, GRU and LSTM nodes into equivalent models of primitive operators.

import rnn_lowering as rl
new = rl.lower(model)                          # ModelProto -> new ModelProto; ir.Model in place
report = rl.lower_file("in.onnx", "out.onnx")  # checked in onnxruntime before it is written
check = rl.verify(original, new)               # bool(check), check.max_abs, str(check)
rl.LowerRecurrentPass()(ir_model)              # a pass of onnx_ir
rl.inspect(model)                              # list[RecurrentSpec]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnn_lowering._version import __version__
    from rnn_lowering.api import inspect, lower, lower_file
    from rnn_lowering.errors import (
        InvalidNodeError,
        ModelFileError,
        RnnLoweringError,
        RnnLoweringWarning,
        UnsupportedError,
        VerificationError,
    )
    from rnn_lowering.passes.lower import LowerRecurrentPass
    from rnn_lowering.spec.node import RecurrentSpec
    from rnn_lowering.verification.tolerance import Tolerance
    from rnn_lowering.verification.whole import verify

__all__ = [
    "InvalidNodeError",
    "LowerRecurrentPass",
    "ModelFileError",
    "RecurrentSpec",
    "RnnLoweringError",
    "RnnLoweringWarning",
    "Tolerance",
    "UnsupportedError",
    "VerificationError",
    "__version__",
    "inspect",
    "lower",
    "lower_file",
    "verify",
]

_MODULES = {
    "__version__": "_version",
    "inspect": "api",
    "lower": "api",
    "lower_file": "api",
    "verify": "verification.whole",
    "LowerRecurrentPass": "passes.lower",
    "RecurrentSpec": "spec.node",
    "Tolerance": "verification.tolerance",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rnn_lowering' has no attribute '{name}'")
    return getattr(import_module(f"rnn_lowering.{_MODULES.get(name, 'errors')}"), name)
