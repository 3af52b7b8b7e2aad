"""The equivalent of each kind of recurrent nodes: the table; RNN, GRU and LSTM; CausalConvWithState.

The equivalent of an RNN, GRU or LSTM is its recurrences, with what is around them: layout, initial states,
sequence_lens and outputs.

In a CausalConvWithState, z is the past frames and the input. Output frame t is the sum over j of
weight[:, 0, j] * z[t + j * dilation], plus the bias; the new state is the last frames of z. A single frame is a Mul
and a ReduceSum, which takes an eighth of the time of a Conv in onnxruntime; more frames are a Conv with a group for
each channel. With `by_length` an If chooses between them at an open length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import onnx_ir as ir

from rnn_lowering.emit.composites import taps, zeros
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.directions import STATES, Finals, NodeInputs, run_directions, run_stack
from rnn_lowering.recurrence.linear_attention_node import (
    lower_attention_gate,
    lower_gated_delta_net,
    lower_gated_norm,
    lower_linear_attention,
)
from rnn_lowering.recurrence.repetition import Repeat, Tensors
from rnn_lowering.recurrence.sequence_lens import Lengths, read_lengths
from rnn_lowering.recurrence.weights import node_input
from rnn_lowering.spec.causal_conv import CausalConvSpec
from rnn_lowering.spec.constant_values import dims_of
from rnn_lowering.spec.gated_delta_net import AttentionGateSpec, GatedDeltaNetSpec, GatedNormSpec
from rnn_lowering.spec.linear_attention import LinearAttentionSpec
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.spec.rnn import RecurrentSpec
from rnn_lowering.types import Dims

_FLOAT = ir.DataType.FLOAT


def lower_rnn(op: Ops, spec: RecurrentSpec, repeat: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names in the operator specification."""
    return lower_siblings(op, [spec], repeat)[0]


def lower_siblings(op: Ops, specs: Sequence[RecurrentSpec], repeat: Repeat) -> list[dict[str, Tensor]]:
    """Emit the equivalent of a node, or of several of the same T, batch and sequence_lens that `can_join`; return
    the outputs of each as `lower_rnn` does."""
    values = {spec.inputs["X"]: spec for spec in specs}
    Xs = {value: _X(op, spec) for value, spec in values.items()}
    first, X = specs[0], Xs[specs[0].inputs["X"]]
    if first.seq_length == 0 or first.batch_size == 0:
        return [_empty_outputs(op, spec, Xs[spec.inputs["X"]]) for spec in specs]
    lengths = _lengths(op, first, X)
    nodes = [NodeInputs(spec, Xs[spec.inputs["X"]], _initial_states(op, spec)) for spec in specs]
    results = run_directions(op, nodes, repeat, lengths)
    return [_outputs(op, spec, *result) for spec, result in zip(specs, results, strict=True)]


def lower_stack(
    op: Ops, specs: Sequence[RecurrentSpec], repeat: Repeat, added: Sequence[Sequence[Constant]]
) -> list[dict[str, Tensor]]:
    """Emit the equivalent of layers that `can_stack`: X of each is Y of the one before and the constants `added`;
    return the outputs of each as `lower_rnn` does."""
    X = _X(op, specs[0])
    layers = [
        NodeInputs(spec, X, _initial_states(op, spec), constants)
        for spec, constants in zip(specs, [(), *added], strict=True)
    ]
    return [_outputs(op, spec, *found) for spec, found in zip(specs, run_stack(op, layers, repeat), strict=True)]


def _X(op: Ops, spec: RecurrentSpec) -> Tensor:
    sizes = (spec.seq_length, spec.batch_size)
    return node_input(op, spec, "X", (*(reversed(sizes) if spec.layout else sizes), spec.input_size))


def _outputs(op: Ops, spec: RecurrentSpec, finals: Finals, stacked: Tensors) -> dict[str, Tensor]:
    """Return the outputs of a node from what `run_directions` returns of it."""
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


def _initial_states(op: Ops, spec: RecurrentSpec) -> list[Tensors]:
    return [_initial_state(op, spec, f"initial_{s}") for s in STATES[spec.op_type]]


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


def lower_causal_conv(op: Ops, spec: CausalConvSpec, _: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its outputs by their names in the operator specification."""
    N, L, C = spec.batch_size, spec.seq_length, spec.channels
    time = 1 if spec.channels_last else 2
    x = _flat(op, spec, node_input(op, spec, "input", _shape(spec, L)), (N, L, C))
    state = _state(op, spec, x, time)
    if L == 0:
        return _conv_outputs(op, spec, x, state)
    z = op.concat([state, x], time) if spec.state_length else x
    y = _convolution(op, spec, z, time)
    if spec.silu:
        y = op.cast(y, _FLOAT)
        y = y * op.unary("Sigmoid", y)
    last = op.slice(z, time, -spec.state_length, None) if spec.state_length else state
    return _conv_outputs(op, spec, y, last)


def _convolution(op: Ops, spec: CausalConvSpec, z: Tensor, time: int) -> Tensor:
    """Return the weighted sums of the frames of z, with the bias."""
    C, k, L = spec.channels, spec.kernel_size, spec.seq_length
    weight, bias = node_input(op, spec, "weight", (C, 1, k)), node_input(op, spec, "bias", (C,))
    if spec.dilation == 1 and L == 1:
        return _one_frame(op, z, weight, bias, time)
    if spec.dilation == 1 and L is None and C is not None and op.dialect.by_length:
        return _one_or_more(op, spec, z, weight, bias, time)
    return _frames(op, spec, z, weight, bias)


def _one_or_more(op: Ops, spec: CausalConvSpec, z: Tensor, weight: Tensor, bias: Tensor, time: int) -> Tensor:
    """Return the weighted sums of the frames of z by an If: of all of them, or as a convolution."""
    k = spec.kernel_size
    single = op.given(op.value(z), z.dtype, z.shape_with(time, k))
    count = op.dim(z, time)
    is_one = op.both(op.less(op.constant([k - 1]), count), op.less(count, op.constant([k + 1])))
    with op.body():
        one = op.body_graph([], [op.cast(_one_frame(op, single, weight, bias, time), z.dtype)])
    with op.body():
        y = _frames(op, spec, z, weight, bias)
        more = op.body_graph([], [y])
    return op.emit("If", [op.squeeze(is_one, [0])], y.shape, y.dtype, then_branch=one, else_branch=more)


def _frames(op: Ops, spec: CausalConvSpec, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    C = spec.channels
    swapped = spec.channels_last
    frames = op.transpose(z, [0, 2, 1]) if swapped else z
    y = taps(op, frames, weight, bias, spec.dilation) if C is None else op.conv(frames, weight, bias, spec.dilation)
    return op.transpose(y, [0, 2, 1]) if swapped else y


def _one_frame(op: Ops, z: Tensor, weight: Tensor, bias: Tensor, time: int) -> Tensor:
    """Return the weighted sum of all frames of z: [batch, channels, 1], or [batch, 1, channels]."""
    w = op.squeeze(weight, [1])  # [channels, k]
    z, w, bias = (op.cast(part, _FLOAT) for part in (z, w, bias))
    if time == 1:
        return op.sum(z * op.transpose(w, [1, 0]), 1) + bias
    return op.sum(z * w, 2) + op.unsqueeze(bias, [1])


def conv_of_one_frame(op: Ops, spec: CausalConvSpec, frames: ir.Value) -> Tensor | None:
    """Return what the Conv of the equivalent computes of these frames, [batch, channels, length], if that is a
    single frame; None if it is not, or if the weights are not constant."""
    shape = dims_of(frames.shape)
    variable = {"weight", "bias"} & spec.inputs.keys() - spec.constants.keys()
    if spec.dilation != 1 or variable or shape is None or shape[2] != spec.kernel_size:
        return None
    weight = node_input(op, spec, "weight", (spec.channels, 1, spec.kernel_size))
    bias = node_input(op, spec, "bias", (spec.channels,))
    return op.cast(_one_frame(op, op.given(frames, op.dtype, shape), weight, bias, 2), op.dtype)


def _shape(spec: CausalConvSpec, length: int | None) -> Dims:
    """Return the shape of the input, or of a state of a length."""
    N, channels = spec.batch_size, spec.channel_axes
    return (N, length, *channels) if spec.channels_last else (N, *channels, length)


def _state(op: Ops, spec: CausalConvSpec, x: Tensor, time: int) -> Tensor:
    """Return the past frames, with one axis of channels."""
    S = spec.state_length
    given = node_input(op, spec, "past_state", _shape(spec, S))
    if not given.is_zero:
        return _flat(op, spec, given, (spec.batch_size, S, spec.channels))
    if not S and spec.seq_length is not None:
        return op.slice(x, time, 0, 0)  # OpenVINO loses the shape of an empty constant
    batch, length = op.dim(x, 0), op.constant([S])
    return zeros(op, [batch, length, op.dim(x, 2)] if spec.channels_last else [batch, op.dim(x, 1), length])


def _flat(op: Ops, spec: CausalConvSpec, x: Tensor, shape: Dims) -> Tensor:
    """Return x [batch, length, c1, ..., cn] with one axis of channels; other tensors as they are."""
    if len(spec.channel_axes) == 1:
        return x
    channels = op.constant([spec.channels]) if spec.channels is not None else None
    return op.reshape(x, shape, [op.constant([0]), op.constant([0]), channels or op.constant([-1])])


def _conv_outputs(op: Ops, spec: CausalConvSpec, output: Tensor, state: Tensor) -> dict[str, Tensor]:
    """Return the outputs in the type of the node, with its axes of channels."""
    found = {"output": output, "present_state": state}
    if len(spec.channel_axes) > 1:
        whole = op.given(spec.inputs["input"], spec.dtype, _shape(spec, spec.seq_length))
        sizes = [op.constant([0]), op.constant([0]), *(op.dim(whole, n) for n in range(2, whole.rank))]
        found = {s: op.reshape(t, (*t.shape[:2], *spec.channel_axes), sizes) for s, t in found.items()}
    return {symbol: op.cast(tensor, spec.dtype) for symbol, tensor in found.items() if symbol in spec.outputs}


EQUIVALENTS: dict[type[NodeSpec], Callable[[Ops, Any, Repeat], dict[str, Tensor]]] = {
    RecurrentSpec: lower_rnn,
    CausalConvSpec: lower_causal_conv,
    AttentionGateSpec: lower_attention_gate,
    GatedNormSpec: lower_gated_norm,
    GatedDeltaNetSpec: lower_gated_delta_net,
    LinearAttentionSpec: lower_linear_attention,
}
"""By kind: emits the equivalent of a node."""


def lower_node(op: Ops, spec: NodeSpec, repeat: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names in the operator specification."""
    return EQUIVALENTS[type(spec)](op, spec, repeat)


def lower_nodes(
    op: Ops, specs: Sequence[NodeSpec], repeat: Repeat, added: Sequence[Sequence[Constant]]
) -> list[dict[str, Tensor]]:
    """Emit the equivalent of a node, of several that `directions.can_join`, or of layers that `can_stack`.

    Args:
        added: Of layers, the constants that are added below each but the first; else empty.

    Returns:
        The outputs of each, as `lower_node` does.
    """
    if len(specs) == 1:
        return [lower_node(op, specs[0], repeat)]
    nodes = cast(Sequence[RecurrentSpec], specs)
    return lower_stack(op, nodes, repeat, added) if added else lower_siblings(op, nodes, repeat)
