"""Slices of one value that together take all of it: one Split does the same, in one node."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.loops.facts import Item, TensorKind, slice_bounds, takes_all


def parts_of(
    slices: Sequence[ir.Node], bounds: Sequence[Sequence[Item]], kind: TensorKind
) -> tuple[int, list[int]] | None:
    """Return the axis along which Slices of a value take all of it, and where each starts; None where they do not.

    Args:
        slices: The nodes.
        bounds: The items of the starts, ends, axes and steps of each.
        kind: The type and shape of the value.
    """
    found = [_part(items, kind) for items in bounds]
    parts = [part for part in found if part is not None]
    if len(parts) < len(slices) or len({axis for axis, _, _ in parts}) != 1:
        return None
    axis = parts[0][0]
    ordered = sorted((start, end) for _, start, end in parts)
    ends = [0, *(end for _, end in ordered)]
    if ends[-1] != kind.dims[axis] or any(start != end for (start, _), end in zip(ordered, ends, strict=False)):
        return None
    return axis, [start for _, start, _ in parts]


def _part(items: Sequence[Item], kind: TensorKind) -> tuple[int, int, int] | None:
    """Return the one axis that a Slice shortens, where it starts and where it ends."""
    bounds = slice_bounds(items)
    if bounds is None or kind.shape is None:
        return None
    shortened = []
    for axis, start, end, step in bounds:
        if step != 1 or not -len(kind.shape) <= axis < len(kind.shape):
            return None
        if takes_all(start, end, step):
            continue
        size = kind.dims[axis]
        if size is None or not 0 <= start < min(end, size):
            return None
        shortened.append((axis % len(kind.shape), int(start), int(min(end, size))))
    return shortened[0] if len(shortened) == 1 else None
