"""A recurrent node as values: layout, directions, hoisted products, the fold, and the assembly of the outputs."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.cells import CELLS
from rnn_lowering.folds import Fold, Tensors, masked
from rnn_lowering.operands import Operands, incoming, operands
from rnn_lowering.ops import Dims, Ops, Tensor
from rnn_lowering.spec import RecurrentSpec

STATES = {"RNN": ("h",), "GRU": ("h",), "LSTM": ("h", "c")}


def lower_node(op: Ops, spec: RecurrentSpec, fold: Fold) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names on the operator page."""
    T, N, dirs = spec.seq_length, spec.batch_size, len(spec.directions)
    sizes = (N, T) if spec.layout else (T, N)
    X = incoming(op, spec, "X", (*sizes, spec.input_size))
    if T == 0 or N == 0:
        return _nothing(op, spec, X)
    mask, nonempty = _mask(op, spec, X)
    init = [_initial_state(op, spec, f"initial_{s}") for s in STATES[spec.op_type]]
    finals: list[Tensors] = []
    stacked: Tensors = []
    for index, (direction, k) in enumerate(zip(spec.directions, operands(op, spec), strict=True)):
        with op.under(direction if dirs > 1 else ""):
            first = [states[index] for states in init]
            final, ys = _one_direction(op, spec, k, fold, X, first, mask, direction == "reverse")
            if nonempty is not None:  # onnxruntime: a row of length 0 ends in 0, whatever its initial state
                final = [
                    s if i.is_zero else op.select(nonempty, s, op.zero(s.shape))
                    for s, i in zip(final, first, strict=True)
                ]
        finals.append(final)
        stacked += ys
    states_axis = 1 if spec.layout else 0
    outputs = {
        f"Y_{s}": op.concat([_at_axis(op, final[n], states_axis) for final in finals], states_axis)
        for n, s in enumerate(STATES[spec.op_type])
        if f"Y_{s}" in spec.outputs
    }
    if stacked:
        Y = op.concat(stacked, axis=1)  # [seq, dirs, batch, hidden]
        outputs["Y"] = op.transpose(Y, [2, 0, 1, 3]) if spec.layout else Y
    return {symbol: op.cast(output, spec.dtype) for symbol, output in outputs.items()}


def _one_direction(
    op: Ops,
    spec: RecurrentSpec,
    k: Operands,
    fold: Fold,
    X: Tensor,
    init: Tensors,
    mask: Tensor | None,
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    """Return the final states, each [1, batch, hidden], and Y, [seq, 1, batch, hidden], if it is connected."""
    cell, with_Y = CELLS[spec.op_type], "Y" in spec.outputs

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        new = cell(op, k, states, rows)
        return new, new[:1] if with_Y else []

    xs = _projected(op, spec, k, X)
    if mask is None:
        return fold(op, step, init, xs, reverse)
    final, ys = fold(op, masked(op, step), init, [*xs, op.selector(mask)], reverse)
    within = op.unsqueeze(mask, [1]) if ys else mask  # [seq, 1, batch, 1]
    return final, [op.select(within, y, op.zero(y.shape)) for y in ys]


def _projected(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor) -> Tensors:
    """X W^T + Wb (+ Rb) of all steps, [seq, batch, gates*hidden]; for a GRU the hidden gate apart."""
    # A float16 Transpose of [1, 0, 2], as exporters write before X, and a MatMul crash onnxruntime's optimiser.
    apart = spec.dtype == ir.DataType.FLOAT16
    xw = (op.squeeze(op.unsqueeze(X, [0]) @ k.W, [0]) if apart else X @ k.W) + k.Wb
    if spec.layout:
        xw = op.transpose(xw, [1, 0, 2])
    op.name(XW=xw)
    H = spec.hidden_size
    return op.split(xw, [2 * H, H]) if spec.op_type == "GRU" else [xw]


def _initial_state(op: Ops, spec: RecurrentSpec, symbol: str) -> Tensors:
    """An initial state by direction, each [1, batch, hidden], or symbolic zeros."""
    dirs = len(spec.directions)
    page: Dims = (dirs, spec.batch_size, spec.hidden_size)
    if spec.layout:
        page = (spec.batch_size, dirs, spec.hidden_size)
    parts = op.split(incoming(op, spec, symbol, page), [1] * dirs, axis=spec.layout)
    return [op.unsqueeze(op.squeeze(part, [1]), [0]) for part in parts] if spec.layout else parts


def _mask(op: Ops, spec: RecurrentSpec, X: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return t < sequence_lens, [seq, batch, 1], and 0 < sequence_lens, [1, batch, 1]; None where they are
    true everywhere."""
    if "sequence_lens" not in spec.inputs:
        return None, None
    lengths = op.unsqueeze(incoming(op, spec, "sequence_lens", (spec.batch_size,)), [0, 2])  # [1, batch, 1]
    steps = op.unsqueeze(op.steps(op.dim(X, spec.layout)), [1, 2])  # [seq, 1, 1]
    mask = op.less(steps, lengths)
    nonempty = op.less(op.constant([0], ir.DataType.INT32), lengths)
    op.name(mask=mask, nonempty=nonempty)
    return (None if op.is_true(mask) else mask), (None if op.is_true(nonempty) else nonempty)


def _nothing(op: Ops, spec: RecurrentSpec, X: Tensor) -> dict[str, Tensor]:
    """The outputs of no steps or no rows: Y is empty, the final states are zero."""
    seq, batch = op.dim(X, spec.layout), op.dim(X, 1 - spec.layout)
    dirs, hidden = (op.constant([n]) for n in (len(spec.directions), spec.hidden_size))
    state = [batch, dirs, hidden] if spec.layout else [dirs, batch, hidden]
    Y = [batch, seq, dirs, hidden] if spec.layout else [seq, dirs, batch, hidden]
    return {symbol: op.cast(op.zeros(Y if symbol == "Y" else state), spec.dtype) for symbol in spec.outputs}


def _at_axis(op: Ops, state: Tensor, axis: int) -> Tensor:
    """[1, batch, hidden] with its 1 at `axis`."""
    return op.unsqueeze(op.squeeze(state, [0]), [1]) if axis else state
