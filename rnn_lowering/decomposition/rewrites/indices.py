"""Indices counted from the start, where a runtime knows no negative ones.

MNN takes other elements for a negative index of ScatterElements, GatherElements and GatherND. For one of GatherND
OpenCV reads other memory, and tract ends the process; tract rejects one of ScatterND.

OpenCV rejects an axis of ScatterElements that is counted from the end, more updates than rows, and indices of
GatherElements for some of the rows only, and takes the second axis for that of a Split that is not written, MNN
the first one for that of a OneHot. MNN chooses nothing by a negative index. OpenCV chooses another element by an
index beyond the depth, and tract ends the process.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.adapted_model import AdaptedModel
from rnn_lowering.facts.constants import never_negative
from rnn_lowering.types import Array, array_of

_BY_ROWS = ("GatherND", "ScatterND")
"""Operators whose indices have the places along several axes in their last axis."""

_COMPARES_INTEGERS = 9
"""The first opset of a Where, and of a Greater of integers."""


def count_from_start(model: AdaptedModel, operators: Collection[str]) -> int:
    """Count the indices of nodes from the start, in place; return the number of nodes whose indices may have been
    negative."""
    return sum(_count(node, model) for node in model.nodes(*operators, since=_COMPARES_INTEGERS))


def _count(node: ir.Node, model: AdaptedModel) -> bool:
    indices, sizes = node.inputs[1], _sizes(node, model)
    dtype, numbers = model.dtype_of(indices), model.constant_of(indices)
    if indices is None or dtype is None or never_negative(indices, model.opset) or _is_counted(indices, model):
        return False
    if numbers is not None and sizes is not None:
        given = array_of(numbers)
        node.replace_input_with(1, model.constant(node, np.where(given < 0, given + sizes, given), given.dtype))
        return True
    size = _sizes_of_run(node, dtype, model) if sizes is None else model.constant(node, sizes, dtype.numpy())
    below = model.before(node, "Greater", [model.constant(node, 0, dtype.numpy()), indices])
    behind = model.before(node, "Add", [indices, size])
    node.replace_input_with(1, model.before(node, "Where", [below, behind, indices]))
    return True


def _sizes_of_run(node: ir.Node, dtype: ir.DataType, model: AdaptedModel) -> ir.Value:
    """Return the sizes of the axes along which indices count, as they are when the model runs."""
    shape = model.before(node, "Shape", node.inputs[:1])
    if node.op_type in _BY_ROWS:
        first = node.attributes.get_int("batch_dims", 0)
        behind = _depth(node, first, model)
        size = model.before(node, "Slice", [shape, model.constant(node, [first]), behind])
    else:
        axis = model.constant(node, node.attributes.get_int("axis", 0))
        size = model.before(node, "Gather", [shape, axis], axis=0)
    return size if dtype == ir.DataType.INT64 else model.before(node, "Cast", [size], to=int(dtype))


def _depth(node: ir.Node, first: int, model: AdaptedModel) -> ir.Value:
    """Return the end of the axes that indices have places along, which begin at the first."""
    places = model.shape_of(node.inputs[1])
    if places is not None and isinstance(places[-1], int):
        return model.constant(node, [first + places[-1]])
    shape = model.before(node, "Shape", [node.inputs[1]])
    last = model.before(node, "Gather", [shape, model.constant(node, [-1])], axis=0)
    return model.before(node, "Add", [last, model.constant(node, [first])])


def _is_counted(indices: ir.Value, model: AdaptedModel) -> bool:
    """Whether indices are what this module writes."""
    source = indices.producer()
    if source is None or source.op_type != "Where":
        return False
    below, behind = (None if value is None else value.producer() for value in source.inputs[:2])
    if below is None or behind is None or (below.op_type, behind.op_type) != ("Greater", "Add"):
        return False
    zero, given = model.constant_of(below.inputs[0]), source.inputs[2]
    is_below = zero is not None and not array_of(zero).any() and below.inputs[1] is given
    return is_below and behind.inputs[0] is given


def _sizes(node: ir.Node, model: AdaptedModel) -> Array | None:
    """Return the sizes along which indices count; None if one is not known."""
    shape, places = (model.shape_of(value) for value in node.inputs[:2])
    if shape is None or places is None:
        return None
    if node.op_type in _BY_ROWS:
        first = node.attributes.get_int("batch_dims", 0)
        depth = places[-1]
        sizes = list(shape)[first : first + depth] if isinstance(depth, int) else [None]
    else:
        sizes = [shape[node.attributes.get_int("axis", 0)]]
    known = [size for size in sizes if isinstance(size, int)]
    return np.array(known) if len(known) == len(sizes) else None


_AXES = {"OneHot": -1, "ScatterElements": 0, "Split": 0}
"""The axis of operators where it is not written."""


def count_axes(model: AdaptedModel) -> int:
    """Write the axes of nodes, counted from the start, in place; return the number of those that were not."""
    count = 0
    for node in model.nodes(*_AXES):
        axis, shape = node.attributes.get_int("axis", _AXES[node.op_type]), model.shape_of(node.outputs[0])
        if "axis" not in node.attributes or (axis < 0 and shape is not None):
            node.attributes["axis"] = ir.AttrInt64("axis", axis + len(shape or ()) if axis < 0 else axis)
            count += 1
    return count


def bound_choices(model: AdaptedModel) -> int:
    """Count the indices of each OneHot from the start, and let those beyond its depth choose an element more, which
    is cut off, in place; return the number of nodes."""
    return sum(_bound_choice(node, model) for node in model.nodes("OneHot", since=_COMPARES_INTEGERS))


def _bound_choice(node: ir.Node, model: AdaptedModel) -> bool:
    """Return False where its type or depth is not known, and of what this module writes."""
    indices, depth, values = node.inputs
    dtype, shape, numbers = model.dtype_of(indices), model.shape_of(indices), model.constant_of(depth)
    if indices is None or numbers is None or dtype is None or not dtype.is_integer():
        return False
    count, source = int(array_of(numbers).item()), indices.producer()
    fallback = None if source is None or source.op_type != "Where" else model.constant_of(source.inputs[1])
    if fallback is not None and array_of(fallback).tolist() == count - 1:
        return False
    zero, all_of, last = (model.constant(node, number, dtype.numpy()) for number in (0, count, count - 1))
    behind = model.before(node, "Add", [indices, all_of])
    from_start = model.before(node, "Where", [model.before(node, "Less", [indices, zero]), behind, indices])
    outside = [model.before(node, "Less", [from_start, zero]), model.before(node, "Greater", [from_start, last])]
    bounded = model.before(node, "Where", [model.before(node, "Or", outside), all_of, from_start])
    axis = node.attributes.get_int("axis", -1)
    axis = axis if shape is None else axis % (len(shape) + 1)
    wider = model.constant(node, np.full(array_of(numbers).shape, count + 1), array_of(numbers).dtype)
    wide = model.before(node, "OneHot", [bounded, wider, values], axis=axis)
    model.replace(node, model.before(node, "Slice", [wide], starts=[0], ends=[count], axes=[axis]), [depth])
    return True


def lengthen_to_updates(model: AdaptedModel) -> int:
    """Add rows, in place, to the data of each ScatterElements that may have more updates than rows, and cut them
    off its result; return the number of nodes."""
    nodes = longer_updates(model)
    known = {node: (model.shape_of(node.inputs[1]), model.dtype_of(node.inputs[0])) for node in nodes}
    for node, (shape, dtype) in known.items():
        _count(node, model)
        assert shape is not None
        assert dtype is not None
        axis = node.attributes.get_int("axis", 0) % len(shape)
        longer = _lengthened(node, model, shape, dtype, axis)
        sizes = model.before(node, "Shape", [node.inputs[0]])
        rows = model.before(node, "Gather", [sizes, model.constant(node, [axis])], axis=0)
        result = model.before(node, node.op_type, [longer, *node.inputs[1:]], **node.attributes)
        bounds = [model.constant(node, [0]), rows, model.constant(node, [axis])]
        model.replace(node, model.before(node, "Slice", [result, *bounds]))
    return len(nodes)


def _lengthened(node: ir.Node, model: AdaptedModel, shape: ir.Shape, dtype: ir.DataType, axis: int) -> ir.Value:
    """Return the data of a node with as many rows more as its indices, which have that shape."""
    data, indices = node.inputs[:2]
    if isinstance(count := shape[axis], int):
        ends = [count if n == axis else 0 for n in range(len(shape))]
        return model.before(node, "Pad", [data], pads=[*[0] * len(shape), *ends])
    given, more = (model.before(node, "Shape", [value]) for value in (data, indices))
    sizes = [
        model.before(node, "Gather", [more if n == axis else given, model.constant(node, [n])], axis=0)
        for n in range(len(shape))
    ]
    zero = ir.tensor(np.zeros(1, dtype.numpy()))
    zeros = model.before(node, "ConstantOfShape", [model.before(node, "Concat", sizes, axis=0)], value=zero)
    return model.before(node, "Concat", [data, zeros], axis=axis)


def longer_updates(model: AdaptedModel) -> set[ir.Node]:
    """Return each ScatterElements whose data gets rows."""
    return {node for node in model.nodes("ScatterElements", since=_COMPARES_INTEGERS) if _is_longer(node, model)}


def _is_longer(node: ir.Node, model: AdaptedModel) -> bool:
    data, indices = (model.shape_of(value) for value in node.inputs[:2])
    if not data or not indices or len(data) != len(indices) or model.dtype_of(node.inputs[0]) is None:
        return False
    axis = node.attributes.get_int("axis", 0) % len(data)
    rows, count = data[axis], indices[axis]
    if isinstance(rows, int) and isinstance(count, int):
        return count > rows
    return rows != count or (isinstance(rows, ir.SymbolicDim) and rows.value is None)


def cut_to_indices(model: AdaptedModel) -> int:
    """Cut, in place, what a GatherElements reads to the rows that have indices, along its other axes; return the
    number of nodes."""
    return sum(_cut(node, model) for node in model.nodes("GatherElements"))


def _cut(node: ir.Node, model: AdaptedModel) -> bool:
    shape, indices = (model.shape_of(value) for value in node.inputs)
    if not indices:
        return False
    own = node.attributes.get_int("axis", 0) % len(indices)
    sizes = [None] * len(indices) if shape is None else list(shape)
    ends = {n: b for n, (a, b) in enumerate(zip(sizes, indices, strict=True)) if n != own and a != b}
    if not ends or not all(isinstance(end, int) for end in ends.values()):
        return False
    for axis, end in ends.items():  # OpenVINO rejects a Slice in front of it
        rows = model.constant(node, range(int(str(end))))
        node.replace_input_with(0, model.before(node, "Gather", [node.inputs[0], rows], axis=axis))
    return True
