"""A recurrent node as values: layout, directions, hoisted products, the fold, and the assembly of the outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from rnn_lowering.cells import CELLS
from rnn_lowering.folds import Fold, Step, Tensors
from rnn_lowering.lengths import Lengths, ragged, read_lengths
from rnn_lowering.operands import Operands, incoming, joined, operands
from rnn_lowering.ops import Ops
from rnn_lowering.spec import RecurrentSpec
from rnn_lowering.tensors import Constant, Dims, Tensor

STATES = {"RNN": ("h",), "GRU": ("h",), "LSTM": ("h", "c")}


def lower_node(op: Ops, spec: RecurrentSpec, fold: Fold) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names on the operator page."""
    T, N, dirs = spec.seq_length, spec.batch_size, len(spec.directions)
    sizes = (N, T) if spec.layout else (T, N)
    X = incoming(op, spec, "X", (*sizes, spec.input_size))
    if T == 0 or N == 0:
        return _nothing(op, spec, X)
    lengths = _lengths(op, spec, X)
    if lengths is not None:
        fold = ragged(fold, lengths, [f"Y_{s}" in spec.outputs for s in STATES[spec.op_type]])
    init = [_initial_state(op, spec, f"initial_{s}") for s in STATES[spec.op_type]]
    ks = operands(op, spec)
    if _side_by_side(op, spec, ks):
        turn = op.flip if lengths is None else partial(lengths.turn, op)
        finals, stacked = _both_directions(op, spec, ks, fold, X, init, turn)
    else:
        finals, stacked = [], []
        for index, (direction, k) in enumerate(zip(spec.directions, ks, strict=True)):
            with op.under(direction if dirs > 1 else ""):
                first = [states[index] for states in init]
                final, ys = fold(op, _step(op, spec, k), first, _projected(op, spec, k, X), direction == "reverse")
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


def _side_by_side(op: Ops, spec: RecurrentSpec, ks: list[Operands]) -> bool:
    """Whether both directions are computed in one loop, which in onnxruntime pays where a product costs less than
    the other operators of a step."""
    constant = all(isinstance(R.value, Constant) for k in ks for R in k.R)
    alike = len(ks) == 2 and spec.activations[0] == spec.activations[1]
    most = 32 if spec.batch_size is None else 64 if spec.batch_size <= 4 else 0
    return op.spelling.fused and constant and alike and spec.hidden_size <= most


def _both_directions(
    op: Ops,
    spec: RecurrentSpec,
    ks: list[Operands],
    fold: Fold,
    X: Tensor,
    init: list[Tensors],
    turn: Callable[[Tensor], Tensor],
) -> tuple[list[Tensors], Tensors]:
    """Return the final states and Y of both directions from one fold over states [batch, 2*hidden]; `turn` reverses
    the steps."""
    H = spec.hidden_size
    forward, reverse = (_projected(op, spec, k, X) for k in ks)
    xs = [_interleaved(op, a, turn(b), H) for a, b in zip(forward, reverse, strict=True)]
    step = _step(op, spec, joined(op, *ks))
    final, ys = fold(op, step, [op.concat(states, -1) for states in init], xs, False)
    halves = [op.split(s, [H, H]) for s in final]
    finals = [[half[n] for half in halves] for n in range(2)]
    if not ys:
        return finals, []
    above, below = op.split(ys[0], [H, H])
    return finals, [above, turn(below)]


def _interleaved(op: Ops, a: Tensor, b: Tensor, H: int) -> Tensor:
    """Gate by gate, that of a and that of b: twice [..., G*H] -> [..., G*2*H]."""
    gates = [H] * ((a.shape[-1] or 0) // H)
    pairs = zip(op.split(a, gates), op.split(b, gates), strict=True)
    return op.concat([part for pair in pairs for part in pair], -1)


def _step(op: Ops, spec: RecurrentSpec, k: Operands) -> Step:
    """The cell as a step of a fold."""
    cell, with_Y = CELLS[spec.op_type], "Y" in spec.outputs

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        new = cell(op, k, states, rows)
        return new, new[:1] if with_Y else []

    return step


def _projected(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor) -> Tensors:
    """X W^T + Wb (+ Rb) of all steps by gate group, each [seq, batch, ...]."""
    # A float16 Transpose of [1, 0, 2], as exporters write before X, and a MatMul crash onnxruntime's optimiser.
    apart = spec.dtype == ir.DataType.FLOAT16
    products = [op.squeeze(op.unsqueeze(X, [0]) @ W, [0]) if apart else X @ W for W in k.W]
    sums = [product + Wb for product, Wb in zip(products, k.Wb, strict=True)]
    xw = [op.transpose(s, [1, 0, 2]) if spec.layout else s for s in sums]
    for part in xw:
        op.name(XW=part)
    return xw


def _initial_state(op: Ops, spec: RecurrentSpec, symbol: str) -> Tensors:
    """An initial state by direction, each [1, batch, hidden], or symbolic zeros."""
    dirs = len(spec.directions)
    page: Dims = (dirs, spec.batch_size, spec.hidden_size)
    if spec.layout:
        page = (spec.batch_size, dirs, spec.hidden_size)
    parts = op.split(incoming(op, spec, symbol, page), [1] * dirs, axis=spec.layout)
    return [op.unsqueeze(op.squeeze(part, [1]), [0]) for part in parts] if spec.layout else parts


def _lengths(op: Ops, spec: RecurrentSpec, X: Tensor) -> Lengths | None:
    """What sequence_lens say; None where every sequence is of full length."""
    if "sequence_lens" not in spec.inputs:
        return None
    given = incoming(op, spec, "sequence_lens", (spec.batch_size,))
    return read_lengths(op, given, op.dim(X, spec.layout), op.dim(X, 1 - spec.layout))


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
