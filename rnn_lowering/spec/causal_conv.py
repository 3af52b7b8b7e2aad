"""CausalConvWithState: a causal depthwise convolution that takes the frames before its input as a state.

Sources: https://onnx.ai/onnx/operators/onnx__CausalConvWithState.html and, for com.microsoft, onnxruntime's
ContribOperators.md and contrib_ops/cpu/bert/causal_conv_with_state.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.spec.connections import Connections, SpecifiedShape
from rnn_lowering.spec.node_spec import AxisName, InputRole, NodeReader, NodeSpec

OPERATOR, DOMAIN = "CausalConvWithState", "com.microsoft"

FIRST_OPSET = 27
"""The first opset with the operator."""

_ACTIVATIONS = {"none": "none", "silu": "silu", "swish": "silu"}


@dataclass(frozen=True, kw_only=True)
class CausalConvSpec(NodeSpec):
    """A validated CausalConvWithState.

    Attributes:
        channels: C; None where it is not known.
        kernel_size: k of the operator specification.
        dilation: The distance between the frames that an output frame reads.
        channel_axes: The sizes of the axes of the channels: (C,), or with channels_last several.
        channels_last: Whether the channels follow the frames.
        silu: Whether the activation is SiLU.

    Example:
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
        return _ConvReader(reader).spec()

    @classmethod
    def role(cls, node: onnx.NodeProto, slot: int) -> InputRole:
        if slot == 0:
            last = next((a.i for a in node.attribute if a.name == "channels_last"), 0)
            return InputRole(("N", "T") if last else ("N", None, "T"), is_data=True)
        return InputRole(("N",), is_state=True) if slot == 3 else InputRole()

    @classmethod
    def fits(cls, node: ir.Node) -> bool:
        """Return whether its weight may be of rank 3: that of the function which onnxruntime-genai wrote for
        onnxruntime before 1.26 is of rank 2."""
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
        if symbol in ("input", "output"):
            return ("N", "T", *others) if self.channels_last else ("N", *others, "T")
        return ("N", None, *others) if symbol in ("past_state", "present_state") else ()

    def rank(self, symbol: str) -> int:
        return {"weight": 3, "bias": 1}.get(symbol, 2 + len(self.channel_axes))

    def computes_in(self, *, widen: bool) -> ir.DataType:
        """Return the element type to compute in: onnxruntime's CPU has no Conv of bfloat16."""
        return ir.DataType.FLOAT if self.dtype == ir.DataType.BFLOAT16 else super().computes_in(widen=widen)

    @property
    def needs_no_loop(self) -> str:
        return "a convolution needs no loop"


def schema() -> onnx.defs.OpSchema:
    """Return the schema of com.microsoft, which onnx does not have."""
    formal, option = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.FormalParameterOption
    numbers = ("ndim", "dilation", "channels_last", "state_window")
    return onnx.defs.OpSchema(
        OPERATOR,
        DOMAIN,
        1,
        inputs=[
            *(formal(name, "T") for name in ("input", "weight")),
            *(formal(name, "T", param_option=option.Optional) for name in ("bias", "past_state")),
        ],
        outputs=[formal(name, "T") for name in ("output", "present_state")],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "")],
        attributes=[
            onnx.defs.OpSchema.Attribute("activation", onnx.defs.OpSchema.AttrType.STRING, required=False),
            *(onnx.defs.OpSchema.Attribute(n, onnx.defs.OpSchema.AttrType.INT, required=False) for n in numbers),
        ],
    )


class _ConvReader:
    """The reading of one node: holds what every step of it needs."""

    def __init__(self, reader: NodeReader) -> None:
        self.reader, self.ref = reader, reader.ref
        self.invalid, self.attribute = reader.invalid, reader.attribute

    def spec(self) -> CausalConvSpec:
        reader = self.reader
        own = reader.standard_schema(FIRST_OPSET, DOMAIN) if reader.is_standard else schema()
        self.reader.check_attributes(own)
        dilation, last = self._number("dilation", 1, least=1), self._number("channels_last", 0)
        if last not in (0, 1):
            raise self.invalid(f"channels_last is {last}", "0 and 1 are allowed")
        self._check_unsupported(last)
        for n, name in enumerate(("output", "present_state")):
            if not self.reader.gives(n):
                raise self.invalid(f"output {name} is missing", "both outputs are required")
        connections = self.reader.connections(own)
        kernel_size = self._kernel_size(connections)
        sizes = self._sizes(connections, (kernel_size - 1) * dilation, kernel_size, bool(last))
        channel_axes = tuple(sizes.get(name) for name in self._channel_names(connections, bool(last)))
        return CausalConvSpec(
            **connections.fields(),
            dtype=connections.common_type(connections.types()),
            seq_length=sizes.get("length"),
            batch_size=sizes.get("batch_size"),
            input_size=sizes.get("channels"),
            channels=sizes.get("channels"),
            kernel_size=kernel_size,
            dilation=dilation,
            channel_axes=channel_axes,
            channels_last=bool(last),
            silu=self._activation() == "silu",
        )

    def _number(self, name: str, default: int, least: int = 0) -> int:
        number = int(self.attribute(name, default))
        if number < least:
            raise self.invalid(f"{name} is {number}", f"it must be at least {least}")
        return number

    def _activation(self) -> str:
        name = self.attribute("activation", "none")
        if name not in _ACTIVATIONS:
            raise self.invalid(f"activation is '{name}'", f"{', '.join(_ACTIVATIONS)} are allowed")
        return _ACTIVATIONS[name]

    def _check_unsupported(self, last: int) -> None:
        """Refuse what onnxruntime's CPU kernel refuses too."""
        self._activation()
        ndim, window = self._number("ndim", 1, least=1), self._number("state_window", 0)
        if ndim > 3 or window > 8:
            name, number, most = ("ndim", ndim, 3) if ndim > 3 else ("state_window", window, 8)
            raise self.invalid(f"{name} is {number}", f"at most {most} is allowed")
        if ndim > 1:
            hint = "put the other axes into the batch or the channels, and set ndim to 1"
            raise UnsupportedError(f"ndim is {ndim}: only 1 is supported", hint=hint, node=self.ref)
        if window:
            hint = "export the model without a window of states (for speculative decoding)"
            raise UnsupportedError(f"state_window is {window}: only 0 is supported", hint=hint, node=self.ref)

    def _kernel_size(self, connections: Connections) -> int:
        shape = connections.dims("weight")
        if shape is not None and (len(shape) != 3 or shape[1] not in (1, None) or shape[2] == 0):
            raise self.invalid(f"weight has shape {list(shape)}, not [channels, 1, kernel_size]")
        size = None if shape is None else shape[2]
        if size is None:
            hint = "make weight an initializer, or declare its shape (onnx.shape_inference)"
            raise UnsupportedError("the shape of weight is not known", hint=hint, node=self.ref)
        return size

    def _channel_names(self, connections: Connections, last: bool) -> tuple[str, ...]:
        """Name the sizes of the axes of the channels."""
        shapes = (connections.dims(symbol) for symbol in ("input", "past_state"))
        rank = next((len(shape) for shape in shapes if shape is not None), None)
        if not last or rank == 3:
            return ("channels",)
        if rank is None:
            hint = "declare its shape (onnx.shape_inference)"
            raise UnsupportedError("the rank of input is not known", hint=hint, node=self.ref)
        if rank < 3:
            raise self.invalid(f"input has rank {rank}", "with channels_last it is [batch, length, channels]")
        return tuple(f"channels_{n}" for n in range(1, rank - 1))

    def _sizes(self, connections: Connections, state: int, kernel_size: int, last: bool) -> dict[str, int]:
        """Return the sizes that are known; the shapes must agree on them."""
        channels = self._channel_names(connections, last)
        wanted: dict[str, SpecifiedShape] = {
            "weight": ("channels", 1, kernel_size),
            "bias": ("channels",),
            "past_state": ("batch_size", state, *channels) if last else ("batch_size", *channels, state),
            "input": ("batch_size", "length", *channels) if last else ("batch_size", *channels, "length"),
        }
        sizes = connections.agreed(wanted)
        self._join(sizes, channels)
        return sizes

    def _join(self, sizes: dict[str, int], channels: tuple[str, ...]) -> None:
        """Add the number of channels, which is the product of their axes."""
        if not all(name in sizes for name in channels):
            return
        product = math.prod(sizes[name] for name in channels)
        if sizes.setdefault("channels", product) != product:
            raise self.invalid(f"input has {product} channels, weight has {sizes['channels']}")
