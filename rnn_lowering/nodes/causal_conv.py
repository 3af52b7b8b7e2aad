"""CausalConvWithState: a causal depthwise convolution that takes the frames before its input as a state.

Sources: https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html and, for com.microsoft, onnxruntime's
ContribOperators.md and contrib_ops/cpu/bert/causal_conv_with_state.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from rnn_lowering.facts.schemas import DOMAIN
from rnn_lowering.nodes.connections import SpecifiedShape
from rnn_lowering.nodes.node_spec import AxisName, InputRole, NodeReader, NodeSpec

OPERATOR = "CausalConvWithState"


@dataclass(frozen=True, kw_only=True)
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
        >>> [spec.kernel_size for spec in rl.inspect(model) if isinstance(spec, rl.CausalConvSpec)]
        []
    """

    channels: int | None
    kernel_size: int
    dilation: int
    channel_axes: tuple[int | None, ...]
    channels_last: bool
    silu: bool

    operators = frozenset({("", OPERATOR), (DOMAIN, OPERATOR)})
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
        weight = node.inputs[1] if len(node.inputs) > 1 else None
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
