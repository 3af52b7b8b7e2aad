"""What can go wrong, each with the node that it concerns."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

from rnn_lowering.printable import NAME, printable


@dataclass(frozen=True)
class NodeRef:
    """A node in an error: its name (or that of its first output), its operator and the scope that it is in.

    As text all three are such that they can be printed.
    """

    name: str
    operator: str
    scope: str

    def __str__(self) -> str:
        name, scope = printable(self.name, NAME), printable(self.scope, 2 * NAME)
        return f"{printable(self.operator, NAME)} node '{name}' in {scope}"


class RnnLoweringError(Exception):
    """Base of every error that this package raises for a model, a file or an option.

    Its text is one line that can be printed; `reason` and `hint` are in full what was found, names included.

    Args:
        reason: The fact.
        hint: What to try.
        node: The node concerned, if it is about one.
    """

    def __init__(self, reason: str, *, hint: str = "", node: NodeRef | None = None) -> None:
        self.reason = reason
        self.hint = hint
        self.node = node
        text = f"{node}: {printable(reason)}" if node else printable(reason)
        super().__init__(f"{text}; {printable(hint)}" if hint else text)


class InvalidNodeError(RnnLoweringError):
    """A node specifies what its operator does not allow."""


class UnsupportedError(RnnLoweringError):
    """A valid model, node or option that this package (or the chosen form) cannot lower."""


class UnknownSizeError(UnsupportedError):
    """A form or target needs sizes of a node that do not follow from the model.

    Args:
        sizes: Which of T and N.
    """

    def __init__(self, reason: str, *, hint: str = "", node: NodeRef | None = None, sizes: tuple[str, ...]) -> None:
        self.sizes = sizes
        super().__init__(reason, hint=hint, node=node)


class OptionError(UnsupportedError, ValueError):
    """An option has a value that does not exist."""


class ModelFileError(RnnLoweringError):
    """A file that cannot be read as an ONNX model, or cannot be written."""


class InternalError(RnnLoweringError):
    """A fault of this package, which a model brought to light: its cause is the exception that was not expected."""


class VerificationError(RnnLoweringError):
    """The lowered model computes something else than the original: it has not been written.

    Args:
        report: The `FileReport`: what was done and how far the outputs are apart.
    """

    def __init__(self, reason: str, *, hint: str = "", report: Any = None) -> None:
        self.report = report
        super().__init__(reason, hint=hint)


class NotVerifiedError(VerificationError):
    """A verification was required, and no comparison was possible: the lowered model has not been written."""


class RnnLoweringWarning(UserWarning):
    """A node whose meaning the specification leaves open: the message tells how it was understood."""


_INNER = ("rnn_lowering", "onnx_ir", "onnxscript")


def warn(text: str) -> None:
    """Warn of an interpretation, at the line of the caller outside this package and the passes around it."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RnnLoweringWarning, stacklevel=level)
