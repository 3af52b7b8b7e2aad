"""Rows by distance: a value with a row for each distance of two frames, computed from a Range or a table.

Relative positions start from the distances T - 1 down to -(T - 1), or down to 0, of a whole sequence. Each row of
what is computed from them must follow from its own distance alone, so a call computes just the rows that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.infer import slice_bounds
from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.node_outputs import compute_node
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.facts.size import Size
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
    found: dict[ir.Value, Dims] = {source.outputs[0]: dims}
    after = [node for node in chain if node is not source]
    for node in after:
        own = _dims_after(known, node, found)
        if own is None or own.count(None) != 1:
            return None
        found[node.outputs[0]] = own
    targets = {node: found[node.outputs[0]] for node in after if node.op_type == "Reshape"}
    return DistanceRows(source, tuple(after), found[value], *rows, targets)


def _ancestors(known: KnownValues, value: ir.Value) -> list[ir.Node]:
    """Return the nodes from which a value follows, down to constants and sizes, in their order."""
    found: dict[ir.Node, None] = {}

    def add(value: ir.Value | None) -> None:
        node = None if value is None else value.producer()
        if value is None or node is None or node in found or known.constant(value) is not None:
            return
        if not _is_source(known, node):
            for each in node.inputs[: 1 if node.op_type == "Reshape" else None]:
                add(each)
        found[node] = None

    add(value)
    return list(found)


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
    timed = [] if bounds is None else [axis for axis, own in bounds.items() if any(b.timed for b in own)]
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


# Nodes that compute each row from itself


def _dims_after(known: KnownValues, node: ir.Node, found: Mapping[ir.Value, Dims]) -> Dims | None:
    """Return the sizes of the output of a node that computes each row from itself; None for other nodes."""
    row = operator_of(node)
    if node.domain or row.random or len([v for v in node.outputs if v.name]) != 1 or not node.inputs:
        return None
    if row.elementwise or node.op_type == "Identity":
        return _broadcast([_dims(known, v, found) for v in node.inputs if v is not None])
    dims = found.get(input_of(node))
    rule = _RULES.get(node.op_type)
    if node.op_type == "Concat":
        return _concatenated(node, [_dims(known, v, found) for v in node.inputs])
    return None if rule is None or dims is None else rule(known, node, dims)


def _dims(known: KnownValues, value: ir.Value | None, found: Mapping[ir.Value, Dims]) -> Dims | None:
    constant = None if value is None else known.constant(value)
    return found.get(value) if value in found else None if constant is None else constant.shape  # type: ignore[arg-type]


def _broadcast(given: Sequence[Dims | None]) -> Dims | None:
    """Return the sizes of what several values broadcast to: along the distances, others have size 1."""
    if any(dims is None for dims in given):
        return None
    rank = max(len(dims or ()) for dims in given)
    full = [(1,) * (rank - len(dims or ())) + (dims or ()) for dims in given]
    found: list[int | None] = []
    for sizes in zip(*full, strict=True):
        others = {n for n in sizes if n != 1}
        if len(others) > 1:
            return None
        found.append(others.pop() if others else 1)
    return tuple(found)


def _multiplied(known: KnownValues, node: ir.Node, dims: Dims) -> Dims | None:
    by = known.constant(node.inputs[1])
    return None if by is None or by.ndim != 2 or dims[-1] is None else (*dims[:-1], by.shape[1])


def _by_gemm(known: KnownValues, node: ir.Node, dims: Dims) -> Dims | None:
    """Return the sizes after a Gemm of the rows, whose other inputs are constant and the same for each row."""
    by, more = known.constant(node.inputs[1]), node.inputs[2] if len(node.inputs) > 2 else None
    added = None if more is None else known.constant(more)
    fits = by is not None and len(dims) == 2 and dims[0] is None and not node.attributes.get_int("transA", 0)
    fits = fits and (more is None or (added is not None and (added.ndim < 2 or added.shape[0] == 1)))
    return (None, by.shape[0 if node.attributes.get_int("transB", 0) else 1]) if fits and by is not None else None


def _transposed(known: KnownValues, node: ir.Node, dims: Dims) -> Dims | None:
    perm = node.attributes.get_ints("perm", None) or [*reversed(range(len(dims)))]
    return tuple(dims[axis] for axis in perm)


def _unsqueezed(known: KnownValues, node: ir.Node, dims: Dims) -> Dims | None:
    axes = _axes_named_by(known, node, len(dims) + len(known.parameter(node, "axes") or ()))
    rest = iter(dims)
    rank = len(dims) + len(axes)
    return tuple(1 if axis in axes else next(rest) for axis in range(rank)) if axes else None


def _squeezed(known: KnownValues, node: ir.Node, dims: Dims) -> Dims | None:
    axes = _axes_named_by(known, node, len(dims))
    fits = bool(axes) and all(dims[axis] == 1 for axis in axes)
    return tuple(n for axis, n in enumerate(dims) if axis not in axes) if fits else None


def _axes_named_by(known: KnownValues, node: ir.Node, rank: int) -> set[int]:
    """Return the axes that a node names, if they are constant."""
    axes = [axis.constant for axis in known.parameter(node, "axes") or ()]
    return {int(axis) % rank for axis in axes if axis is not None} if None not in axes else set()


def _flattened(known: KnownValues, node: ir.Node, dims: Dims) -> Dims | None:
    axis = node.attributes.get_int("axis", 1) or 0
    axis += len(dims) if axis < 0 else 0
    return _merged(dims, [*_size_of_merged(dims[:axis]), *_size_of_merged(dims[axis:])])


def _size_of_merged(dims: Dims) -> list[int | None]:
    """Return the size of axes that become one: None if it is the number of distances."""
    if None in dims:
        return [None] if _count(dims) == 1 else [0]
    return [_count(dims)]


def _reshaped(known: KnownValues, node: ir.Node, dims: Dims) -> Dims | None:
    numbers = known.numbers(node.inputs[1])
    if numbers is None:
        return None
    copies = not node.attributes.get_int("allowzero", 0)
    after: list[int | None] = []
    for axis, number in enumerate(numbers):
        own = None if number.constant is None else int(number.constant)
        after.append(dims[axis] if own == 0 and copies and axis < len(dims) else None if own == -1 else own)
    return _merged(dims, after)


def _merged(dims: Dims, after: Sequence[int | None]) -> Dims | None:
    """Return the sizes after a Reshape, if the distances stay an axis between as many elements."""
    if [*after].count(None) != 1 or 0 in after:
        return None
    own, new = dims.index(None), [*after].index(None)
    same = _count(dims[:own]) == _count(after[:new]) and _count(dims[own:]) == _count(after[new:])
    return tuple(after) if same else None


def _count(dims: Sequence[int | None]) -> int:
    """Return the number of elements per distance."""
    return math.prod(1 if n is None else n for n in dims)


def _concatenated(node: ir.Node, given: Sequence[Dims | None]) -> Dims | None:
    if any(dims is None or dims.count(None) != 1 for dims in given):
        return None
    known = [dims for dims in given if dims is not None]
    axis = (node.attributes.get_int("axis", 0) or 0) % len(known[0])
    rest = {(*dims[:axis], *dims[axis + 1 :]) for dims in known}
    if len(rest) != 1 or known[0][axis] is None:
        return None
    return (*known[0][:axis], sum(dims[axis] or 0 for dims in known), *known[0][axis + 1 :])


_RULES: Mapping[str, Callable[[KnownValues, ir.Node, Dims], Dims | None]] = {
    "Flatten": _flattened,
    "Gemm": _by_gemm,
    "MatMul": _multiplied,
    "Reshape": _reshaped,
    "Squeeze": _squeezed,
    "Transpose": _transposed,
    "Unsqueeze": _unsqueezed,
}


# The rows of a call


def numbers_of(known: KnownValues, rows: DistanceRows, distances: Sequence[int]) -> Array:
    """Return the rows of these distances. Beyond the ends of a table its last row is returned."""
    source, index = rows.source, rows.base - rows.step * np.array(distances)
    if source.op_type == "Range":
        held = {source.outputs[0]: index.astype(known.types[source.outputs[0]].numpy())}
    else:
        table = known.constant(source.inputs[0])
        assert table is not None
        axis = _axis_of_table(known, source)
        held = {source.outputs[0]: table.take(np.clip(index, 0, table.shape[axis] - 1), axis)}
    for node in rows.chain:
        if node in rows.targets:
            array = held[input_of(node)].reshape([-1 if n is None else n for n in rows.targets[node]])
        else:
            given = {v: c for v in node.inputs if v is not None and (c := known.constant(v)) is not None}
            given |= {v: held[v] for v in node.inputs if v in held}
            (array, *_) = compute_node(node, given, known.opset)
        held[node.outputs[0]] = array
    return held[(rows.chain[-1] if rows.chain else source).outputs[0]]


def are_few(known: KnownValues, rows: DistanceRows, count: int) -> bool:
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
        for slot, each in enumerate(node.inputs):
            if each in held_now:
                copy.replace_input_with(slot, held_now[each])
        held_now[node.outputs[0]] = emit.put(copy)
    return held_now[(rows.chain[-1] if rows.chain else source).outputs[0]]


def _axis_of_table(known: KnownValues, node: ir.Node) -> int:
    return next(axis for axis in slice_bounds(known, node, len(known.shapes[input_of(node)])) or {})
