"""Rows that are skipped, taken by indices or split into a sequence, as a Gather or Slice that the runtime takes.

tract puts a Slice that skips rows before a Scan, and fails. One of a last step it moves without end, if the batch
is open and another Scan is added. It also moves axes without end where rows of one Scan are broadcast against those
of another one, and multiplied with weights. It takes out of a Scan what is computed of a row alone, and fails if
that repeats its numbers. A Gather stays where it is, and behind a Where no axes move.

pnnx runs a model on uninitialized integers, so it crashes if such an integer is an index beyond the table. It makes
an Embed of a Gather without the attribute axis. If the Gather says `axis = 0`, ncnn does not load it.

OpenVINO takes the end of a Slice for the largest size of its axis. It rejects a Loop that would need so much
memory.

Few runtimes have sequences. PyTorch's newer exporter takes the layers of a state so.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.constants import bounds_at, constant_of, integers_at
from rnn_lowering.facts.operators import (
    TO_THE_END,
    input_at,
    inputs_of,
    is_of_default_domain,
    operator_of,
    reached,
)
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import standard_nodes
from rnn_lowering.types import Array

# A Slice that skips rows

_OF_INPUTS = 10
"""The first opset whose Slice has its bounds as inputs."""


_RANGE = 11
"""The first opset of the operator."""

_WITH_STEPS = 5
"""The inputs of a Slice that has steps."""


def skip_by_gather(model: AdaptedModel, *, flips: bool = False) -> int:
    """Write, in place, the steps of each Slice that skips rows, or flips some, as Gather; return the number of such
    Slices."""
    nodes = model.nodes("Slice", since=_OF_INPUTS, in_functions=False)
    return sum(_skip(node, model, flips=flips) for node in nodes if len(node.inputs) == _WITH_STEPS)


_MOST_ROWS = 1 << 14
"""The most rows of which a file has the indices."""

_FAR = 10**9
"""No axis has so many rows; TensorFlow's exporter writes it for an open end."""


def open_far_ends(model: AdaptedModel) -> int:
    """Write, in place, the largest number of its type for each bound of a Slice that is beyond every row; return
    their number."""
    slots = [(node, slot) for node in model.nodes("Slice", since=_OF_INPUTS) for slot in (1, 2)]
    return sum(_open(node, slot, model) for node, slot in slots)


def begin_in_rows(model: AdaptedModel) -> int:
    """Let, in place, each Slice of known sizes that begins before the first row begin at it; return the number."""
    return sum(_begin(node, model) for node in model.nodes("Slice", since=_OF_INPUTS))


def _begin(node: ir.Node, model: AdaptedModel) -> bool:
    shape, held = model.shape_of(node.inputs[0]), model.constant_of(node.inputs[1])
    axes, steps = (integers_at(node, name, model.opset) for name in ("axes", "steps"))
    if shape is None or held is None or axes is None or steps is None or min(steps, default=1) < 0:
        return False
    starts = held.numpy()
    sizes = [shape[axis] for axis in axes or range(len(starts))]
    least = [-size if isinstance(size, int) else start for start, size in zip(starts, sizes, strict=True)]
    if (starts >= least).all():
        return False
    node.replace_input_with(1, model.constant(node, np.maximum(starts, least), starts.dtype))
    return True


def _open(node: ir.Node, slot: int, model: AdaptedModel) -> bool:
    tensor = model.constant_of(node.inputs[slot])
    given = np.zeros(0, np.int64) if tensor is None else tensor.numpy()
    limits = np.iinfo(given.dtype)
    opened = np.where(given >= _FAR, limits.max, np.where(given <= -_FAR, limits.min, given))
    if (opened == given).all():
        return False
    node.replace_input_with(slot, model.constant(node, opened, given.dtype))
    return True


def _skip(node: ir.Node, model: AdaptedModel, *, flips: bool) -> bool:
    """Put a Slice without steps and Gathers in the place of a Slice; return False if there is no Gather."""
    given = [model.constant_of(value) for value in node.inputs[3:]]
    along, steps = ([] if tensor is None else tensor.numpy().reshape(-1).tolist() for tensor in given)
    rows = _taken_rows(node, model, flips=flips)
    skips = max(steps, default=1) > 1 or None in rows.values()
    if given[1] is None or len(along) < len(steps) or not (rows or skips) or (skips and model.opset < _RANGE):
        return False
    value = _cut(node, steps, rows, model)
    assert value is not None
    for axis, step in zip(along, steps, strict=True):
        if axis in rows or step > 1:
            known = rows.get(axis)
            indices = _every(value, axis, step, node, model) if known is None else model.constant(node, known)
            value = model.before(node, "Gather", [value, indices], axis=axis)
    model.replace(node, value)
    return True


def _taken_rows(node: ir.Node, model: AdaptedModel, *, flips: bool) -> dict[int, range | None]:
    """Return by axis which rows a Slice takes with a step, where its bounds and the size are known; None for all
    from the last on."""
    shape, rows = model.shape_of(node.inputs[0]), dict[int, range | None]()
    for axis, start, end, step in bounds_at(node, model.opset) or []:
        size = None if shape is None else shape[axis]
        if step == 1 or (step < 0 and not flips):
            continue
        if isinstance(size, int) and 0 < size <= _MOST_ROWS:
            rows[axis] = range(size)[start:end:step]
        elif step < 0 and (start == -1 or start >= _FAR) and end <= -_FAR:
            rows[axis] = None
    return rows


def _cut(node: ir.Node, steps: list[int], rows: Container[int], model: AdaptedModel) -> ir.Value | None:
    """Return what a Slice reads, cut without positive steps along the axes whose rows are not known."""
    x, *given = node.inputs
    plain, bounds = [min(step, 1) for step in steps], bounds_at(node, model.opset)
    if bounds is None:
        kind = (model.dtype_of(given[3]) or ir.DataType.INT64).numpy()
        return model.before(node, "Slice", [x, *given[:3], model.constant(node, plain, kind)])
    others = [(start, end, axis, min(step, 1)) for axis, start, end, step in bounds if axis not in rows]
    cut = [model.constant(node, each) for each in zip(*others, strict=True)]
    return model.before(node, "Slice", [x, *cut]) if cut else x


def skip_strides(model: AdaptedModel) -> int:
    """Let, in place, a Gather skip rows of Scans for each Conv whose kernel has one number along an axis, without
    pads; return the number of such Conv."""
    nodes = model.nodes("Conv", since=_RANGE, in_functions=False)
    return sum(_skip_stride(node, model) for node in nodes if _scans_of(node.inputs[0]))


def _skip_stride(node: ir.Node, model: AdaptedModel) -> bool:
    weights, value = model.shape_of(node.inputs[1]), node.inputs[0]
    strides, pads = (list(node.attributes.get_ints(name, ())) for name in ("strides", "pads"))
    padded = any(pads) or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    skipped = [n for n, step in enumerate(strides) if step > 1 and weights is not None and weights[n + 2] == 1]
    if not skipped or padded or value is None:
        return False
    for n in skipped:
        value = model.before(node, "Gather", [value, _every(value, n + 2, strides[n], node, model)], axis=n + 2)
        strides[n] = 1
    node.replace_input_with(0, value)
    node.attributes.add(ir.AttrInt64s("strides", strides))
    return True


_FIRST_OR_LAST = {(0, 1): 0, (-1, TO_THE_END): -1}
"""The bounds of a Slice of one row, with its number: a Scan has at least one."""


def take_steps(model: AdaptedModel) -> int:
    """Write, in place, each Slice of the first or last step of a Scan as Gather; return their number."""
    nodes = model.nodes("Slice", since=_OF_INPUTS, in_functions=False)
    return sum(_take_step(node, model) for node in nodes if _is_of_scan(node.inputs[0], model.opset))


def _take_step(node: ir.Node, model: AdaptedModel) -> bool:
    bounds = bounds_at(node, model.opset) or []
    if len(bounds) != 1:
        return False
    ((axis, start, end, step),) = bounds
    row = _FIRST_OR_LAST.get((start, min(end, TO_THE_END)))
    if row is None or step != 1:
        return False
    taken = model.before(node, "Gather", [node.inputs[0], model.constant(node, row)], axis=axis)
    model.replace(node, model.before(node, "Unsqueeze", [taken], axes=[axis]))
    return True


def _is_of_scan(value: ir.Value | None, opset: int) -> bool:
    """Whether a value is an output of a Scan, or each row of it that of one row of the output."""

    def before(value: ir.Value) -> Sequence[ir.Value | None]:
        node = value.producer()
        row = None if node is None else operator_of(node)
        follows = row is not None and (row.elementwise or row.keeps_axes) and constant_of(value, opset) is None
        return node.inputs if node is not None and follows else ()

    producers = (each.producer() for each in reached([value], before))
    return any(node is not None and node.op_type == "Scan" for node in producers)


# Rows of two Scans


_Dim = int | ir.SymbolicDim

_FINDS_NAN = 9
"""The first opset of IsNaN, and of Where."""


def hold_rows(model: AdaptedModel) -> int:
    """Choose between a value and itself, in place, where rows of a Scan are broadcast against those of other Scans,
    or in a Scan to other values; return the number of such values."""
    scans = model.nodes("Scan", since=_FINDS_NAN, in_functions=False)
    count = 0
    for scan in scans:
        body, rows = scan.attributes["body"].as_graph(), scan.attributes.get_int("num_scan_inputs", 0)
        count += sum(_hold_row(node, {*body.inputs[len(body.inputs) - rows :]}, model) for node in list(body))
    if len(scans) < len("ab"):
        return count
    scans_of = _scans_by_value(model.graph)
    return count + sum(_hold(node, scans_of, model) for node in list(model.graph) if operator_of(node).elementwise)


def _hold(node: ir.Node, scans_of: Mapping[ir.Value | None, frozenset[ir.Node]], model: AdaptedModel) -> bool:
    """Hold an operand of floats in its place where another one has one row, or may; return False if none is."""
    scans, shapes = [scans_of.get(v) for v in node.inputs], [model.shape_of(v) for v in node.inputs]
    if len({*scans} - {None}) < len("ab"):
        return False
    slots = [slot for slot in range(len(scans)) if scans[slot] and _meets_one_row(shapes, slot)]
    return any(_hold_operand(node, slot, model) for slot in slots)


def _hold_row(node: ir.Node, rows: set[ir.Value], model: AdaptedModel) -> bool:
    """Hold an operand that follows from scanned rows and that another one repeats; return False if none is."""
    shapes = [model.shape_of(value) for value in node.inputs] if operator_of(node).elementwise else [None]
    if None in shapes:
        return False
    slots = [slot for slot in range(len(shapes)) if _is_repeated(shapes, slot)]
    slots = [slot for slot in slots if any(v in rows for v in reached([node.inputs[slot]], _moved_inputs))]
    return any(_hold_operand(node, slot, model) for slot in slots)


def _hold_operand(node: ir.Node, slot: int, model: AdaptedModel) -> bool:
    """Hold an operand in its place; return False if it is none of floats."""
    value, dtype = node.inputs[slot], model.dtype_of(node.inputs[slot])
    if dtype is None or not dtype.is_floating_point():
        return False
    node.replace_input_with(slot, model.before(node, "Where", [model.before(node, "IsNaN", [value]), value, value]))
    return True


def _meets_one_row(shapes: Sequence[ir.Shape | None], slot: int) -> bool:
    """Whether one of several shapes has an axis along which another one has size 1, or may have."""
    known = [list(shape) for shape in shapes if shape is not None]
    return len(known) < len(shapes) or any(axis[slot] != 1 and 1 in axis for axis in _aligned(known))


def _is_repeated(shapes: Sequence[ir.Shape | None], slot: int) -> bool:
    """Whether one of several known shapes has an axis of size 1 along which another one has another size."""
    known = [list(shape or ()) for shape in shapes]
    return any(axis[slot] == 1 and any(size != 1 for size in axis) for axis in _aligned(known))


def _aligned(shapes: Sequence[Sequence[_Dim]]) -> list[tuple[_Dim, ...]]:
    """Return for each axis the sizes that are broadcast, from the last axis on."""
    return [*zip_longest(*map(reversed, shapes), fillvalue=1)]


def _scans_of(value: ir.Value | None) -> set[ir.Node]:
    """Return the Scans whose rows a value has, with neither a Gather nor a product between."""
    producers = [each.producer() for each in reached([value], _moved_inputs)]
    return {node for node in producers if node is not None and node.op_type == "Scan"}


def _scans_by_value(graph: ir.Graph) -> dict[ir.Value | None, frozenset[ir.Node]]:
    """Return `_scans_of` each value of a sorted graph that has rows of one, in a single walk."""
    found: dict[ir.Value | None, frozenset[ir.Node]] = {}
    for node in graph:
        given = {frozenset([node])} if node.op_type == "Scan" else {found[v] for v in _read(node) if v in found}
        if given:
            one = given.pop()
            found |= dict.fromkeys(node.outputs, one.union(*given) if given else one)  # values share their sets
    return found


def _moved_inputs(value: ir.Value) -> Sequence[ir.Value | None]:
    """Return of what a value has rows."""
    node = value.producer()
    return () if node is None else _read(node)


def _read(node: ir.Node) -> Sequence[ir.Value | None]:
    """Return of what a node gives rows, moved, reduced or computed one by one; a Gather stays where it is."""
    if node.op_type == "Gather":
        return ()
    row = operator_of(node)
    return node.inputs if row.elementwise or row.moves or node.op_type.startswith("Reduce") else ()


def _every(value: ir.Value, axis: int, step: int, node: ir.Node, model: AdaptedModel) -> ir.Value:
    """Return for a node the indices of every so many rows of a value, with a negative step from the last one on."""
    sizes = model.before(node, "Shape", [value])
    count = model.before(node, "Gather", [sizes, model.constant(node, axis)], axis=0)
    rows = model.before(node, "Range", [model.constant(node, 0), count, model.constant(node, abs(step))])
    return rows if step > 0 else model.before(node, "Sub", [model.constant(node, -1), rows])


# Rows of a constant


_MOST_AXES = 2
"""The most axes of indices that pnnx makes an Embed of."""

_INDICES = (ir.DataType.INT32, ir.DataType.INT64)
"""The types of indices; an index of a row has the same number in both."""


def simplify_indices(model: AdaptedModel) -> str | None:
    """Let each Gather of rows of a constant read its indices before a Cast to other integers, and as one vector if
    they have more than two axes, in place; return what was done, for the user."""
    nodes = [node for node in model.graph if _rows(node, model)]
    count = sum(_skip_cast(node, model) + _flatten(node, model) for node in nodes)
    return f"takes indices without a Cast, of two axes at most: changed {count} of them" if count else None


def _skip_cast(node: ir.Node, model: AdaptedModel) -> bool:
    indices = node.inputs[1]
    cast = None if indices is None else indices.producer()
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    if indices is None or source is None or model.dtype_of(source) not in _INDICES:
        return False
    node.replace_input_with(1, source)
    drop_unused([indices])
    return True


def _flatten(node: ir.Node, model: AdaptedModel) -> bool:
    table, indices = node.inputs
    shape, rows = model.shape_of(indices), model.constant_of(table)
    if rows is None or shape is None or len(shape) <= _MOST_AXES or not shape.is_static():
        return False
    flat = model.before(node, "Reshape", [indices], shape=[-1])
    taken = model.before(node, "Gather", [table, flat])
    whole = [*shape.numpy(), *rows.shape.numpy()[1:]]
    model.replace(node, model.before(node, "Reshape", [taken], shape=whole))
    return True


_CLIP_OF_INTEGERS = 12
"""The opset from which on a Clip takes integers."""


def bound_lookups(model: AdaptedModel) -> int:
    """Clip the indices of each Gather along the first axis of a constant that follow from an integer input of the
    model, and leave out its attribute axis, in place; return how many were changed.

    An index that a Clip changes is one that Gather forbids.
    """
    count = 0
    for node in list(model.graph):
        rows = _rows(node, model)
        if rows:
            is_written = node.attributes.pop("axis", None) is not None
            count += _clip(node, rows, model) or is_written
    return count


def _rows(node: ir.Node, model: AdaptedModel) -> int:
    """Return the number of rows of a constant that a node takes rows of by computed indices; 0 if it does not."""
    if node.op_type != "Gather" or not is_of_default_domain(node):
        return 0
    table, indices = model.constant_of(node.inputs[0]), node.inputs[1]
    if table is None or table.shape.rank() == 0 or indices is None or model.constant_of(indices) is not None:
        return 0
    return int(table.shape.numpy()[0]) if node.attributes.get_int("axis", 0) in (0, -table.shape.rank()) else 0


_SIZES = ("Shape", "Size")
"""Operators whose results do not depend on the numbers of their input."""


def _follows_from_integers(value: ir.Value | None) -> bool:
    """Return whether numbers of an integer input of the model lead to a value."""

    def before(value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        return [] if node is not None and node.op_type in _SIZES else inputs_of(value)

    inputs = (v for v in reached([value], before) if v.is_graph_input())
    return any(v.dtype is not None and v.dtype.is_integer() for v in inputs)


def _clip(node: ir.Node, rows: int, model: AdaptedModel) -> bool:
    """Clip the indices of a Gather to those that it takes; return False if they follow from no integer input."""
    indices = node.inputs[1]
    if indices is None or model.opset < _CLIP_OF_INTEGERS or not _follows_from_integers(indices):
        return False
    dtype = indices.dtype or model.dtype_of(indices)
    if dtype is None:
        return False
    numbers = {"first": -rows, "last": rows - 1}
    bounds = [model.constant(node, number, dtype.numpy(), hint) for hint, number in numbers.items()]
    clipped = model.before(node, "Clip", [indices, *bounds])
    clipped.type, clipped.shape = ir.TensorType(dtype), indices.shape
    node.replace_input_with(1, clipped)
    return True


# Parts of a sequence


class _Taken(NamedTuple):
    """A SequenceAt, the SplitToSequence before it, and the bounds of the part that it takes; None for one row."""

    node: ir.Node
    split: ir.Node
    bounds: tuple[int, int] | None


def parts_taken(model: AdaptedModel) -> set[ir.Node]:
    """Return the nodes that `take_parts` replaces."""
    return {node for taken in _parts_of_sequences(model) for node in (taken.node, taken.split)}


def _parts_of_sequences(model: AdaptedModel) -> list[_Taken]:
    nodes = standard_nodes(model.model, "SequenceAt")
    return [taken for scope, node in nodes if (taken := _taken(node, scope.opset))]


def take_parts(model: AdaptedModel) -> int:
    """Write, in place, each SequenceAt of a tensor that is split into rows as Gather, or into known parts as Slice;
    return their number."""
    parts = _parts_of_sequences(model)
    for node, split, bounds in parts:
        axis, x = split.attributes.get_int("axis", 0), split.inputs[0]
        if bounds is not None:
            part = model.before(node, "Slice", [x], starts=[bounds[0]], ends=[bounds[1]], axes=[axis])
        else:
            part = model.before(node, "Gather", [x, node.inputs[1]], axis=axis)
            if split.attributes.get_int("keepdims", 1):
                part = model.before(node, "Unsqueeze", [part], axes=[axis])
        model.replace(node, part)
    for split in {split for _, split, _ in parts}:
        if not split.outputs[0].uses() and not split.outputs[0].is_graph_output() and split.graph is not None:
            split.graph.remove(split, safe=True)
    return len(parts)


def _taken(node: ir.Node, opset: int) -> _Taken | None:
    """Return what a SequenceAt takes; None if that is not known."""
    split = None if node.inputs[0] is None else node.inputs[0].producer()
    if split is None or split.op_type != "SplitToSequence" or not is_of_default_domain(split):
        return None
    given, index = input_at(split, 1), node.inputs[1]
    sizes, place = (None if value is None else constant_of(value, opset) for value in (given, index))
    if given is None:
        return _Taken(node, split, None)
    # ONNX ignores keepdims = 0 here, and onnxruntime does not: such a node stays.
    if sizes is None or not split.attributes.get_int("keepdims", 1):
        return None
    if not sizes.shape and sizes.numpy().item() == 1:
        return _Taken(node, split, None)
    bounds = None if place is None else _bounds(sizes.numpy(), int(place.numpy().item()))
    return None if bounds is None else _Taken(node, split, bounds)


def _bounds(sizes: Array, place: int) -> tuple[int, int] | None:
    """Return the bounds of a part, of which all have one size or each its own; None if they are not known."""
    if not sizes.ndim:
        return None if place < 0 else (place * sizes.item(), (place + 1) * sizes.item())
    ends = np.cumsum(sizes)
    return int((ends - sizes)[place]), int(ends[place])
