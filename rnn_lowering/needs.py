"""onnxruntime, which comparisons and streams run in; lowering does not need it, and some platforms have none."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rnn_lowering.errors import UnsupportedError

_INSTALL = "pip install onnxruntime"


def without_onnxruntime(what: str) -> str:
    """Return that something needs onnxruntime; "" where that is installed."""
    try:
        found = find_spec("onnxruntime")
    except ImportError:
        found = None
    return "" if found else f"{what} needs onnxruntime, which is not installed ({_INSTALL})"


def onnxruntime(what: str) -> Any:
    """Return the module onnxruntime.

    Args:
        what: What needs it, for the error.

    Raises:
        UnsupportedError: It is not installed.
    """
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise UnsupportedError(f"{what} needs onnxruntime: {error}", hint=_INSTALL) from error
