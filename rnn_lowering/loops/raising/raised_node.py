"""The RNN, GRU or LSTM in the place of a Loop: the node of a cell, with its weights and attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.constants import literal
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.loops.raising.cells import RaisedCell
from rnn_lowering.types import Array


@dataclass(frozen=True)
class NodeOutputs:
    """What the node returns.

    Attributes:
        Y: All h, [steps, batch, units], in the order of the sequence.
        Y_h, Y_c: The last states, [batch, units].
    """

    Y: Tensor
    Y_h: Tensor
    Y_c: Tensor | None


def emit_node(
    op: Ops,
    cell: RaisedCell,
    xs: Sequence[Tensor],
    states: Sequence[Tensor | None],
    name: str | None,
    *,
    reverse: bool,
    lens: Tensor | None = None,
) -> NodeOutputs:
    """Emit the node.

    Args:
        op: Emits it.
        cell: Its operator, weights and attributes.
        xs: The parts of X along the features, in the order of `cell.W`.
        states: h0 and c0, [batch, units]; None for zeros.
        name: Its name.
        reverse: Whether it reads X from the end.
        lens: The lengths of the sequences, an int32 [batch].
    """
    X = op.concat(list(xs), 2) if len(xs) > 1 else xs[0]
    H = cell.R.shape[1]
    W = np.concatenate(list(cell.W.values()), axis=1)
    weights = {
        symbol: _weight(op, symbol, a) for symbol, a in (("W", W), ("R", cell.R), ("B", cell.B), ("P", cell.P))
    }
    first = [None if state is None else op.unsqueeze(state, [0]) for state in states]
    inputs = [X, weights["W"], weights["R"], weights["B"], lens, *first]
    if cell.op_type == "LSTM":
        inputs = [*inputs, *[None] * (7 - len(inputs)), weights["P"]]
    while inputs[-1] is None:
        inputs.pop()
    values = [None if tensor is None else op.value(tensor) for tensor in inputs]
    count = 3 if cell.op_type == "LSTM" else 2
    node = op.node(cell.op_type, values, _attributes(cell, H, reverse=reverse), count)
    node.name = name or node.name
    T, N, _ = X.shape
    shapes = [(T, 1, N, H), (1, N, H), (1, N, H)][:count]
    tensors = [op.given(v, X.dtype, shape) for v, shape in zip(node.outputs, shapes, strict=True)]
    for tensor, value in zip(tensors, node.outputs, strict=True):
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
    last = [op.squeeze(state, [0]) for state in tensors[1:]]
    return NodeOutputs(op.squeeze(tensors[0], [1]), last[0], last[1] if count > 2 else None)


def _weight(op: Ops, symbol: str, array: Array | None) -> Tensor | None:
    return None if array is None else op.from_constant(literal(array[None], op.dtype, symbol))


def _attributes(cell: RaisedCell, hidden_size: int, *, reverse: bool) -> list[ir.Attr]:
    """Return the attributes of a node, without those that have their default."""
    attributes = [ir.AttrInt64("hidden_size", hidden_size)]
    names = [each.name for each in cell.activations]
    if names != _DEFAULTS[cell.op_type]:
        attributes.append(ir.AttrStrings("activations", names))
    for name in ("alpha", "beta"):  # only activations that have such a parameter take one
        numbers = [number for each in cell.activations if (number := getattr(each, name)) is not None]
        attributes += [ir.AttrFloat32s(f"activation_{name}", numbers)] if numbers else []
    if cell.clip is not None:
        attributes.append(ir.AttrFloat32("clip", cell.clip))
    if cell.input_forget:
        attributes.append(ir.AttrInt64("input_forget", 1))
    if cell.linear_before_reset:
        attributes.append(ir.AttrInt64("linear_before_reset", 1))
    if reverse:
        attributes.append(ir.AttrString("direction", "reverse"))
    return attributes


_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
