"""LinearAttentionGate and GatedRMSNorm of com.microsoft, which stand around LinearAttention.

They have no steps, but only onnxruntime has them. Source: its docs/ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from typing_extensions import Self

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.spec.connections import Connections, SpecifiedShape
from rnn_lowering.spec.node_spec import AxisName, InputRole, NodeReader, NodeSpec
from rnn_lowering.types import Dims

DOMAIN = "com.microsoft"

_FORMAL, _OPTION = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.FormalParameterOption
_TYPES = [
    ("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], ""),
    ("TF", ["tensor(float)"], ""),
]


@dataclass(frozen=True, kw_only=True)
class _GateSpec(NodeSpec):
    """A node without steps, which computes in float32 whatever its type is."""

    repeats = False

    @classmethod
    def read(cls, reader: NodeReader) -> Self:
        schema = cls.schema()
        reader.check_attributes(schema)
        connections = reader.connections(schema)
        if not reader.gives(0):
            raise connections.invalid(f"output {schema.outputs[0].name} is missing")
        return cls(**connections.fields(), dtype=connections.dtype(), **cls._read(reader, connections))

    @classmethod
    def schema(cls) -> onnx.defs.OpSchema:
        """Return the schema, which onnx does not have."""
        raise NotImplementedError

    @classmethod
    def _read(cls, reader: NodeReader, connections: Connections) -> dict[str, Any]:
        """Return the sizes, and what else a node of this kind specifies."""
        raise NotImplementedError

    @property
    def needs_no_loop(self) -> str:
        return "it has no steps"

    def computes_in(self, *, widen: bool) -> ir.DataType:
        return ir.DataType.FLOAT


@dataclass(frozen=True, kw_only=True)
class AttentionGateSpec(_GateSpec):
    """A validated LinearAttentionGate: decay = decay_scale * Softplus(a + dt_bias), beta = Sigmoid(b).

    Attributes:
        heads: The number of heads; None where it is not known.

    Example:
        >>> [spec.heads for spec in rl.inspect(model) if isinstance(spec, rl.AttentionGateSpec)]
        []
    """

    heads: int | None

    operators = frozenset({(DOMAIN, "LinearAttentionGate")})
    data = "a"

    @classmethod
    def schema(cls) -> onnx.defs.OpSchema:
        return onnx.defs.OpSchema(
            "LinearAttentionGate",
            DOMAIN,
            1,
            inputs=[
                *(_FORMAL(name, kind) for name, kind in (("a", "T"), ("dt_bias", "TF"), ("decay_scale", "TF"))),
                _FORMAL("b", "T", param_option=_OPTION.Optional),
            ],
            outputs=[_FORMAL("decay", "T"), _FORMAL("beta", "T", param_option=_OPTION.Optional)],
            type_constraints=_TYPES,
        )

    @classmethod
    def _read(cls, reader: NodeReader, connections: Connections) -> dict[str, Any]:
        if reader.gives(1) and "b" not in connections.inputs:
            raise connections.invalid("input b is missing", "output beta needs it")
        rows: SpecifiedShape = ("batch_size", "length", "heads")
        sizes = connections.agreed({"a": rows, "b": rows, "dt_bias": ("heads",), "decay_scale": ("heads",)})
        found = {"batch_size": sizes.get("batch_size"), "seq_length": sizes.get("length")}
        return {**found, "heads": sizes.get("heads"), "input_size": sizes.get("heads")}

    @classmethod
    def role(cls, node: onnx.NodeProto, slot: int) -> InputRole:
        return InputRole(("N", "T"), is_data=True) if slot in (0, 3) else InputRole()

    @property
    def details(self) -> str:
        return "Softplus, Sigmoid" if "beta" in self.outputs else "Softplus"

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        return ("N", "T", None) if symbol in ("a", "b", "decay", "beta") else ()

    def rank(self, symbol: str) -> int:
        return 3 if symbol in ("a", "b") else 1

    def dtype_of(self, symbol: str) -> ir.DataType:
        return ir.DataType.FLOAT if symbol in ("dt_bias", "decay_scale") else self.dtype


_GATES = {"silu": "silu", "swish": "silu", "sigmoid": "sigmoid"}


@dataclass(frozen=True, kw_only=True)
class GatedNormSpec(_GateSpec):
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
    data = "X"

    @classmethod
    def schema(cls) -> onnx.defs.OpSchema:
        kinds = onnx.defs.OpSchema.AttrType
        return onnx.defs.OpSchema(
            "GatedRMSNorm",
            DOMAIN,
            1,
            inputs=[_FORMAL(name, "T") for name in ("X", "scale", "gate")],
            outputs=[_FORMAL("Y", "T")],
            type_constraints=_TYPES[:1],
            attributes=[
                onnx.defs.OpSchema.Attribute("activation", kinds.STRING, required=False),
                onnx.defs.OpSchema.Attribute("epsilon", kinds.FLOAT, required=False),
            ],
        )

    @classmethod
    def _read(cls, reader: NodeReader, connections: Connections) -> dict[str, Any]:
        name = reader.attribute("activation", "silu")
        if name not in _GATES:
            raise connections.invalid(f"activation is '{name}'", f"{', '.join(_GATES)} are allowed")
        shape = _rows(connections)
        group = connections.agreed({"scale": ("group",)}).get("group")
        if group is None:
            raise _unknown(connections, "the length of scale")
        if not group:
            raise connections.invalid("scale is empty")
        if shape[-1] is not None and shape[-1] % group:
            raise connections.invalid(f"the last axis of X has {shape[-1]} elements, not a multiple of {group}")
        return {
            "batch_size": shape[0],
            "seq_length": shape[1] if len(shape) > 2 else 1,
            "input_size": shape[-1],
            "shape": shape,
            "group": group,
            "epsilon": float(reader.attribute("epsilon", 1e-5)),
            "silu": _GATES[name] == "silu",
        }

    @classmethod
    def role(cls, node: onnx.NodeProto, slot: int) -> InputRole:
        return InputRole(("N",), is_data=True) if slot in (0, 2) else InputRole()

    @property
    def details(self) -> str:
        return f"groups of {self.group}, {'SiLU' if self.silu else 'Sigmoid'}"

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        if symbol not in ("X", "gate", "Y"):
            return ()
        return ("N", *(("T",) if len(self.shape) > 2 else ()), *[None] * len(self.shape[2:] or (1,)))

    def rank(self, symbol: str) -> int:
        return 1 if symbol == "scale" else len(self.shape)


def _rows(connections: Connections) -> Dims:
    """Return the shape that X and gate have in common."""
    shapes = [shape for symbol in ("X", "gate") if (shape := connections.dims(symbol)) is not None]
    if not shapes:
        raise _unknown(connections, "the rank of X")
    if len(shapes[0]) < 2:
        raise UnsupportedError(f"X has rank {len(shapes[0])}: at least 2 is supported", node=connections.ref)
    wanted: SpecifiedShape = tuple(f"axis {n}" for n in range(len(shapes[0])))
    sizes = connections.agreed({"X": wanted, "gate": wanted})
    return tuple(sizes.get(str(name)) for name in wanted)


def _unknown(connections: Connections, what: str) -> UnsupportedError:
    return UnsupportedError(f"{what} is not known", hint="declare it (onnx.shape_inference)", node=connections.ref)
