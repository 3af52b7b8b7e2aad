"""What can go wrong, each with the node that it concerns."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NodeRef:
    """A node in an error: its name (or that of its first output), its operator and the scope that it is in."""

    name: str
    operator: str
    scope: str

    def __str__(self) -> str:
        return f"{self.operator} node '{self.name}' in {self.scope}"


class RnnLoweringError(Exception):
    """Base of every error that this package raises for a model, a file or an option.

    Args:
        reason: The fact.
        hint: What to try.
        node: The node concerned, if it is about one.
    """

    def __init__(self, reason: str, *, hint: str = "", node: NodeRef | None = None) -> None:
        self.reason = reason
        self.hint = hint
        self.node = node
        text = f"{node}: {reason}" if node else reason
        super().__init__(f"{text}; {hint}" if hint else text)


class InvalidNodeError(RnnLoweringError):
    """A node specifies what its operator does not allow."""


class UnsupportedError(RnnLoweringError):
    """A valid model, node or option that this package (or the chosen form) cannot lower."""


class OptionError(UnsupportedError, ValueError):
    """An option has a value that does not exist."""


class ModelFileError(RnnLoweringError):
    """A file that cannot be read as an ONNX model, or cannot be written."""


class VerificationError(RnnLoweringError):
    """The lowered model computes something else than the original: it has not been written.

    Args:
        report: The `Report`: what was done and how far the outputs are apart.
    """

    def __init__(self, reason: str, *, hint: str = "", report: Any = None) -> None:
        self.report = report
        super().__init__(reason, hint=hint)


class RnnLoweringWarning(UserWarning):
    """A node whose meaning the specification leaves open: the message tells how it was understood."""


_INNER = ("rnn_lowering", "onnx_ir", "onnxscript")


def warn(text: str) -> None:
    """Warn of an interpretation, at the line of the caller outside this package and the passes around it."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RnnLoweringWarning, stacklevel=level)
