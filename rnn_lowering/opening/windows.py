"""The windows of convolutions and pools along an open axis, which they move along row by row."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.facts.size import Shape

WINDOWED = ("Conv", "AveragePool", "LpPool", "MaxPool")
"""Operators with windows."""


@dataclass(frozen=True)
class SlidingWindow:
    """A window that moves by one row.

    Attributes:
        span: How many rows it covers.
        before, after: How many rows of padding are at the start and at the end.
    """

    span: int
    before: int
    after: int


def sliding_window(node: ir.Node, axis: int, weights: Shape) -> SlidingWindow | None:
    """Return the window along an axis; None if it moves by more than one row, or is not known.

    Args:
        node: One of `WINDOWED`.
        axis: The axis of its input, 2 or higher.
        weights: The shape of its second input; empty for a pool.
    """
    given, n = node.attributes, axis - 2
    kernel = list(given.get_ints("kernel_shape") or [int(dim.constant or 0) for dim in weights[2:]])
    if n >= len(kernel) or not kernel[n] or given.get_int("ceil_mode"):
        return None
    strides, dilations, pads = (
        list(given.get_ints(name) or [default] * 2 * len(kernel))
        for name, default in (("strides", 1), ("dilations", 1), ("pads", 0))
    )
    span = dilations[n] * (kernel[n] - 1) + 1
    padded = {
        "NOTSET": (pads[n], pads[n + len(kernel)]),
        "VALID": (0, 0),
        "SAME_UPPER": ((span - 1) // 2, span // 2),
        "SAME_LOWER": (span // 2, (span - 1) // 2),
    }.get(given.get_string("auto_pad", "NOTSET") or "NOTSET")
    return None if padded is None or strides[n] != 1 else SlidingWindow(span, *padded)
