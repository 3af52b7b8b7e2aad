"""The equivalent of CausalConvWithState.

z is the past frames and the input. Output frame t is the sum over j of weight[:, 0, j] * z[t + j * dilation], plus
the bias; the new state is the last frames of z. A single frame is a Mul and a ReduceSum, which takes an eighth of
the time of a Conv in onnxruntime; more frames are a Conv with a group for each channel. At an open length, an If
chooses between them with `by_length`.
"""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.emit.composites import taps, zeros
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.constants import dims_of
from rnn_lowering.nodes.causal_conv import CausalConvSpec
from rnn_lowering.recurrence.forms import Repeat
from rnn_lowering.recurrence.weights import node_input
from rnn_lowering.types import Dims

_FLOAT = ir.DataType.FLOAT


def lower_causal_conv(op: Ops, spec: CausalConvSpec, _: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its outputs by their names in the operator specification."""
    N, L, C = spec.batch_size, spec.seq_length, spec.channels
    time = 1 if spec.channels_last else 2
    x = _flat(op, spec, node_input(op, spec, "input", _shape_of_frames(spec, L)), (N, L, C))
    state = _state(op, spec, x, time)
    if L == 0:
        return _outputs(op, spec, x, state)
    z = op.concat([state, x], time) if spec.state_length else x
    y = _convolution(op, spec, z, time)
    if spec.silu:
        y = op.cast(y, _FLOAT)
        y = y * op.unary("Sigmoid", y)
    last = op.slice(z, time, -spec.state_length, None) if spec.state_length else state
    return _outputs(op, spec, y, last)


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
    single frame; None if it is not, if they are rows of an image, or if the weights are not constant."""
    shape = dims_of(frames.shape)
    variable = {"weight", "bias"} & spec.inputs.keys() - spec.constants.keys()
    if spec.dilation != 1 or variable or shape is None or shape[2:] != (spec.kernel_size,):
        return None
    weight = node_input(op, spec, "weight", (spec.channels, 1, spec.kernel_size))
    bias = node_input(op, spec, "bias", (spec.channels,))
    return op.cast(_one_frame(op, op.given(frames, op.dtype, shape), weight, bias, 2), op.dtype)


def _shape_of_frames(spec: CausalConvSpec, length: int | None) -> Dims:
    """Return the shape of the input, or of a state of a length."""
    N, channels = spec.batch_size, spec.channel_axes
    return (N, length, *channels) if spec.channels_last else (N, *channels, length)


def _state(op: Ops, spec: CausalConvSpec, x: Tensor, time: int) -> Tensor:
    """Return the past frames, with one axis of channels."""
    S = spec.state_length
    given = node_input(op, spec, "past_state", _shape_of_frames(spec, S))
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


def _outputs(op: Ops, spec: CausalConvSpec, output: Tensor, state: Tensor) -> dict[str, Tensor]:
    """Return the outputs in the type of the node, with its axes of channels."""
    found = {"output": output, "present_state": state}
    if len(spec.channel_axes) > 1:
        x = op.given(spec.inputs["input"], spec.dtype, _shape_of_frames(spec, spec.seq_length))
        sizes = [op.constant([0]), op.constant([0]), *(op.dim(x, n) for n in range(2, x.rank))]
        found = {s: op.reshape(t, (*t.shape[:2], *spec.channel_axes), sizes) for s, t in found.items()}
    return {symbol: op.cast(tensor, spec.dtype) for symbol, tensor in found.items() if symbol in spec.outputs}
