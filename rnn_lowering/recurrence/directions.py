"""The directions of a node: one fold for each, or one fold that computes both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.integer_constants import Dequantized
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.cells import CELLS
from rnn_lowering.recurrence.openvino_lstm import recognized_step
from rnn_lowering.recurrence.recurrence import Fold, Recurrence, Step, Tensors
from rnn_lowering.recurrence.sequence_lens import Lengths, ragged, up_to_longest, with_ended_rows
from rnn_lowering.recurrence.weights import Operands, interleaved, joined, operands
from rnn_lowering.spec.rnn import RecurrentSpec

Flip = Callable[[Tensor], Tensor]
"""Reverses a tensor in time."""

STATES = {"RNN": ("h",), "GRU": ("h",), "LSTM": ("h", "c")}


def run_directions(
    op: Ops, spec: RecurrentSpec, fold: Fold, X: Tensor, init: list[Tensors], lengths: Lengths | None
) -> tuple[list[Tensors], Tensors]:
    """Emit the recurrence of a node.

    Args:
        fold: How the steps are repeated.
        X: The node's input X, [seq, batch, input] or with layout 1 [batch, seq, input].
        init: Initial states by state and direction, each [1, batch, hidden].
        lengths: Rows by sequence_lens; None where every sequence has full length.

    Returns:
        The final states by direction and state, each [1, batch, hidden]; Y by direction, each
        [seq, 1, batch, hidden], empty where Y is not connected.
    """
    ks = operands(op, spec)
    if lengths is not None:
        fold = ragged(fold, lengths, [f"Y_{s}" in spec.outputs for s in STATES[spec.op_type]])
        X = up_to_longest(op, X, lengths) if spec.rounds else X
    if _can_join(op, spec, ks):
        flip = op.flip if lengths is None else partial(lengths.reverse, op)
        return _apart(op, spec, *fold(op, _joined(op, spec, ks, X, init, flip)), flip)
    finals, stacked = [], []
    for n, (direction, k) in enumerate(zip(spec.directions, ks, strict=True)):
        with op.under(direction if len(ks) > 1 else ""):
            recurrence = _recurrence(op, spec, k, X, [states[n] for states in init])
            if spec.rounds and lengths is not None:
                recurrence = with_ended_rows(op, recurrence, lengths, zeros=spec.gives_sequence)
            final, ys = fold(op, replace(recurrence, reverse=direction == "reverse"))
        finals.append(final)
        stacked += ys
    return finals, stacked


def _recurrence(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor, init: Tensors) -> Recurrence:
    """Return the recurrence of one direction."""
    if op.dialect.recognized_lstm:
        return Recurrence(init, [_by_steps(op, spec, X)], recognized_step(op, spec, k))
    return Recurrence(init, _projected(op, spec, k, X), _step(op, spec, k))


def _can_join(op: Ops, spec: RecurrentSpec, ks: list[Operands]) -> bool:
    """Return whether one loop computes both directions: in onnxruntime that is faster where a product costs less
    than the other operators of a step."""
    Rs = [R.value for k in ks for R in k.R]
    constant = all(isinstance(R, Constant) and not isinstance(R, Dequantized) for R in Rs)
    alike = len(ks) == 2 and spec.activations[0] == spec.activations[1]
    most = 32 if spec.batch_size is None else 64 if spec.batch_size <= 4 else 0
    return op.dialect.join_directions and constant and alike and spec.hidden_size <= most


def _joined(
    op: Ops, spec: RecurrentSpec, ks: list[Operands], X: Tensor, init: list[Tensors], flip: Flip
) -> Recurrence:
    """Return both directions as one recurrence of states [batch, 2*hidden], forward in time."""
    forward, reverse = (_projected(op, spec, k, X) for k in ks)
    xs = [interleaved(op, a, flip(b), spec.hidden_size) for a, b in zip(forward, reverse, strict=True)]
    return Recurrence([op.concat(states, -1) for states in init], xs, _step(op, spec, joined(op, *ks)))


def _apart(op: Ops, spec: RecurrentSpec, final: Tensors, ys: Tensors, flip: Flip) -> tuple[list[Tensors], Tensors]:
    """Return the results of a joined recurrence by direction, as `run_directions` does."""
    sizes = [spec.hidden_size] * 2
    halves = [op.split(s, sizes) for s in final]
    finals = [[half[n] for half in halves] for n in range(2)]
    parts = [op.split(y, sizes) for y in ys]
    return finals, [part for above, below in parts for part in (above, flip(below))]


def _step(op: Ops, spec: RecurrentSpec, k: Operands) -> Step:
    """Return the cell of the operator as the step of a recurrence."""
    cell, with_Y = CELLS[spec.op_type], "Y" in spec.outputs

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        new = cell(op, k, states, rows)
        return new, new[:1] if with_Y else []

    return step


def _by_steps(op: Ops, spec: RecurrentSpec, x: Tensor) -> Tensor:
    """Return x as [seq, batch, ...], which with layout 1 is [batch, seq, ...]."""
    return op.transpose(x, [1, 0, 2]) if spec.layout else x


def _projected(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor) -> Tensors:
    """Return X W^T + Wb + Rb of all steps by gate group, each [seq, batch, ...] (see `Operands.Rb` for Rbh)."""
    xw = op.split(_by_steps(op, spec, _sum(op, spec, k, X)), k.groups)
    for part in xw:
        op.name(XW=part)
    return xw


def _sum(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor) -> Tensor:
    """Return X W^T + Wb; with `matrix_product` and known sizes computed on [seq * batch, ...]."""
    if op.dialect.matrix_product and all(X.shape[:2]):  # not open, and not 0
        return op.reshape(k.product(op.flatten(X), k.W) + k.Wb, (*X.shape[:2], *k.W.shape[1:]))
    if spec.dtype != ir.DataType.FLOAT16:
        return k.product(X, k.W) + k.Wb
    # A float16 Transpose of [1, 0, 2], as exporters write before X, and a MatMul crash onnxruntime's optimizer.
    return op.squeeze(k.product(op.unsqueeze(X, [0]), k.W), [0]) + k.Wb
