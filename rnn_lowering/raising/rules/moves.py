"""Operators that only move elements, of polynomials and of numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lowering.raising.polynomials import MOST_ELEMENTS, checked_size
from rnn_lowering.raising.rules.elements import Given, Step, StepRule, as_polynomials
from rnn_lowering.types import Array


def identity(e: Step, node: ir.Node, given: Given) -> Array | None:
    """Return the first input as it is."""
    return given[0]


def _transpose(e: Step, node: ir.Node, given: Given) -> Array:
    assert given[0] is not None
    return given[0].transpose(e.integers(node, "perm"))


def _reshape(e: Step, node: ir.Node, given: Given) -> Array:
    x, shape = given
    assert x is not None
    assert shape is not None
    keeps = not node.attributes.get_int("allowzero", 0)
    return x.reshape([x.shape[n] if size == 0 and keeps else int(size) for n, size in enumerate(shape)])


def _flatten(e: Step, node: ir.Node, given: Given) -> Array:
    assert given[0] is not None
    axis = node.attributes.get_int("axis", 1) or 0
    return given[0].reshape(int(np.prod(given[0].shape[:axis])), -1)


def _squeeze(e: Step, node: ir.Node, given: Given) -> Array:
    assert given[0] is not None
    axes, value = e.integers(node, "axes"), node.inputs[0]
    if not axes and (value is None or e.open_axes(value)):
        raise ValueError("axes")  # one of an open size may go
    return np.squeeze(given[0], tuple(axes) if axes else None)


def _unsqueeze(e: Step, node: ir.Node, given: Given) -> Array:
    assert given[0] is not None
    return np.expand_dims(given[0], tuple(e.integers(node, "axes") or ()))


def _concat(e: Step, node: ir.Node, given: Given) -> Array:
    arrays = [array for array in given if array is not None]
    symbolic = any(array.dtype == object for array in arrays)
    return np.concatenate([as_polynomials(a) if symbolic else a for a in arrays], node.attributes["axis"].as_int())


def _split(e: Step, node: ir.Node, given: Given) -> list[Array]:
    x, axis, count = given[0], node.attributes.get_int("axis", 0) or 0, len(node.outputs)
    assert x is not None
    sizes = e.integers(node, "split")
    if sizes is None:
        part = -(-x.shape[axis] // count)
        sizes = [min(part, x.shape[axis] - n * part) for n in range(count)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise ValueError("sizes")
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _slice(e: Step, node: ir.Node, given: Given) -> Array:
    x = given[0]
    assert x is not None
    starts, ends, axes = (e.integers(node, name) for name in ("starts", "ends", "axes"))
    steps = e.integers(node, "steps") if len(given) > 4 else None
    assert starts is not None
    assert ends is not None
    places = [slice(None)] * x.ndim
    axes = list(range(len(starts))) if axes is None else axes
    for axis, start, end, stride in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        size = x.shape[axis]
        start = max(start, -size) if stride < 0 else start
        places[axis] = slice(start, None if stride < 0 and end < -size else end, stride)
    return x[tuple(places)]


def _gather(e: Step, node: ir.Node, given: Given) -> Array:
    x, index = given
    assert x is not None
    assert index is not None
    axis = node.attributes.get_int("axis", 0) or 0
    if x.dtype == object or index.size > x.shape[axis]:
        checked_size([index.size, x.size // max(x.shape[axis], 1)])
    return np.asarray(np.take(x, index.astype(np.int64), axis), x.dtype)


def _expand(e: Step, node: ir.Node, given: Given) -> Array:
    x, shape = given
    assert x is not None
    assert shape is not None
    sizes = np.broadcast_shapes(x.shape, tuple(int(n) for n in shape))
    if int(np.prod(sizes, dtype=object)) > MOST_ELEMENTS:
        raise ValueError("too large")
    return np.broadcast_to(x, sizes)


def _tile(e: Step, node: ir.Node, given: Given) -> Array:
    x, repeats = given
    assert x is not None
    assert repeats is not None
    if int(np.prod(repeats, dtype=object)) * x.size > MOST_ELEMENTS:
        raise ValueError("too large")
    return np.tile(x, [int(n) for n in repeats])


MOVES: dict[str, StepRule] = {
    "Concat": _concat,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Identity": identity,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""By operator, what it returns of polynomials or numbers."""
