"""Tile and Expand of axes of size 1, as Gather.

tract puts a product before the Tile or the Expand of its operand. It then rejects the model, or with an open length
returns one row without an error. It leaves a Gather where it is.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.model_sizes import Inferred, inferred_values, take_over
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import standard_nodes

_ZERO = ir.tensor([0])


def repeat_by_gather(model: ir.Model) -> int:
    """Write, in place, each Tile and Expand of a computed value that repeats axes of size 1 as Gather; return their
    number."""
    opset = default_opset(model.opset_imports)
    found = [
        node
        for scope, node in standard_nodes(model, "Tile", "Expand")
        if scope.function is None and scope.opset >= _CONSTANT_OF_SHAPE and _has_two_inputs(node, opset)
    ]
    if not found:
        return 0
    known, inserter = dict(inferred_values(model)), Inserter(model)
    return sum(_rewrite(node, opset, known, inserter) for node in found)


_CONSTANT_OF_SHAPE = 9
"""The first opset of the operator."""


def _has_two_inputs(node: ir.Node, opset: int) -> bool:
    """Whether both inputs are connected, and what is repeated is computed."""
    both = len(node.inputs) == 2 and None not in node.inputs
    return both and node.inputs[0] is not None and constant_of(node.inputs[0], opset) is None


def _rewrite(node: ir.Node, opset: int, known: dict[ir.Value, ir.Value], inserter: Inserter) -> bool:
    """Put a Gather for each repeated axis in the place of a node; return False if other axes may be repeated."""
    x, counts = node.inputs
    assert x is not None
    shape = known.get(x, x).shape
    numbers = None if shape is None else _numbers(counts, opset, known)
    if shape is None or numbers is None or len(numbers) > len(shape):
        return False
    numbers = [*[1] * (len(shape) - len(numbers)), *numbers]
    if not all(size == 1 or number == 1 or _keeps(node, size) for size, number in zip(shape, numbers, strict=True)):
        return False
    value = x
    for axis, (size, number) in enumerate(zip(shape, numbers, strict=True)):
        if size == 1 and number != 1:
            if isinstance(number, int):
                rows = inserter.constant(node, [0] * number)
            else:
                rows = inserter.before(node, "ConstantOfShape", [number], {"value": _ZERO})
            value = inserter.before(node, "Gather", [value, rows], {"axis": axis})
    if value is x:
        value = inserter.before(node, "Identity", [x])
    known[value] = known.get(node.outputs[0], value)
    take_over(node.outputs[0], value)
    assert isinstance(node.graph, ir.Graph)
    node.graph.remove(node, safe=True)
    drop_unused([counts] if counts is not None else [])
    return True


def _keeps(node: ir.Node, size: int | ir.SymbolicDim) -> bool:
    """Whether a node cannot repeat an axis: Expand repeats those of size 1 only."""
    return node.op_type == "Expand" and isinstance(size, int)


def _numbers(value: ir.Value | None, opset: int, known: Inferred) -> list[int | ir.Value] | None:
    """Return the elements of a vector: numbers, or vectors of one element where it is a Concat; None if unknown."""
    if value is None:
        return None
    tensor, node = constant_of(value, opset), value.producer()
    if tensor is not None:
        return [int(number) for number in tensor.numpy().reshape(-1)]
    if node is not None and node.op_type == "Concat" and is_of_default_domain(node):
        parts = [_numbers(part, opset, known) for part in node.inputs]
        return None if None in parts else [number for part in parts for number in part or ()]
    if node is not None and node.op_type == "Where" and is_of_default_domain(node):
        return _chosen(node, opset, known)
    shape = known.get(value, value).shape
    return [value] if shape is not None and list(shape) == [1] else None


def _chosen(where: ir.Node, opset: int, known: Inferred) -> list[int | ir.Value] | None:
    """Return the elements of a Where of sizes, of which -1 keeps an axis; None if they are unknown."""
    condition, first, second = where.inputs
    chosen = None if condition is None else constant_of(condition, opset)
    these, others = _numbers(first, opset, known), _numbers(second, opset, known)
    if these is None or others is None or len(these) != len(others):
        return None
    flags = _equal(condition, opset, known) if chosen is None else chosen.numpy().reshape(-1).tolist()
    if flags is None or len(flags) != len(these):
        return None
    return [a if flag else b for flag, a, b in zip(flags, these, others, strict=True)]


def _equal(value: ir.Value | None, opset: int, known: Inferred) -> list[bool] | None:
    """Return the elements of an Equal of sizes and negative numbers; None if one may be either."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Equal":
        return None
    sizes, marks = (_numbers(given, opset, known) for given in node.inputs)
    if sizes is None or marks is None or len(sizes) != len(marks):
        return None
    pairs = list(zip(sizes, marks, strict=True))
    if not all(isinstance(m, int) and (isinstance(s, int) or (m < 0 and _is_size(s))) for s, m in pairs):
        return None
    return [size == mark for size, mark in pairs]


def _is_size(value: ir.Value | None) -> bool:
    """Whether a value is part of the result of a Shape."""
    while value is not None and (node := value.producer()) is not None and is_of_default_domain(node):
        if node.op_type == "Shape":
            return True
        if node.op_type not in ("Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"):
            return False
        value = node.inputs[0]
    return False
