"""What a comparison cannot show: zero weights hide what they multiply, outputs that never vary hide everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from rnn_lowering.mapped import array_of
from rnn_lowering.model.scopes import recurrent_nodes
from rnn_lowering.spec.constants import constant_of
from rnn_lowering.types import Array
from rnn_lowering.verification.tolerance import blocks


def zero_weights(model: ir.Model) -> list[str]:
    """Say which recurrent nodes have weights that are all zero."""
    found = []
    for entry in recurrent_nodes(model):
        for symbol, value in zip("WR", entry.node.inputs[1:3], strict=False):
            tensor = None if value is None else constant_of(value, entry.opset)
            if tensor is not None and tensor.size and not any(part.any() for part in blocks(array_of(tensor))):
                found.append(f"{symbol} of {entry.ref} is all zeros: a fault in what it multiplies would not show")
    return found


def constant_outputs(runs: Iterable[Mapping[str, Array]]) -> list[str]:
    """Say which outputs are one number throughout.

    Args:
        runs: The outputs of each run by name.
    """
    ranges: dict[str, tuple[float, float]] = {}
    sizes: dict[str, int] = {}
    for run in runs:
        for name, array in run.items():
            if array.dtype.kind != "f" or not array.size:
                continue
            low, high = ranges.get(name, (float("inf"), -float("inf")))
            ranges[name] = min(low, float(array.min())), max(high, float(array.max()))
            sizes[name] = sizes.get(name, 0) + array.size
    return [
        f"output '{name}' is {low:g} throughout: its comparison shows little"
        for name, (low, high) in ranges.items()
        if low == high and sizes[name] > 1
    ]
