"""A recurrent node as values: layout, initial states, lengths, and the assembly of the outputs."""

from __future__ import annotations

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.sizes import zeros
from rnn_lowering.emit.tensors import Tensor
from rnn_lowering.recurrence.directions import STATES, run_directions
from rnn_lowering.recurrence.folds import Fold, Tensors
from rnn_lowering.recurrence.ragged import Lengths, read_lengths
from rnn_lowering.recurrence.weights import incoming
from rnn_lowering.spec.node import RecurrentSpec
from rnn_lowering.types import Dims


def lower_node(op: Ops, spec: RecurrentSpec, fold: Fold) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names on the operator page."""
    T, N = spec.seq_length, spec.batch_size
    sizes = (N, T) if spec.layout else (T, N)
    X = incoming(op, spec, "X", (*sizes, spec.input_size))
    if T == 0 or N == 0:
        return _nothing(op, spec, X)
    lengths = _lengths(op, spec, X)
    init = [_initial_state(op, spec, f"initial_{s}") for s in STATES[spec.op_type]]
    finals, stacked = run_directions(op, spec, fold, X, init, lengths)
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
    return {symbol: op.cast(zeros(op, Y if symbol == "Y" else state), spec.dtype) for symbol in spec.outputs}


def _at_axis(op: Ops, state: Tensor, axis: int) -> Tensor:
    """[1, batch, hidden] with its 1 at `axis`."""
    return op.unsqueeze(op.squeeze(state, [0]), [1]) if axis else state
