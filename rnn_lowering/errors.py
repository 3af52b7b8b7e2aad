"""The errors and the warning of this package, with the node that they are about."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

from rnn_lowering.printable import NAME, printable


@dataclass(frozen=True)
class NodeRef:
    """A node in an error: its name (or that of its first output), its operator and the scope that it is in.

    Control characters are escaped in its text.
    """

    name: str
    operator: str
    scope: str

    def __str__(self) -> str:
        name, scope = printable(self.name, NAME), printable(self.scope, 2 * NAME)
        return f"{printable(self.operator, NAME)} node '{name}' in {scope}"


class RnnLoweringError(Exception):
    """Base of every error that this package raises for a model, a file or an option.

    Its text is one printable line; `reason` and `hint` are unchanged, with names as they are in the model.

    Args:
        reason: What is wrong.
        hint: What to try.
        node: The node, if the error is about one.
    """

    def __init__(self, reason: str, *, hint: str = "", node: NodeRef | None = None) -> None:
        super().__init__()
        self.reason = reason
        self.node = node
        self.advise(hint)

    def advise(self, *hints: str) -> None:
        """Replace the hint by these; empty ones do not count."""
        self.hint = ", or ".join(filter(None, hints))
        text = f"{self.node}: {printable(self.reason)}" if self.node else printable(self.reason)
        self.args = (f"{text}; {printable(self.hint)}" if self.hint else text,)


class InvalidNodeError(RnnLoweringError):
    """A node specifies what its operator does not allow."""


class UnsupportedError(RnnLoweringError):
    """A valid model, node or option that this package, the form or the target does not support."""


class UnknownSizeError(UnsupportedError):
    """A form or target needs sizes of a node that do not follow from the model.

    Args:
        sizes: Which of T and N.
    """

    def __init__(self, reason: str, *, hint: str = "", node: NodeRef | None = None, sizes: tuple[str, ...]) -> None:
        self.sizes = sizes
        super().__init__(reason, hint=hint, node=node)


class UnknownLengthsError(UnsupportedError):
    """A form or target needs sequence_lens that are known before run time."""


class OptionError(UnsupportedError, ValueError, TypeError):
    """An argument has a value that does not exist, or another type."""


class ModelFileError(RnnLoweringError):
    """A file that cannot be read as an ONNX model, or cannot be written."""


class InternalError(RnnLoweringError):
    """A fault of this package; `__cause__` is the unexpected exception."""


class VerificationError(RnnLoweringError):
    """The lowered model does not compute the same as the original; it has not been written.

    Args:
        report: The `FileReport`, with the differences of the outputs.
    """

    def __init__(self, reason: str, *, hint: str = "", report: Any = None) -> None:
        self.report = report
        super().__init__(reason, hint=hint)


class NotVerifiedError(VerificationError):
    """A verification was required, but no comparison was possible; the lowered model has not been written."""


class RnnLoweringWarning(UserWarning):
    """The specification of a node is ambiguous, and the message says how it was interpreted; or what is asked for
    is probably not meant, or takes long."""


def deepest_cause(error: BaseException) -> BaseException:
    """Return the error that began a chain: libraries add one about all below it at each level of a model."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


_INNER = ("rnn_lowering", "onnx_ir", "onnxscript")


def warn(text: str) -> None:
    """Issue a warning at the line of the caller outside this package, onnx_ir and onnxscript."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RnnLoweringWarning, stacklevel=level)
