"""Rows of a table, such as an embedding, as pnnx takes them.

pnnx runs a model on uninitialized integers, so it crashes if such an integer is an index beyond the table. It makes
an Embed of a Gather without the attribute axis. If the Gather says `axis = 0`, ncnn does not load it.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, inputs_of, is_of_default_domain, reached
from rnn_lowering.model.model_sizes import Inferred, inferred_values, take_over
from rnn_lowering.model.replace import drop_unused

_CLIP_OF_INTEGERS = 12
"""The opset from which on a Clip takes integers."""

_SIZES = ("Shape", "Size")
"""Operators whose results do not depend on the numbers of their input."""


def simplify_indices(model: ir.Model) -> int:
    """Let each Gather of rows of a constant read its indices before a Cast to other integers, and as one vector if
    they have more than two axes, in place; return how many do."""
    opset = default_opset(model.opset_imports)
    found = [node for node in model.graph if _rows(node, opset)]
    if not found:
        return 0
    known, inserter = inferred_values(model), Inserter(model)
    return sum(_skip_cast(node, known) + _flatten(node, opset, known, inserter) for node in found)


def _skip_cast(node: ir.Node, known: Inferred) -> bool:
    indices = node.inputs[1]
    cast = None if indices is None else indices.producer()
    source = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    if indices is None or source is None or known.get(source, source).dtype not in _INDICES:
        return False
    node.replace_input_with(1, source)
    drop_unused([indices])
    return True


def _flatten(node: ir.Node, opset: int, known: Inferred, inserter: Inserter) -> bool:
    table, indices = node.inputs
    shape = None if indices is None else known.get(indices, indices).shape
    rows = None if table is None else constant_of(table, opset)
    if rows is None or shape is None or len(shape) <= _MOST_AXES or not shape.is_static():
        return False
    flat = inserter.before(node, "Reshape", [indices, inserter.constant(node, [-1])])
    taken = inserter.before(node, "Gather", [table, flat])
    whole = [*shape.numpy(), *rows.shape.numpy()[1:]]
    take_over(node.outputs[0], inserter.before(node, "Reshape", [taken, inserter.constant(node, whole)]))
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
    return True


_MOST_AXES = 2
"""The most axes of indices that pnnx makes an Embed of."""

_INDICES = (ir.DataType.INT32, ir.DataType.INT64)
"""The types of indices; an index of a row has the same number in both."""


def bound_lookups(model: ir.Model) -> int:
    """Clip the indices of each Gather along the first axis of a constant that follow from an integer input of the
    model, and leave out its attribute axis, in place; return how many were changed.

    An index that a Clip changes is one that Gather forbids.
    """
    opset, inserter, count = default_opset(model.opset_imports), Inserter(model), 0
    for node in list(model.graph):
        rows = _rows(node, opset)
        if not rows:
            continue
        written = node.attributes.pop("axis", None) is not None
        dtype = (
            _dtype(model, node) if opset >= _CLIP_OF_INTEGERS and _follows_from_integers(node.inputs[1]) else None
        )
        if dtype is not None:
            _clip(node, rows, dtype, inserter)
        count += written or dtype is not None
    return count


def _rows(node: ir.Node, opset: int) -> int:
    """Return the number of rows of a constant that a node takes rows of by computed indices; 0 if it does not."""
    if node.op_type != "Gather" or not is_of_default_domain(node):
        return 0
    data, indices = node.inputs
    table = None if data is None else constant_of(data, opset)
    if table is None or table.shape.rank() == 0 or indices is None or constant_of(indices, opset) is not None:
        return 0
    return int(table.shape.numpy()[0]) if node.attributes.get_int("axis", 0) in (0, -table.shape.rank()) else 0


def _follows_from_integers(value: ir.Value | None) -> bool:
    """Return whether numbers of an integer input of the model lead to a value."""

    def before(value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        return [] if node is not None and node.op_type in _SIZES else inputs_of(value)

    inputs = (v for v in reached([value], before) if v.is_graph_input())
    return any(v.dtype is not None and v.dtype.is_integer() for v in inputs)


def _dtype(model: ir.Model, node: ir.Node) -> ir.DataType | None:
    """Return the type of the indices of a Gather, if it is known."""
    indices = node.inputs[1]
    assert indices is not None
    return indices.dtype or inferred_values(model).get(indices, indices).dtype


def _clip(node: ir.Node, rows: int, dtype: ir.DataType, inserter: Inserter) -> None:
    """Clip the indices of a Gather to those that it takes."""
    indices = node.inputs[1]
    assert indices is not None
    numbers = {"first": -rows, "last": rows - 1}
    bounds = [inserter.constant(node, number, dtype.numpy(), hint) for hint, number in numbers.items()]
    clipped = inserter.before(node, "Clip", [indices, *bounds])
    clipped.type, clipped.shape = ir.TensorType(dtype), indices.shape
    node.replace_input_with(1, clipped)
