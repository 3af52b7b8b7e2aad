"""CausalConvWithState, a causal depthwise convolution: its reader, and its equivalent. Past frames are a state.

Sources: https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html and, for com.microsoft, onnxruntime's
ContribOperators.md and contrib_ops/cpu/bert/causal_conv_with_state.cc.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from rnn_lowering.emit.composites import taps, zeros
from rnn_lowering.emit.draft import NODE, Names
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.constants import dims_of
from rnn_lowering.facts.operators import input_at
from rnn_lowering.model.model_sizes import take_over
from rnn_lowering.model.preparation import NodePlan
from rnn_lowering.model.replace import drop_unused, emitter_of
from rnn_lowering.model.scopes import all_names
from rnn_lowering.nodes.connections import SpecifiedShape
from rnn_lowering.nodes.spec import AxisName, InputRole, NodeReader, NodeSpec
from rnn_lowering.recurrence.forms import Repeat
from rnn_lowering.recurrence.weights import node_input
from rnn_lowering.types import Dims

OPERATOR = "CausalConvWithState"


@dataclass(frozen=True, kw_only=True, repr=False)
class CausalConvSpec(NodeSpec):
    """A validated CausalConvWithState.

    Attributes:
        channels: C; None if unknown.
        kernel_size: k of the operator specification.
        dilation: The distance between the frames that an output frame reads.
        channel_axes: The sizes of the axes of the channels: (C,), or with channels_last several.
        channels_last: Whether the channels follow the frames.
        silu: Whether the activation is SiLU.

    Examples:
        >>> from rnn_lowering.attention.causal_conv import CausalConvSpec
        >>> [spec.kernel_size for spec in rl.inspect(model) if isinstance(spec, CausalConvSpec)]
        []
    """

    channels: int | None
    kernel_size: int
    dilation: int
    channel_axes: tuple[int | None, ...]
    channels_last: bool
    silu: bool

    data = "input"
    repeats = False

    @classmethod
    def read(cls, reader: NodeReader) -> CausalConvSpec:
        dilation, last = _number(reader, "dilation", 1, least=1), bool(reader.choice("channels_last", 0, (0, 1)))
        activation = reader.choice("activation", "none", ("none", "silu", "swish"))
        _check_supported(reader)
        reader.check_outputs()
        connections, kernel_size = reader.connections, _kernel_size(reader)
        axes = _channel_axes(reader, last)
        sizes = _sizes(reader, kernel_size, (kernel_size - 1) * dilation, last, axes)
        return cls(
            **connections.fields(),
            dtype=connections.common_type(connections.types()),
            seq_length=sizes.get("length"),
            batch_size=sizes.get("batch_size"),
            input_size=sizes.get("channels"),
            channels=sizes.get("channels"),
            kernel_size=kernel_size,
            dilation=dilation,
            channel_axes=tuple(sizes.get(name) for name in axes),
            channels_last=last,
            silu=activation != "none",
        )

    @classmethod
    def role(cls, node: onnx.NodeProto, slot: int) -> InputRole:
        if slot == 0:
            last = next((a.i for a in node.attribute if a.name == "channels_last"), 0)
            return InputRole(("N", "T") if last else ("N", None, "T"), is_data=True)
        return InputRole(("N",), is_state=True) if slot == 3 else InputRole()

    @classmethod
    def fits(cls, node: ir.Node) -> bool:
        """Return whether its weight may have rank 3. The function that onnxruntime-genai wrote for onnxruntime
        before 1.26 has one of rank 2."""
        weight = input_at(node, 1)
        return weight is None or weight.shape is None or len(weight.shape) != 2

    @property
    def state_length(self) -> int:
        """The number of frames in a state."""
        return (self.kernel_size - 1) * self.dilation

    @property
    def details(self) -> str:
        parts = [f"kernel {self.kernel_size}", f"dilation {self.dilation}" if self.dilation > 1 else ""]
        return ", ".join(filter(None, (*parts, "SiLU" if self.silu else "")))

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        others: tuple[AxisName, ...] = (None,) * len(self.channel_axes)
        if symbol in ("weight", "bias"):
            return (None, None, None) if symbol == "weight" else (None,)
        if symbol in ("input", "output"):
            return ("N", "T", *others) if self.channels_last else ("N", *others, "T")
        return ("N", None, *others)

    def computes_in(self, *, widen: bool) -> ir.DataType:
        """Return the element type to compute in: onnxruntime's CPU has no Conv of bfloat16."""
        return ir.DataType.FLOAT if self.dtype == ir.DataType.BFLOAT16 else super().computes_in(widen=widen)

    @property
    def straight_line_reason(self) -> str:
        return "a convolution needs no loop"


def _number(reader: NodeReader, name: str, default: int, least: int = 0) -> int:
    """Return the value of an attribute that must be large enough."""
    number = int(reader.attribute(name, default))
    if number < least:
        raise reader.invalid(f"{name} is {number}", f"it must be at least {least}")
    return number


def _check_supported(reader: NodeReader) -> None:
    """Refuse what onnxruntime's CPU kernel refuses too."""
    ndim, window = _number(reader, "ndim", 1, least=1), _number(reader, "state_window", 0)
    for name, number, most in (("ndim", ndim, 3), ("state_window", window, 8)):
        if number > most:
            raise reader.invalid(f"{name} is {number}", f"at most {most} is allowed")
    if ndim > 1:
        hint = "put the other axes into the batch or the channels, and set ndim to 1"
        raise reader.unsupported(f"ndim is {ndim}: only 1 is supported", hint)
    if window:
        hint = "export the model without a window of states (for speculative decoding)"
        raise reader.unsupported(f"state_window is {window}: only 0 is supported", hint)


def _kernel_size(reader: NodeReader) -> int:
    shape = reader.connections.dims("weight")
    if shape is not None and (len(shape) != 3 or shape[1] not in (1, None) or shape[2] == 0):
        raise reader.invalid(f"weight has shape {list(shape)}, not [channels, 1, kernel_size]")
    size = None if shape is None else shape[2]
    if size is None:
        hint = "make weight an initializer, or declare its shape (onnx.shape_inference)"
        raise reader.unknown("the shape of weight", hint)
    return size


def _channel_axes(reader: NodeReader, last: bool) -> tuple[str, ...]:
    """Return names for the sizes of the axes of the channels."""
    shapes = (reader.connections.dims(symbol) for symbol in ("input", "past_state"))
    rank = next((len(shape) for shape in shapes if shape is not None), None)
    if not last or rank == 3:
        return ("channels",)
    if rank is None:
        raise reader.unknown("the rank of input")
    if rank < 3:
        raise reader.invalid(f"input has rank {rank}", "with channels_last it is [batch, length, channels]")
    return tuple(f"channels_{n}" for n in range(1, rank - 1))


def _sizes(reader: NodeReader, kernel_size: int, state: int, last: bool, axes: Sequence[str]) -> dict[str, int]:
    """Return the sizes that are known, on which the shapes must agree; "channels" is the product of all `axes`."""

    def frames(length: int | str) -> SpecifiedShape:
        return ("batch_size", length, *axes) if last else ("batch_size", *axes, length)

    wanted: dict[str, SpecifiedShape] = {
        "weight": ("channels", 1, kernel_size),
        "bias": ("channels",),
        "past_state": frames(state),
        "input": frames("length"),
    }
    sizes = reader.connections.agreed(wanted)
    if all(name in sizes for name in axes):
        product = math.prod(sizes[name] for name in axes)
        if sizes.setdefault("channels", product) != product:
            raise reader.invalid(f"input has {product} channels, weight has {sizes['channels']}")
    return sizes


# The equivalent of CausalConvWithState. z is the past frames and the input. Output frame t is the sum over j of
# weight[:, 0, j] * z[t + j * dilation], plus the bias; the new state is the last frames of z. A single frame is a
# Mul and a ReduceSum, which takes an eighth of the time of a Conv in onnxruntime; more frames are a Conv with a
# group for each channel. At an open length, an If chooses between them with `by_length`.


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
    tensors = {"output": output, "present_state": state}
    if len(spec.channel_axes) > 1:
        x = op.given(spec.inputs["input"], spec.dtype, _shape_of_frames(spec, spec.seq_length))
        sizes = [op.constant([0]), op.constant([0]), *(op.dim(x, n) for n in range(2, x.rank))]
        tensors = {s: op.reshape(t, (*t.shape[:2], *spec.channel_axes), sizes) for s, t in tensors.items()}
    return {symbol: op.cast(tensor, spec.dtype) for symbol, tensor in tensors.items() if symbol in spec.outputs}


# Convolutions of CausalConvWithState that compute a single frame, once a model is a stream.


def shorten_convolutions(model: ir.Model, plan: Mapping[str, NodePlan], *, widen: bool) -> None:
    """Replace, in place, the Convs of equivalents that now compute a single frame.

    Args:
        model: The model.
        plan: The nodes that were replaced, by the prefix of the names in their equivalents.
        widen: As for `replace_nodes`.
    """
    names = Names(all_names(model))
    for node in [node for node in model.graph if node.op_type == "Conv" and node.domain == ""]:
        planned, frames = plan.get(node.metadata_props.get(NODE, "")), node.inputs[0]
        if planned is None or frames is None or not isinstance(planned.spec, CausalConvSpec):
            continue
        op = emitter_of([planned], planned.spec, names, model.ir_version, widen, {})
        sums = conv_of_one_frame(op, planned.spec, frames)
        if sums is None:
            continue
        (value,) = op.outputs([sums])
        op.finish([value])
        for initializer in op.initializers:
            model.graph.register_initializer(initializer)
        model.graph.insert_before(node, op.nodes)
        value.type = value.type or ir.TensorType(op.dtype)
        take_over(node.outputs[0], value)
        inputs = [value for value in node.inputs if value is not None]
        model.graph.remove(node, safe=True)
        drop_unused(inputs)
