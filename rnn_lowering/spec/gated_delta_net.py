"""GatedDeltaNet of com.microsoft: LinearAttention with gates of its own and a transposed state in float32.

Its document is onnxruntime's ContribOperators.md. What needs a list of lengths, packs tokens or gives updates of
the state as an output is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.spec.connections import Connections, SpecifiedShape
from rnn_lowering.spec.linear_attention import RULES, LinearAttentionSpec
from rnn_lowering.spec.node_spec import AxisName, InputRole, NodeReader, NodeSpec

OPERATOR, DOMAIN = "GatedDeltaNet", "com.microsoft"

_INPUTS = (
    *(("query", "T"), ("key", "T"), ("value", "T"), ("cu_seqlens", "TI"), ("decay", "TS"), ("beta", "TS")),
    *(("initial_state", "TS"), ("a_log", "TS"), ("dt_bias", "TS"), ("capture_count", "TI")),
    ("state_update_active", "TI"),
)
_OUTPUTS = (("output", "T"), ("final_state", "TS"), ("state_update", "TS"))
_CHOICES = {
    "gate_activation": ("none", "softplus", "qwen", "sigmoid", "kda"),
    "beta_activation": ("none", "sigmoid"),
    "update_rule": tuple(RULES),
}
_DEFAULTS = {"gate_activation": "none", "beta_activation": "none", "update_rule": "gated_delta"}


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetSpec(NodeSpec):
    """A validated GatedDeltaNet.

    Attributes:
        attention: The LinearAttention that it is, between its gates; without inputs.
        computes_decay: Whether the decay is -exp(a_log) * Softplus(decay + dt_bias), or with `lower_bound`
            lower_bound * Sigmoid(exp(a_log) * (decay + dt_bias)).
        lower_bound: gate_lower_bound, where it is used.
        squashes_beta: Whether beta is Sigmoid(beta).
        normalizes: Whether queries and keys are divided by their lengths: qk_l2_norm.

    Examples:
        >>> [spec.computes_decay for spec in rl.inspect(model) if isinstance(spec, rl.GatedDeltaNetSpec)]
        []
    """

    attention: LinearAttentionSpec
    computes_decay: bool
    lower_bound: float | None
    squashes_beta: bool
    normalizes: bool

    operators = frozenset({(DOMAIN, OPERATOR)})
    data = "query"

    @classmethod
    def read(cls, reader: NodeReader) -> GatedDeltaNetSpec:
        own = schema()
        reader.check_attributes(own)
        return _parsed(reader.node, reader.connections(own))

    @classmethod
    def role(cls, node: onnx.NodeProto, slot: int) -> InputRole:
        if slot == 6:
            return InputRole(("N",), is_state=True)
        return InputRole(("N", "T"), is_data=True) if slot in (0, 1, 2, 4, 5) else InputRole()

    @property
    def least_square(self) -> float:
        """What qk_l2_norm adds to the square of a length, as measured in onnxruntime 1.32: no document tells it."""
        return 1e-12 if self.lower_bound is None else 1e-6

    @property
    def details(self) -> str:
        return f"{self.attention.details}, gates" if self.computes_decay else self.attention.details

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        if symbol in ("initial_state", "final_state"):
            return ("N", None, None, None)
        if symbol in ("query", "key", "value", "output"):
            return ("N", "T", None, None)
        return ("N", "T", *[None] * (self.rank(symbol) - 2)) if symbol in ("decay", "beta") else ()

    def rank(self, symbol: str) -> int:
        if symbol in ("a_log", "dt_bias"):
            return 1
        by_head = self.attention.decay_size == 1
        return 3 if symbol == "beta" or (symbol == "decay" and by_head) else 4

    def dtype_of(self, symbol: str) -> ir.DataType:
        return self.dtype if symbol in ("query", "key", "value", "output") else ir.DataType.FLOAT

    def computes_in(self, *, widen: bool) -> ir.DataType:
        return ir.DataType.FLOAT

    @property
    def steps_of_chunk(self) -> int:
        return self.attention.steps_of_chunk

    def why_not(self, form: str) -> str:
        return self.attention.why_not(form)

    def first_form(self) -> str:
        return self.attention.first_form()


def schema() -> onnx.defs.OpSchema:
    """Return the schema, which onnx does not have."""
    formal, option = onnx.defs.OpSchema.FormalParameter, onnx.defs.OpSchema.FormalParameterOption
    kinds, attribute = onnx.defs.OpSchema.AttrType, onnx.defs.OpSchema.Attribute
    numbers = ("state_update_capacity", "chunk_size", "qk_l2_norm")
    return onnx.defs.OpSchema(
        OPERATOR,
        DOMAIN,
        1,
        inputs=[formal("query", "T"), *(formal(n, t, param_option=option.Optional) for n, t in _INPUTS[1:])],
        outputs=[formal("output", "T"), *(formal(n, t, param_option=option.Optional) for n, t in _OUTPUTS[1:])],
        type_constraints=[
            ("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], ""),
            ("TS", ["tensor(float)"], ""),
            ("TI", ["tensor(int32)"], ""),
        ],
        attributes=[
            *(attribute(name, kinds.STRING, required=False) for name in _CHOICES),
            *(attribute(name, kinds.INT, required=False) for name in numbers),
            *(attribute(name, kinds.FLOAT, required=False) for name in ("scale", "gate_lower_bound")),
        ],
    )


def _parsed(node: ir.Node, connections: Connections) -> GatedDeltaNetSpec:
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    chosen = _DEFAULTS | {name: value for name, value in values.items() if name in _CHOICES}
    for name, allowed in _CHOICES.items():
        if chosen[name] not in allowed:
            raise connections.invalid(f"{name} is '{chosen[name]}'", f"{', '.join(allowed)} are allowed")
    _check_supported(connections, values)
    rule, given = RULES[chosen["update_rule"]], connections.inputs
    gate = chosen["gate_activation"]
    computes_decay = gate != "none"
    needed = {symbol for symbol, needs in rule.needs.items() if needs}
    needed |= {"a_log", "dt_bias"} if computes_decay and rule.decays else set()
    for symbol in ("decay", "beta", "a_log", "dt_bias"):
        if symbol in needed and symbol not in given:
            attribute = "gate_activation" if symbol in ("a_log", "dt_bias") else "update_rule"
            why = f"{attribute} {chosen[attribute]}"
            raise connections.invalid(f"input {symbol} is missing", f"{why} needs it")
        if symbol in ("a_log", "dt_bias") and symbol in given and not computes_decay:
            raise connections.invalid(f"input {symbol} is connected", "it needs another gate_activation than none")
    sizes, decay_rank = _sizes(connections)
    dtype = connections.dtype()
    key_size = sizes["head_size_qk"]
    attention = LinearAttentionSpec(
        node=connections.ref,
        version=1,
        dtype=ir.DataType.FLOAT,
        seq_length=sizes.get("length"),
        batch_size=sizes.get("batch_size"),
        inputs={},
        outputs={},
        constants={},
        update_rule=chosen["update_rule"],
        query_heads=sizes["heads"],
        key_heads=sizes["heads"],
        state_heads=sizes["states"],
        key_size=key_size,
        value_size=sizes["head_size_v"],
        scale=values.get("scale", 0.0) or 1 / math.sqrt(key_size),
        state_dtype=ir.DataType.FLOAT,
        decay_size=key_size if decay_rank == 4 else 1,
        beta_heads=sizes["states"],
    )
    return GatedDeltaNetSpec(
        **connections.fields(),
        dtype=dtype,
        seq_length=attention.seq_length,
        batch_size=attention.batch_size,
        attention=attention,
        computes_decay=computes_decay,
        lower_bound=values.get("gate_lower_bound", -5.0) if gate in ("sigmoid", "kda") else None,
        normalizes=bool(values.get("qk_l2_norm", 0)),
        squashes_beta=chosen["beta_activation"] == "sigmoid",
    )


def _check_supported(connections: Connections, values: dict[str, Any]) -> None:
    """Refuse what the document leaves open, or what has no equivalent here."""
    given = connections.inputs
    reasons = {
        "cu_seqlens is connected: lengths of packed sequences": "cu_seqlens" in given,
        "key or value is missing: packed queries, keys and values": not {"key", "value"} <= given.keys(),
        "state_update is asked for: transitions of the state": bool(values.get("state_update_capacity", 0))
        or "capture_count" in given
        or "state_update" in connections.outputs,
    }
    for reason, applies in reasons.items():
        if applies:
            hint = "export the model with LinearAttention, or with queries of [batch, length, heads, size]"
            raise UnsupportedError(f"{reason} cannot be lowered", hint=hint, node=connections.ref)
    if (shape := connections.dims("query")) is None or len(shape) != 4:
        told = "of unknown shape" if shape is None else f"of shape {list(shape)}"
        hint = "export it with queries of [batch, length, heads, size], or declare their shape"
        raise UnsupportedError(f"query is {told}: only rank 4 can be lowered", hint=hint, node=connections.ref)


def _sizes(connections: Connections) -> tuple[dict[str, int], int]:
    """Return the sizes on which the inputs agree, and the rank of decay."""
    decay = connections.dims("decay")
    rank = 3 if decay is None else len(decay)
    if "decay" in connections.inputs and (decay is None or rank not in (3, 4)):
        raise connections.invalid(
            f"decay has shape {None if decay is None else list(decay)}, not one of rank 3 or 4"
        )
    rows: SpecifiedShape = ("batch_size", "length")
    wanted: dict[str, SpecifiedShape] = {
        "query": (*rows, "heads", "head_size_qk"),
        "key": (*rows, "heads", "head_size_qk"),
        "value": (*rows, "states", "head_size_v"),
        "decay": (*rows, "states", "head_size_qk")[:rank],
        "beta": (*rows, "states"),
        "initial_state": ("batch_size", "states", "head_size_v", "head_size_qk"),
        **dict.fromkeys(("a_log", "dt_bias"), ("states",)),
    }
    sizes = connections.agreed(wanted)
    for name in ("heads", "head_size_qk", "states", "head_size_v"):
        if name not in sizes:
            hint = "declare the shapes of query and value (onnx.shape_inference)"
            raise UnsupportedError(f"{name} is not known", hint=hint, node=connections.ref)
        if not sizes[name]:
            raise connections.invalid(f"{name} is 0", "it must be positive")
    if sizes["states"] % sizes["heads"]:
        reason = f"value has {sizes['states']} heads, query {sizes['heads']}"
        raise connections.invalid(reason, "the first must be a multiple of the second")
    return sizes, rank
