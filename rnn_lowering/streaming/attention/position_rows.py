"""Rows by distance: a value with a row for each distance of two frames, computed from a Range or a table.

Relative positions start from the distances T - 1 down to -(T - 1), or down to 0, of a whole sequence. Each row of
what is computed from them must follow from its own distance alone, so a call computes just the rows that it needs.
Their product with the queries is shifted to the pairs of frames (`shifts`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.infer import infer, slice_bounds
from rnn_lowering.facts.known import KnownValues, SizingError, axes_of
from rnn_lowering.facts.node_outputs import compute_node
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.facts.size import ONE, Shape, Size, size
from rnn_lowering.streaming.editor import Editor, Emitter, input_of
from rnn_lowering.streaming.frames import DistanceRows
from rnn_lowering.types import Array, Dims

_MOST_NUMBERS = 1 << 22
"""Maximum numbers of rows that become a constant."""


def position_rows(known: KnownValues, value: ir.Value, frames: Size) -> DistanceRows | None:
    """Return how a value has a row for each distance in a sequence of so many frames; None if it has not.

    In this module, None in `Dims` is the number of distances.
    """
    chain = _ancestors(known, value)
    sources = [node for node in chain if node.op_type in ("Range", "Slice") and _is_source(known, node)]
    if len(sources) != 1:
        return None
    (source,) = sources
    start = (_counted if source.op_type == "Range" else _cut)(known, source, frames)
    if start is None:
        return None
    rows, dims = start
    dims_of: dict[ir.Value, Dims] = {source.outputs[0]: dims}
    count = frames if rows[-1] == 0 else frames * 2 - 1
    first = {source.outputs[0]: tuple(count if n is None else size(n) for n in dims)}
    known = replace(known, shapes=known.shapes | first)
    after = [node for node in chain if node is not source]
    for node in after:
        sizes = _dims_after(known, node, dims_of)
        if sizes is None:
            return None
        dims_of[node.outputs[0]] = sizes
    targets = {node: dims_of[node.outputs[0]] for node in after if node.op_type == "Reshape"}
    return DistanceRows(source, tuple(after), dims_of[value], *rows, targets)


def _ancestors(known: KnownValues, value: ir.Value) -> list[ir.Node]:
    """Return the nodes from which a value follows, down to constants and sizes, in their order."""
    nodes: dict[ir.Node, None] = {}

    def add(value: ir.Value | None) -> None:
        node = None if value is None else value.producer()
        if value is None or node is None or node in nodes or known.constant(value) is not None:
            return
        if not _is_source(known, node):
            for each in node.inputs[: 1 if node.op_type == "Reshape" else None]:
                add(each)
        nodes[node] = None

    add(value)
    return list(nodes)


def _is_source(known: KnownValues, node: ir.Node) -> bool:
    """Whether a node is a Range, or a Slice of a table."""
    if node.domain:
        return False
    return node.op_type == "Range" or (node.op_type == "Slice" and known.constant(node.inputs[0]) is not None)


_Start = tuple[tuple[int, int, int | None, int | None], Dims]


def _counted(known: KnownValues, node: ir.Node, frames: Size) -> _Start | None:
    numbers = [known.numbers(value) for value in node.inputs]
    if any(number is None or len(number) != 1 for number in numbers):
        return None
    start, limit, step = (number[0] for number in numbers if number)
    if step.constant is None or abs(step.constant) != 1:
        return None
    count, base = (limit - start) * step.constant, (start + (frames - 1) * step.constant).constant
    negative = count == frames * 2 - 1
    if base is None or base.denominator != 1 or not (negative or count == frames):
        return None
    return (int(base), int(step.constant), None, None if negative else 0), (None,)


def _cut(known: KnownValues, node: ir.Node, frames: Size) -> _Start | None:
    table = known.constant(node.inputs[0])
    assert table is not None
    bounds = slice_bounds(known, node, table.ndim)
    timed = [] if bounds is None else [axis for axis, own in bounds.items() if any(b.varies for b in own)]
    if bounds is None or len(bounds) != 1 or len(timed) != 1:
        return None
    first, last, step = bounds[timed[0]]
    base, length = (first + frames - 1).constant, table.shape[timed[0]]
    negative = last - first == frames * 2 - 1
    if step.constant != 1 or base is None or not 0 <= base < length or not (negative or last - first == frames):
        return None
    dims = tuple(None if axis == timed[0] else n for axis, n in enumerate(table.shape))
    most = int(min(base + 1, length - base) if negative else base + 1)
    return (int(base), 1, most, None if negative else 0), dims


def cut_table(known: KnownValues, node: ir.Node) -> None:
    """Note the shape of a constant that a Slice cuts to the number of frames: it has a row for each frame."""
    value, output = node.inputs[0], node.outputs[0]
    shape = None if value is None else known.shapes.get(value)
    bounds = None if shape is None else slice_bounds(known, node, len(shape))
    if shape is None or bounds is None:
        return
    dims = list(shape)
    for axis, (first, last, step) in bounds.items():
        whole = last.constant is not None and shape[axis].at_most(last.constant)
        if first != size(0) or step != size(1) or not (whole or last.varies) or shape[axis] == ONE:
            return
        dims[axis] = shape[axis] if whole else last
    known.shapes[output] = tuple(dims)


# Nodes that compute each row from itself


_OF_EACH_ROW = ("Concat", "Gemm", "MatMul", "Transpose")
"""Operators that compute each row from itself if their labels of axes say so."""


def _dims_after(known: KnownValues, node: ir.Node, found: Mapping[ir.Value, Dims]) -> Dims | None:
    """Return the sizes of the output of a node that computes each row from itself; None for other nodes."""
    with suppress(SizingError):
        infer(known, node)
    row, dims = operator_of(node), _dims(known.shapes.get(node.outputs[0], ()))
    if row.random or 0 in dims or not len([v for v in node.outputs if v.name]) == dims.count(None) == 1:
        return None
    if row.keeps_order:
        before = found.get(input_of(node))
        return dims if before is not None and _around(before) == _around(dims) else None
    axes = axes_of(known, node) if row.elementwise or node.op_type in _OF_EACH_ROW else None
    label = None if axes is None else axes.output[dims.index(None)]
    if axes is None or label is None or (not row.elementwise and node.inputs[0] not in found):
        return None
    for slot, value in enumerate(node.inputs):
        array = None if value in found else known.constant(value)
        if value is None or (array is None and value not in found):
            return None
        sizes = found[value] if array is None else array.shape
        if any(
            n not in (None, 1) if axis == label else n is None
            for axis, n in zip(axes.inputs[slot], sizes, strict=True)
        ):
            return None
    return dims


def _dims(shape: Shape) -> Dims:
    """Return the sizes of a value with distances; 0 for one that is not known."""
    return tuple(None if dim.varies else int(dim.constant or 0) for dim in shape)


def _around(dims: Dims) -> tuple[int, int]:
    """Return how many elements are before the axis of the distances, and behind it."""
    axis = dims.index(None)
    return _count(dims[:axis]), _count(dims[axis:])


def _count(dims: Dims) -> int:
    """Return the number of elements per distance."""
    return math.prod(1 if n is None else n for n in dims)


# The rows of a call


def numbers_of(known: KnownValues, rows: DistanceRows, distances: Sequence[int]) -> Array:
    """Return the rows of these distances. Beyond the ends of a table its last row is returned."""
    source, index = rows.source, rows.base - rows.step * np.array(distances)
    if source.op_type == "Range":
        computed = {source.outputs[0]: index.astype(known.types[source.outputs[0]].numpy())}
    else:
        table = known.constant(source.inputs[0])
        assert table is not None
        axis = _axis_of_table(known, source)
        computed = {source.outputs[0]: table.take(np.clip(index, 0, table.shape[axis] - 1), axis)}
    for node in rows.chain:
        if node in rows.targets:
            array = computed[input_of(node)].reshape([-1 if n is None else n for n in rows.targets[node]])
        else:
            inputs = {v: c for v in node.inputs if v is not None and (c := known.constant(v)) is not None}
            inputs |= {v: computed[v] for v in node.inputs if v in computed}
            (array, *_) = compute_node(node, inputs, known.opset)
        computed[node.outputs[0]] = array
    return computed[(rows.chain[-1] if rows.chain else source).outputs[0]]


def are_few(rows: DistanceRows, count: int) -> bool:
    """Whether so many rows may be a constant."""
    widest = max(_count(dims) for dims in (rows.dims, *rows.targets.values()))
    return count * widest <= _MOST_NUMBERS


def emit_rows(editor: Editor, emit: Emitter, rows: DistanceRows, distances: ir.Value) -> ir.Value:
    """Emit the rows of distances that a call computes, one after another."""
    source, known = rows.source, editor.known
    index = emit("Sub", emit.counts([rows.base]), distances) if rows.step == 1 else distances
    if rows.step != 1 and rows.base:
        index = emit("Add", distances, emit.counts([rows.base]))
    if source.op_type == "Range":
        dtype = known.types[source.outputs[0]]
        value = index if dtype == editor.count_type else emit("Cast", index, to=int(dtype))
    else:
        table, axis = input_of(source), _axis_of_table(known, source)
        held = known.constant(table)
        assert held is not None
        index = emit("Min", emit("Max", index, emit.counts([0])), emit.counts([held.shape[axis] - 1]))
        value = emit("Gather", table, index, axis=axis)
    held_now = {source.outputs[0]: value}
    for node in rows.chain:
        if node in rows.targets:
            target = emit.constant([-1 if n is None else n for n in rows.targets[node]])
            held_now[node.outputs[0]] = emit("Reshape", held_now[input_of(node)], target)
            continue
        copy = editor.again(node, held_now.get(input_of(node), input_of(node)))
        for slot, read in enumerate(node.inputs):
            if read in held_now:
                copy.replace_input_with(slot, held_now[read])
        held_now[node.outputs[0]] = emit.put(copy)
    return held_now[(rows.chain[-1] if rows.chain else source).outputs[0]]


def _axis_of_table(known: KnownValues, node: ir.Node) -> int:
    return next(axis for axis in slice_bounds(known, node, len(known.shapes[input_of(node)])) or {})
