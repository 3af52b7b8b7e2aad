"""Rows that are repeated, skipped, taken by indices or split into a sequence, as a Gather or Slice that the runtime
takes.

tract puts a product before the Tile or the Expand of its operand. It then rejects the model, or with an open length
returns one row without an error. It also puts a Slice that skips rows before a Scan, and fails; one of a last step
it moves without end, if the batch is open and another Scan is added. A Gather stays where it is.

pnnx runs a model on uninitialized integers, so it crashes if such an integer is an index beyond the table. It makes
an Embed of a Gather without the attribute axis. If the Gather says `axis = 0`, ncnn does not load it.

OpenVINO takes the end of a Slice for the largest size of its axis. It rejects a Loop that would need so much
memory.

Few runtimes have sequences. PyTorch's newer exporter takes the layers of a state so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.constants import constant_of, integers_at
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

# Tile and Expand of axes of size 1

_ZERO = ir.tensor([0])

_CONSTANT_OF_SHAPE = 9
"""The first opset of the operator."""


def repeat_by_gather(model: AdaptedModel) -> int:
    """Write, in place, each Tile and Expand of a computed value that repeats axes of size 1 as Gather; return their
    number."""
    found = model.nodes("Tile", "Expand", since=_CONSTANT_OF_SHAPE, in_functions=False)
    return sum(_repeat(node, model) for node in found if len(node.inputs) == 2 and None not in node.inputs)


def _repeat(node: ir.Node, model: AdaptedModel) -> bool:
    """Put a Gather for each repeated axis in the place of a node; return False if other axes may be repeated."""
    x, counts = node.inputs
    shape = None if model.constant_of(x) is not None else model.shape_of(x)
    numbers = None if shape is None else _numbers(counts, model)
    if x is None or shape is None or numbers is None or len(numbers) > len(shape):
        return False
    numbers = [*[1] * (len(shape) - len(numbers)), *numbers]
    shape = ir.Shape([1 if axis in _last_rows(x, model) else size for axis, size in enumerate(shape)])
    if not all(shape[n] == 1 or number == 1 or _keeps(node, n, shape, model) for n, number in enumerate(numbers)):
        return False
    value = x
    for axis, (size, number) in enumerate(zip(shape, numbers, strict=True)):
        if size == 1 and number != 1:
            value = model.before(node, "Gather", [value, _zeros(number, node, model)], axis=axis)
    if value is x:
        value = model.before(node, "Identity", [x])
    model.known[value] = model.known.get(node.outputs[0], value)
    model.replace(node, value, [counts])
    return True


def _last_rows(value: ir.Value, model: AdaptedModel) -> list[int]:
    """Return the axes along which a value is the last row of another one, or nothing of nothing."""
    node, rank = value.producer(), len(model.shape_of(value) or ())
    if node is None or node.op_type != "Slice" or not is_of_default_domain(node):
        return []
    starts, ends, axes, steps = (integers_at(node, name, model.opset) for name in _BOUNDS)
    if starts is None or ends is None or axes is None or steps is None:
        return []
    bounds = zip(axes or range(rank), starts, ends, steps or [1] * rank, strict=False)
    return [axis % rank for axis, start, end, step in bounds if start == -1 and end >= TO_THE_END and step == 1]


class _SizeAt(NamedTuple):
    """An element of the sizes of a value."""

    sizes: ir.Value
    place: int


def _zeros(number: int | ir.Value | _SizeAt, node: ir.Node, model: AdaptedModel) -> ir.Value:
    """Return so many zeros for a node."""
    if isinstance(number, int):
        return model.constant(node, [0] * number)
    if isinstance(number, _SizeAt):
        number = model.before(node, "Gather", [number.sizes, model.constant(node, [number.place])], axis=0)
    return model.before(node, "ConstantOfShape", [number], value=_ZERO)


def _keeps(node: ir.Node, axis: int, shape: ir.Shape, model: AdaptedModel) -> bool:
    """Whether a node cannot repeat an axis: Expand repeats those of size 1 only; or it has that size behind it."""
    size, after = shape[axis], model.shape_of(node.outputs[0])
    if node.op_type != "Expand" or isinstance(size, int):
        return node.op_type == "Expand"
    return after is not None and len(after) == len(shape) and size.value is not None and after[axis] == size


def _numbers(value: ir.Value | None, model: AdaptedModel) -> list[int | ir.Value | _SizeAt] | None:
    """Return the elements of a vector: numbers, vectors of one element of a Concat, or elements of a Shape; None if
    unknown."""
    if value is None:
        return None
    tensor, node = model.constant_of(value), value.producer()
    if tensor is not None:
        return [int(number) for number in tensor.numpy().reshape(-1)]
    if node is not None and node.op_type == "Concat" and is_of_default_domain(node):
        parts = [_numbers(part, model) for part in node.inputs]
        return None if None in parts else [number for part in parts for number in part or ()]
    if node is not None and node.op_type == "Where" and is_of_default_domain(node):
        return _chosen(node, model)
    shape = model.shape_of(value)
    if shape is not None and list(shape) == [1]:
        return [value]
    sizes = model.shape_of(node.inputs[0]) if node is not None and node.op_type == "Shape" else None
    if node is None or sizes is None or node.attributes:
        return None
    return [size if isinstance(size, int) else _SizeAt(value, n) for n, size in enumerate(sizes)]


def _chosen(where: ir.Node, model: AdaptedModel) -> list[int | ir.Value | _SizeAt] | None:
    """Return the elements of a Where of sizes, of which -1 keeps an axis; None if they are unknown."""
    condition, first, second = where.inputs
    chosen = model.constant_of(condition)
    these, others = _numbers(first, model), _numbers(second, model)
    if these is None or others is None or len(these) != len(others):
        return None
    flags = _equal(condition, model) if chosen is None else chosen.numpy().reshape(-1).tolist()
    if flags is None or len(flags) != len(these):
        return None
    return [a if flag else b for flag, a, b in zip(flags, these, others, strict=True)]


def _equal(value: ir.Value | None, model: AdaptedModel) -> list[bool] | None:
    """Return the elements of an Equal of sizes and negative numbers; None if one may be either."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Equal":
        return None
    sizes, marks = (_numbers(operand, model) for operand in node.inputs)
    if sizes is None or marks is None or len(sizes) != len(marks):
        return None
    pairs = list(zip(sizes, marks, strict=True))
    if not all(isinstance(m, int) and (isinstance(s, int) or (m < 0 and _is_size(s))) for s, m in pairs):
        return None
    return [size == mark for size, mark in pairs]


def _is_size(value: ir.Value | _SizeAt | None) -> bool:
    """Whether a value is part of the result of a Shape."""
    if isinstance(value, _SizeAt):
        return True
    while value is not None and (node := value.producer()) is not None and is_of_default_domain(node):
        if node.op_type == "Shape":
            return True
        if node.op_type not in ("Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"):
            return False
        value = node.inputs[0]
    return False


# A Slice that skips rows

_OF_INPUTS = 10
"""The first opset whose Slice has its bounds as inputs."""


def skip_by_gather(model: AdaptedModel) -> int:
    """Write, in place, the steps of each Slice that skips rows as Gather; return the number of such Slices."""
    found = model.nodes("Slice", since=_OF_INPUTS, in_functions=False)
    return sum(_skip(node, model) for node in found if len(node.inputs) == len(("data", *_BOUNDS)))


_BOUNDS = ("starts", "ends", "axes", "steps")


_FAR = 10**9
"""No axis has so many rows; TensorFlow's exporter writes it for an open end."""


def open_far_ends(model: AdaptedModel) -> int:
    """Write, in place, the largest number of its type for each bound of a Slice that is beyond every row; return
    their number."""
    slots = [(node, slot) for node in model.nodes("Slice", since=_OF_INPUTS) for slot in (1, 2)]
    return sum(_open(node, slot, model) for node, slot in slots)


def _open(node: ir.Node, slot: int, model: AdaptedModel) -> bool:
    tensor = model.constant_of(node.inputs[slot])
    given = np.zeros(0, np.int64) if tensor is None else tensor.numpy()
    limits = np.iinfo(given.dtype)
    opened = np.where(given >= _FAR, limits.max, np.where(given <= -_FAR, limits.min, given))
    if (opened == given).all():
        return False
    node.replace_input_with(slot, model.constant(node, opened, given.dtype))
    return True


def _skip(node: ir.Node, model: AdaptedModel) -> bool:
    """Put a Slice without steps and Gathers in the place of a Slice; return False if it skips no rows."""
    x, starts, ends, axes, _ = node.inputs
    given = [model.constant_of(value) for value in node.inputs[3:]]
    along, steps = ([] if tensor is None else tensor.numpy().reshape(-1).tolist() for tensor in given)
    if given[1] is None or len(along) < len(steps) or all(step <= 1 for step in steps):
        return False
    plain = model.constant(node, [min(step, 1) for step in steps], given[1].dtype.numpy())
    value = model.before(node, "Slice", [x, starts, ends, axes, plain])
    made = model.shape_of(node.outputs[0])
    for axis, step in zip(along, steps, strict=True):
        if step > 1:
            count = None if made is None else made[axis]
            rows = model.constant(node, [*range(0, step * count, step)]) if isinstance(count, int) else None
            rows = _every(value, axis, step, node, model) if rows is None else rows
            value = model.before(node, "Gather", [value, rows], axis=axis)
    model.replace(node, value)
    return True


_FIRST_OR_LAST = {(0, 1): 0, (-1, TO_THE_END): -1}
"""The bounds of a Slice of one row, with its number: a Scan has at least one."""


def take_steps(model: AdaptedModel) -> int:
    """Write, in place, each Slice of the first or last step of a Scan as Gather; return their number."""
    found = model.nodes("Slice", since=_OF_INPUTS, in_functions=False)
    return sum(_take_step(node, model) for node in found if _is_of_scan(node.inputs[0], model.opset))


def _take_step(node: ir.Node, model: AdaptedModel) -> bool:
    starts, ends, axes, steps = (integers_at(node, name, model.opset) for name in _BOUNDS)
    if starts is None or ends is None or axes is None or len(starts) != 1 or steps not in ([], [1]):
        return False
    row = _FIRST_OR_LAST.get((starts[0], min(ends[0], TO_THE_END)))
    if row is None:
        return False
    axis = axes[0] if axes else 0
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


def _every(value: ir.Value, axis: int, step: int, node: ir.Node, model: AdaptedModel) -> ir.Value:
    """Return the indices of every so many rows of a value, for a node."""
    sizes = model.before(node, "Shape", [value])
    count = model.before(node, "Gather", [sizes, model.constant(node, axis)], axis=0)
    return model.before(node, "Range", [model.constant(node, 0), count, model.constant(node, step)])


# Rows of a constant


_MOST_AXES = 2
"""The most axes of indices that pnnx makes an Embed of."""

_INDICES = (ir.DataType.INT32, ir.DataType.INT64)
"""The types of indices; an index of a row has the same number in both."""


def simplify_indices(model: AdaptedModel) -> str | None:
    """Let each Gather of rows of a constant read its indices before a Cast to other integers, and as one vector if
    they have more than two axes, in place; return what was done, for the user."""
    found = [node for node in model.graph if _rows(node, model)]
    count = sum(_skip_cast(node, model) + _flatten(node, model) for node in found)
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
    found = standard_nodes(model.model, "SequenceAt")
    return [taken for scope, node in found if (taken := _taken(node, scope.opset))]


def take_parts(model: AdaptedModel) -> int:
    """Write, in place, each SequenceAt of a tensor that is split into rows as Gather, or into known parts as Slice;
    return their number."""
    found = _parts_of_sequences(model)
    for node, split, bounds in found:
        axis, x = split.attributes.get_int("axis", 0), split.inputs[0]
        if bounds is not None:
            part = model.before(node, "Slice", [x], starts=[bounds[0]], ends=[bounds[1]], axes=[axis])
        else:
            part = model.before(node, "Gather", [x, node.inputs[1]], axis=axis)
            if split.attributes.get_int("keepdims", 1):
                part = model.before(node, "Unsqueeze", [part], axes=[axis])
        model.replace(node, part)
    for split in {split for _, split, _ in found}:
        if not split.outputs[0].uses() and not split.outputs[0].is_graph_output() and split.graph is not None:
            split.graph.remove(split, safe=True)
    return len(found)


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
