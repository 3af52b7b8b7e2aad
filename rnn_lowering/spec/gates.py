"""LinearAttentionGate and GatedRMSNorm of com.microsoft, which stand around LinearAttention.

They have no steps, but only onnxruntime has them. Source: its docs/ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.spec.connections import SpecifiedShape
from rnn_lowering.spec.contrib_schemas import DOMAIN
from rnn_lowering.spec.node_spec import AxisName, InputRole, NodeReader, NodeSpec
from rnn_lowering.types import Dims


@dataclass(frozen=True, kw_only=True)
class AttentionGateSpec(NodeSpec):
    """A validated LinearAttentionGate: decay = decay_scale * Softplus(a + dt_bias), beta = Sigmoid(b).

    Attributes:
        heads: The number of heads; None where it is not known.

    Example:
        >>> [spec.heads for spec in rl.inspect(model) if isinstance(spec, rl.AttentionGateSpec)]
        []
    """

    heads: int | None

    operators = frozenset({(DOMAIN, "LinearAttentionGate")})
    roles = dict.fromkeys((0, 3), InputRole(("N", "T"), is_data=True))
    data = "a"
    repeats, in_float32 = False, True

    @classmethod
    def read(cls, reader: NodeReader) -> AttentionGateSpec:
        connections = reader.connections
        reader.check_outputs()
        if reader.gives(1) and "b" not in connections.inputs:
            raise reader.invalid("input b is missing", "output beta needs it")
        rows: SpecifiedShape = ("batch_size", "length", "heads")
        sizes = connections.agreed({"a": rows, "b": rows, "dt_bias": ("heads",), "decay_scale": ("heads",)})
        return cls(
            **connections.fields(),
            dtype=connections.dtype(),
            batch_size=sizes.get("batch_size"),
            seq_length=sizes.get("length"),
            heads=sizes.get("heads"),
            input_size=sizes.get("heads"),
        )

    @property
    def details(self) -> str:
        return "Softplus, Sigmoid" if "beta" in self.outputs else "Softplus"

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        return (None,) if symbol in ("dt_bias", "decay_scale") else ("N", "T", None)

    def dtype_of(self, symbol: str) -> ir.DataType:
        return ir.DataType.FLOAT if symbol in ("dt_bias", "decay_scale") else self.dtype


@dataclass(frozen=True, kw_only=True)
class GatedNormSpec(NodeSpec):
    """A validated GatedRMSNorm: Y = X / sqrt(mean(X^2) + epsilon) * scale * activation(gate).

    Attributes:
        shape: That of X, [..., groups * C]; None for sizes that are not known.
        group: C, the number of elements that are normalized together.
        epsilon: Is added to the mean of squares.
        silu: Whether the activation is SiLU, or else Sigmoid.

    Example:
        >>> [spec.epsilon for spec in rl.inspect(model) if isinstance(spec, rl.GatedNormSpec)]
        []
    """

    shape: Dims
    group: int
    epsilon: float
    silu: bool

    operators = frozenset({(DOMAIN, "GatedRMSNorm")})
    roles = dict.fromkeys((0, 2), InputRole(("N",), is_data=True))
    data = "X"
    repeats, in_float32 = False, True

    @classmethod
    def read(cls, reader: NodeReader) -> GatedNormSpec:
        connections = reader.connections
        reader.check_outputs()
        activation = reader.choice("activation", "silu", ("silu", "swish", "sigmoid"))
        shape = _common_shape(reader, "X", "gate")
        group = connections.agreed({"scale": ("group",)}).get("group")
        if group is None:
            raise reader.unknown("the length of scale")
        if not group:
            raise reader.invalid("scale is empty")
        if shape[-1] is not None and shape[-1] % group:
            raise reader.invalid(f"the last axis of X has {shape[-1]} elements, not a multiple of {group}")
        return cls(
            **connections.fields(),
            dtype=connections.dtype(),
            batch_size=shape[0],
            seq_length=shape[1] if len(shape) > 2 else 1,
            input_size=shape[-1],
            shape=shape,
            group=group,
            epsilon=float(reader.attribute("epsilon", 1e-5)),
            silu=activation != "sigmoid",
        )

    @property
    def details(self) -> str:
        return f"groups of {self.group}, {'SiLU' if self.silu else 'Sigmoid'}"

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        if symbol == "scale":
            return (None,)
        others = len(self.shape) - 2
        return ("N", "T", *[None] * others) if others else ("N", None)


def _common_shape(reader: NodeReader, *symbols: str) -> Dims:
    """Return the shape that inputs have in common."""
    connections = reader.connections
    shapes = [shape for symbol in symbols if (shape := connections.dims(symbol)) is not None]
    if not shapes:
        raise reader.unknown(f"the rank of {symbols[0]}")
    rank = len(shapes[0])
    if rank < 2:
        raise reader.unsupported(f"{symbols[0]} has rank {rank}: at least 2 is supported")
    axes: SpecifiedShape = tuple(f"axis {n}" for n in range(rank))
    sizes = connections.agreed(dict.fromkeys(symbols, axes))
    return tuple(sizes.get(str(name)) for name in axes)
