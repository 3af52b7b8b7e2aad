"""A node that a runtime computes itself, behind what its own operator needs: names, hidden_size, other axes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from rnn_lowering.emit.composites import flip
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.types import Dims

_STATE = [1, 0, 2]  # [batch, dirs, hidden] and back
_TO_LAYOUT_1 = [2, 0, 1, 3]  # [seq, dirs, batch, hidden]


def adapted_node(
    op: Ops,
    specs: Sequence[RecurrentSpec],
    added: Sequence[Sequence[Constant]],
    *,
    node: ir.Node,
    flipped: bool,
    without: Collection[str] = (),
) -> list[dict[str, Tensor]]:
    """Emit the node itself, with a name for every output, hidden_size and layout 0.

    Args:
        op: The emitter.
        specs: What it specifies, as the only entry.
        added: Nothing: nodes with kernels of their own share no loop.
        node: The node.
        flipped: Whether a reverse node runs forward, over X in reverse order, whose Y is reversed again.
        without: Attributes to leave out, since they say what is the default.
    """
    (spec,) = specs
    values = dict(spec.inputs)
    sizes: Dims = (spec.seq_length, spec.batch_size, spec.input_size)
    if spec.layout:
        X = _given(op, spec, "X", (sizes[1], sizes[0], sizes[2]))
        values["X"] = op.value(op.transpose(X, [1, 0, 2]))
        shape = (spec.batch_size, len(spec.directions), spec.hidden_size)
        states = (s for s in spec.cell.initial_states if s in values)
        values |= {s: op.value(op.transpose(_given(op, spec, s, shape), _STATE)) for s in states}
    if flipped:
        values["X"] = op.value(flip(op, op.given(values["X"], spec.dtype, sizes)))
    order = ("X", "W", "R", "B", "sequence_lens", *spec.cell.initial_states, "P")
    inputs = [values.get(symbol) for symbol in order]
    while inputs[-1] is None:
        inputs.pop()
    dropped = ("hidden_size", "layout", *(["direction"] if flipped else []), *without)
    kept = [attribute for name, attribute in node.attributes.items() if name not in dropped]
    size = ir.AttrInt64("hidden_size", spec.hidden_size)
    emitted = op.node(node.op_type, inputs, [*kept, size], 1 + len(spec.cell.states))
    return [_outputs(op, spec, emitted, flipped)]


def _given(op: Ops, spec: RecurrentSpec, symbol: str, shape: Dims) -> Tensor:
    return op.given(spec.inputs[symbol], spec.dtype, shape)


def _outputs(op: Ops, spec: RecurrentSpec, node: ir.Node, flipped: bool) -> dict[str, Tensor]:
    """Return the outputs of the emitted node with the layout and direction of the given one."""
    dirs, batch, hidden = len(spec.directions), spec.batch_size, spec.hidden_size
    shapes: list[Dims] = [(spec.seq_length, dirs, batch, hidden), *[(dirs, batch, hidden)] * len(spec.cell.states)]
    symbols = ("Y", *(f"Y_{state}" for state in spec.cell.states))
    found = zip(symbols, node.outputs, shapes, strict=True)
    outputs = {symbol: op.given(value, spec.dtype, shape) for symbol, value, shape in found}
    if flipped and "Y" in spec.outputs:
        outputs["Y"] = flip(op, outputs["Y"])
    if spec.layout:
        outputs = {s: op.transpose(x, _TO_LAYOUT_1 if s == "Y" else _STATE) for s, x in outputs.items()}
    return {symbol: outputs[symbol] for symbol in spec.outputs}
