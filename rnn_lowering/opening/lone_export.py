"""Whether one export is enough: no node of it knows a size, and no number of it can be one.

Each node is of a few operators that compute rows of the opened axis alone, or carry a state along it. Each constant
is a weight: different numbers, or those before training, none along an axis as long as the opened one. No file
shows that a weight was multiplied by a size, so the report says that this is assumed not to be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from rnn_lowering.errors import NodeRef
from rnn_lowering.facts.node_outputs import numbers_in
from rnn_lowering.facts.operators import default_opset, input_slots, is_of_default_domain
from rnn_lowering.nodes.kinds import has_cell, node_ref
from rnn_lowering.types import Array

_STATES = (5, 6)
_OF_CELLS = (1, 2, 3, *_STATES, 7)
_UNTRAINED = {("LayerNormalization", 1): (1,), ("LayerNormalization", 2): (0,)}
"""By operator and slot, what all numbers of a weight are before training; in cells they are 0."""

_WEIGHTS = {"Add": (0, 1), "Conv": (1, 2), "Gemm": (1, 2), "LayerNormalization": (1, 2), "MatMul": (1,)}
"""By operator, the slots of weights."""

_PLAIN = {
    *("Concat", "Dropout", "Identity", "Mul", "Relu", "Sigmoid", "Softplus", "Squeeze", "Tanh", "Transpose"),
    "Unsqueeze",
}
_NEED_WEIGHTS = ("MatMul", "Gemm", "Conv")
"""Without weights, these may add rows along the opened axis."""

_ATTRIBUTES = {
    *("axes", "axis", "direction", "activations", "group", "hidden_size", "layout", "kernel_shape"),
    *("linear_before_reset", "perm", "transB"),
}
"""None is a size, but for those of weights."""

_SMALL = 1e-4
"""A smaller epsilon is a bound of a norm."""

_FEWEST = 8
"""Fewer different numbers may follow from a size."""


def suspect(model: ir.Model, exported: Collection[int]) -> tuple[NodeRef, str] | None:
    """Return what may know the size of an opened axis, and why; None if nothing does.

    Args:
        model: The model.
        exported: The sizes of its opened axes.
    """
    for value in model.graph.outputs:
        if ir.convenience.get_const_tensor(value) is not None:
            return NodeRef(value.name or "", "output", "main graph"), "it is a constant"
    nodes = (node for node in model.graph if node.op_type != "Constant")
    return next(((node_ref(node), fact) for node in nodes for fact in _facts(node, model, exported)), None)


def _facts(node: ir.Node, model: ir.Model, exported: Collection[int]) -> Iterator[str]:
    known = has_cell(node) or (is_of_default_domain(node) and node.op_type in {*_WEIGHTS, *_PLAIN})
    if not known:
        yield "its operator may know it"
    plain = _ATTRIBUTES | {"epsilon"} if node.attributes.get_float("epsilon", 1.0) < _SMALL else _ATTRIBUTES
    yield from (f"its {name} may follow from it" for name in node.attributes if name not in plain)
    slots = _OF_CELLS if has_cell(node) else _WEIGHTS.get(node.op_type, ())
    for slot, value in enumerate(node.inputs):
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is None:
            if node.op_type in _NEED_WEIGHTS and slot == 1:
                yield "it has no weights"
        elif _name(node, slot, model) != "axes" and not (
            slot in slots and _is_weight(node, slot, numbers_in(tensor), exported)
        ):
            yield f"its {_name(node, slot, model)} may follow from it"


def _name(node: ir.Node, slot: int, model: ir.Model) -> str:
    slots = input_slots(node.op_type, default_opset(model.opset_imports)) if is_of_default_domain(node) else {}
    return next((name for name, place in slots.items() if place == slot), f"input {slot}")


def _is_weight(node: ir.Node, slot: int, array: Array | None, exported: Collection[int]) -> bool:
    sizes = [n for n in exported if n > 1]
    if array is None or array.dtype.kind != "f" or not array.ndim or {*array.shape} & {*sizes}:
        return False
    unique = np.unique(array).astype(np.float64)
    if slot in _STATES and has_cell(node) and 1 in exported:  # an axis of 1 may be the batch
        return False
    if len(unique) == 1 < array.size:
        return unique[0] in _UNTRAINED.get((node.op_type, slot), (0,) if has_cell(node) else ())
    return len(unique) >= min(_FEWEST, array.size) > 1 and not any(_are_multiples(unique, n) for n in (1, *sizes))


def _are_multiples(numbers: Array, of: int) -> bool:
    """Whether all numbers are whole, times a power of a size."""
    scaled = (numbers[numbers != 0] * float(of) ** power for power in (-1, 1, 2))
    return any((np.round(each) != 0).all() and np.allclose(each, np.round(each), 1e-5, 0) for each in scaled)
