"""The equivalents of recurrent nodes: those of RNN, GRU and LSTM, and where those of other kinds are.

The equivalent of an RNN, GRU or LSTM is its recurrences, with what is around them: layout, initial states,
sequence_lens and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnn_lowering.emit.composites import zeros
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.kinds import imported, kind_of_spec
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.recurrence.directions import (
    Finals,
    NodeInputs,
    OfDirection,
    can_join,
    of_cell,
    run_apart,
    run_joined,
    run_stack,
)
from rnn_lowering.recurrence.forms import Repeat, Tensors
from rnn_lowering.recurrence.sequence_lens import Lengths, ragged, read_lengths
from rnn_lowering.recurrence.weights import node_input
from rnn_lowering.types import Dims


def lower_rnn(
    op: Ops,
    specs: Sequence[RecurrentSpec],
    added: Sequence[Sequence[Constant]],
    repeat: Repeat,
    recurrence: OfDirection = of_cell,
) -> list[dict[str, Tensor]]:
    """Emit the equivalent of a node, of several that `can_join`, or of layers that `can_stack`.

    Args:
        op: The emitter.
        specs: The nodes; those that `can_join` have the same T, batch and sequence_lens.
        added: For layers, the constants that are added to Y of each layer before the next one reads it; empty for
            others.
        repeat: The form that repeats the steps.
        recurrence: Returns the recurrence of a direction that has a loop of its own.
    """
    first = specs[0]
    own = {spec.inputs["X"]: spec for spec in (specs[:1] if added else specs)}
    Xs = {value: _X(op, spec) for value, spec in own.items()}
    X = Xs[first.inputs["X"]]
    if first.seq_length == 0 or first.batch_size == 0:
        return [_empty_outputs(op, spec, Xs[spec.inputs["X"]]) for spec in specs]
    lengths = _lengths(op, first, X)
    nodes = [
        NodeInputs(spec, Xs.get(spec.inputs["X"], X), _initial_states(op, spec), constants)
        for spec, constants in zip(specs, [(), *added] if added else [()] * len(specs), strict=True)
    ]
    if lengths is not None:
        wanted = {symbol for spec in specs for symbol in spec.outputs}
        repeat = ragged(repeat, lengths, [f"Y_{state}" in wanted for state in first.cell.states])
    if added:
        results_of_nodes = run_stack(op, nodes, repeat)
    elif can_join(op.dialect, op.opset, specs):
        results_of_nodes = run_joined(op, nodes, repeat, lengths)
    else:
        results_of_nodes = run_apart(op, nodes, repeat, lengths, recurrence)
    return [_outputs(op, spec, *results) for spec, results in zip(specs, results_of_nodes, strict=True)]


def _X(op: Ops, spec: RecurrentSpec) -> Tensor:
    sizes = (spec.seq_length, spec.batch_size)
    return node_input(op, spec, "X", (*(reversed(sizes) if spec.layout else sizes), spec.input_size))


def _outputs(op: Ops, spec: RecurrentSpec, finals: Finals, stacked: Tensors) -> dict[str, Tensor]:
    """Return the outputs of a node from its final states and Y by direction."""
    states_axis = 1 if spec.layout else 0
    outputs = {
        f"Y_{s}": op.concat([_at_axis(op, final[n], states_axis) for final in finals], states_axis)
        for n, s in enumerate(spec.cell.states)
        if f"Y_{s}" in spec.outputs
    }
    if stacked:
        Y = op.concat(stacked, axis=1)  # [seq, dirs, batch, hidden]
        outputs["Y"] = op.transpose(Y, [2, 0, 1, 3]) if spec.layout else Y
    return {symbol: op.cast(output, spec.dtype) for symbol, output in outputs.items()}


def _initial_states(op: Ops, spec: RecurrentSpec) -> list[Tensors]:
    return [_initial_state(op, spec, symbol) for symbol in spec.cell.initial_states]


def _initial_state(op: Ops, spec: RecurrentSpec, symbol: str) -> Tensors:
    """Return an initial state by direction, each [1, batch, hidden]; symbolic zeros where it is absent."""
    dirs = len(spec.directions)
    shape: Dims = (dirs, spec.batch_size, spec.hidden_size)
    if spec.layout:
        shape = (spec.batch_size, dirs, spec.hidden_size)
    parts = op.split(node_input(op, spec, symbol, shape), [1] * dirs, axis=spec.layout)
    return [op.unsqueeze(op.squeeze(part, [1]), [0]) for part in parts] if spec.layout else parts


def _lengths(op: Ops, spec: RecurrentSpec, X: Tensor) -> Lengths | None:
    """Return the rows that sequence_lens specifies; None if every sequence has full length."""
    if "sequence_lens" not in spec.inputs:
        return None
    given = node_input(op, spec, "sequence_lens", (spec.batch_size,))
    return read_lengths(op, given, op.dim(X, spec.layout), op.dim(X, 1 - spec.layout))


def _empty_outputs(op: Ops, spec: RecurrentSpec, X: Tensor) -> dict[str, Tensor]:
    """Return the outputs for a sequence length or batch size of 0: Y is empty, the final states are zero."""
    seq, batch = op.dim(X, spec.layout), op.dim(X, 1 - spec.layout)
    dirs, hidden = (op.constant([n]) for n in (len(spec.directions), spec.hidden_size))
    state = [batch, dirs, hidden] if spec.layout else [dirs, batch, hidden]
    Y = [batch, seq, dirs, hidden] if spec.layout else [seq, dirs, batch, hidden]
    return {symbol: op.cast(zeros(op, Y if symbol == "Y" else state), spec.dtype) for symbol in spec.outputs}


def _at_axis(op: Ops, state: Tensor, axis: int) -> Tensor:
    """Move the axis of size 1 of [1, batch, hidden] to `axis`, 0 or 1."""
    return op.unsqueeze(op.squeeze(state, [0]), [1]) if axis else state


def equivalent_of(spec: NodeSpec) -> Callable[..., list[dict[str, Tensor]]]:
    """Return what emits the equivalents of nodes that become one recurrence, as `lower_rnn` does. Nodes of other
    kinds share no loop: theirs take one node, as (op, spec, repeat)."""
    lower = imported(kind_of_spec(spec).equivalent)
    if isinstance(spec, RecurrentSpec):
        return lower  # type: ignore[no-any-return]
    return lambda op, specs, added, repeat: [lower(op, each, repeat) for each in specs]
