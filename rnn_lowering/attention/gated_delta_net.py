"""GatedDeltaNet of com.microsoft, and the operators around its LinearAttention: LinearAttentionGate, GatedRMSNorm.

GatedDeltaNet is LinearAttention with gates of its own and a transposed state in float32. Nodes with a list of
lengths, with packed tokens or with updates of the state as an output are refused. The other two have no steps, but
only onnxruntime has them. Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from rnn_lowering.attention.linear_attention import DEFAULT_RULE, RULES, LinearAttentionSpec
from rnn_lowering.attention.linear_equivalent import lower_linear_attention, rows_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.connections import SpecifiedShape
from rnn_lowering.nodes.spec import AxisName, InputRole, NodeReader, NodeSpec
from rnn_lowering.recurrence.forms import Repeat
from rnn_lowering.recurrence.weights import node_input
from rnn_lowering.types import Dims

_GATES = ("none", "softplus", "qwen", "sigmoid", "kda")


@dataclass(frozen=True, kw_only=True, repr=False)
class GatedDeltaNetSpec(NodeSpec):
    """A validated GatedDeltaNet.

    Attributes:
        attention: The LinearAttention that it is, between its gates; without inputs.
        computes_decay: Whether the decay is -exp(a_log) * Softplus(decay + dt_bias), or with `lower_bound`
            lower_bound * Sigmoid(exp(a_log) * (decay + dt_bias)).
        lower_bound: gate_lower_bound, where it is used.
        has_key_decays: Whether there is a decay for each key dimension: of rank 4, also for a single dimension.
        squashes_beta: Whether beta is Sigmoid(beta).
        normalizes: Whether queries and keys are divided by their lengths: qk_l2_norm.

    Examples:
        >>> from rnn_lowering.attention.gated_delta_net import GatedDeltaNetSpec
        >>> [spec.computes_decay for spec in rl.inspect(model) if isinstance(spec, GatedDeltaNetSpec)]
        []
    """

    attention: LinearAttentionSpec
    computes_decay: bool
    lower_bound: float | None
    has_key_decays: bool
    squashes_beta: bool
    normalizes: bool

    roles: ClassVar = {
        **dict.fromkeys((0, 1, 2, 4, 5), InputRole(("N", "T"), is_data=True)),
        6: InputRole(("N",), is_state=True),
    }
    data = "query"
    in_float32 = True

    @classmethod
    def read(cls, reader: NodeReader) -> GatedDeltaNetSpec:
        rule = reader.choice("update_rule", DEFAULT_RULE, RULES)
        gate = reader.choice("gate_activation", "none", _GATES)
        beta = reader.choice("beta_activation", "none", ("none", "sigmoid"))
        connections = reader.connections
        _check_supported(reader)
        _check_gates(reader, rule, gate)
        sizes = _sizes(reader)
        attention = _attention(reader, rule, sizes)
        return cls(
            **connections.fields(),
            dtype=connections.dtype(),
            seq_length=attention.seq_length,
            batch_size=attention.batch_size,
            attention=attention,
            computes_decay=gate != "none",
            lower_bound=reader.attribute("gate_lower_bound", -5.0) if gate in ("sigmoid", "kda") else None,
            has_key_decays=sizes["rank of decay"] == 4,
            normalizes=bool(reader.attribute("qk_l2_norm", 0)),
            squashes_beta=beta == "sigmoid",
        )

    @property
    def least_square(self) -> float:
        """Epsilon that qk_l2_norm adds to a squared length; not documented, measured in onnxruntime 1.32."""
        return 1e-12 if self.lower_bound is None else 1e-6

    @property
    def details(self) -> str:
        return f"{self.attention.details}, gates" if self.computes_decay else self.attention.details

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        if symbol in ("a_log", "dt_bias"):
            return (None,)
        if symbol in ("initial_state", "final_state"):
            return ("N", None, None, None)
        by_head = symbol == "beta" or (symbol == "decay" and not self.has_key_decays)
        return ("N", "T", None) if by_head else ("N", "T", None, None)

    def dtype_of(self, symbol: str) -> ir.DataType:
        return self.dtype if symbol in ("query", "key", "value", "output") else ir.DataType.FLOAT

    @property
    def steps_of_chunk(self) -> int:
        return self.attention.steps_of_chunk

    def why_not(self, form: str) -> str:
        return self.attention.why_not(form)

    def preferred_form(self) -> str:
        return self.attention.preferred_form()


def _check_supported(reader: NodeReader) -> None:
    """Refuse what the document leaves open, or what has no equivalent here."""
    given = reader.connections.inputs
    reasons = {
        "cu_seqlens is connected: lengths of packed sequences": "cu_seqlens" in given,
        "key or value is missing: packed queries, keys and values": not {"key", "value"} <= given.keys(),
        "state_update is asked for: transitions of the state": bool(reader.attribute("state_update_capacity", 0))
        or "capture_count" in given
        or "state_update" in reader.connections.outputs,
    }
    for reason, applies in reasons.items():
        if applies:
            hint = "export the model with LinearAttention, or with queries of [batch, length, heads, size]"
            raise reader.unsupported(f"{reason} cannot be lowered", hint)
    if (shape := reader.connections.dims("query")) is None or len(shape) != 4:
        query = "of unknown shape" if shape is None else f"of shape {list(shape)}"
        hint = "export it with queries of [batch, length, heads, size], or declare their shape"
        raise reader.unsupported(f"query is {query}: only rank 4 can be lowered", hint)


def _check_gates(reader: NodeReader, rule: str, gate: str) -> None:
    """Check that the inputs are connected which the rule and the gate of the decay need."""
    given, with_gate = reader.connections.inputs, gate != "none"
    for symbol, needed in RULES[rule].needs.items():
        if needed and symbol not in given:
            raise reader.invalid(f"input {symbol} is missing", f"update_rule {rule} needs it")
    for symbol in ("a_log", "dt_bias"):
        if with_gate and RULES[rule].decays and symbol not in given:
            raise reader.invalid(f"input {symbol} is missing", f"gate_activation {gate} needs it")
        if not with_gate and symbol in given:
            raise reader.invalid(f"input {symbol} is connected", "it needs another gate_activation than none")


def _sizes(reader: NodeReader) -> dict[str, int]:
    """Return the sizes on which the inputs agree, and the rank of decay."""
    decay = reader.connections.dims("decay")
    rank = 3 if decay is None else len(decay)
    if "decay" in reader.connections.inputs and (decay is None or rank not in (3, 4)):
        raise reader.invalid(f"decay has shape {None if decay is None else list(decay)}, not one of rank 3 or 4")
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
    sizes = reader.connections.agreed(wanted)
    for name in ("heads", "head_size_qk", "states", "head_size_v"):
        if name not in sizes:
            raise reader.unknown(name, "declare the shapes of query and value (onnx.shape_inference)")
        if not sizes[name]:
            raise reader.invalid(f"{name} is 0", "it must be positive")
    if sizes["states"] % sizes["heads"]:
        reason = f"value has {sizes['states']} heads, query {sizes['heads']}"
        raise reader.invalid(reason, "the first must be a multiple of the second")
    return sizes | {"rank of decay": rank}


def _attention(reader: NodeReader, rule: str, sizes: dict[str, int]) -> LinearAttentionSpec:
    """Return the LinearAttention between the gates."""
    key_size = sizes["head_size_qk"]
    return LinearAttentionSpec(
        node=reader.ref,
        version=1,
        dtype=ir.DataType.FLOAT,
        seq_length=sizes.get("length"),
        batch_size=sizes.get("batch_size"),
        inputs={},
        outputs={},
        constants={},
        update_rule=rule,
        query_heads=sizes["heads"],
        key_heads=sizes["heads"],
        state_heads=sizes["states"],
        key_size=key_size,
        value_size=sizes["head_size_v"],
        scale=reader.attribute("scale", 0.0) or 1 / math.sqrt(key_size),
        state_dtype=ir.DataType.FLOAT,
        decay_size=key_size if sizes["rank of decay"] == 4 else 1,
        beta_heads=sizes["states"],
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionGateSpec(NodeSpec):
    """A validated LinearAttentionGate: decay = decay_scale * Softplus(a + dt_bias), beta = Sigmoid(b).

    Attributes:
        heads: The number of heads; None if unknown.

    Examples:
        >>> from rnn_lowering.attention.gated_delta_net import AttentionGateSpec
        >>> [spec.heads for spec in rl.inspect(model) if isinstance(spec, AttentionGateSpec)]
        []
    """

    heads: int | None

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


@dataclass(frozen=True, kw_only=True, repr=False)
class GatedNormSpec(NodeSpec):
    """A validated GatedRMSNorm: Y = X / sqrt(mean(X^2) + epsilon) * scale * activation(gate).

    Attributes:
        shape: That of X, [..., groups * C]; None for unknown sizes.
        group: C, the number of elements that are normalized together.
        epsilon: Is added to the mean of squares.
        silu: Whether the activation is SiLU, or else Sigmoid.

    Examples:
        >>> from rnn_lowering.attention.gated_delta_net import GatedNormSpec
        >>> [spec.epsilon for spec in rl.inspect(model) if isinstance(spec, GatedNormSpec)]
        []
    """

    shape: Dims
    group: int
    epsilon: float
    silu: bool

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


# The equivalents


def lower_attention_gate(op: Ops, spec: AttentionGateSpec, _: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a LinearAttentionGate; return its outputs by their names in the specification."""
    rows, heads = (*rows_of(spec), spec.heads), (spec.heads,)
    tensors = {}
    if "decay" in spec.outputs:
        total = node_input(op, spec, "a", rows) + node_input(op, spec, "dt_bias", heads)
        tensors["decay"] = op.unary("Softplus", total) * node_input(op, spec, "decay_scale", heads)
    if "beta" in spec.outputs:
        tensors["beta"] = op.unary("Sigmoid", node_input(op, spec, "b", rows))
    return {symbol: op.cast(tensor, spec.dtype) for symbol, tensor in tensors.items()}


def lower_gated_norm(op: Ops, spec: GatedNormSpec, _: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a GatedRMSNorm; return its output by its name in the specification."""
    C, width = spec.group, spec.shape[-1]
    x, gate = (node_input(op, spec, symbol, spec.shape) for symbol in ("X", "gate"))
    scale = node_input(op, spec, "scale", (C,))
    grouped = width != C
    if grouped:
        groups = None if width is None else width // C
        # OpenCV reads a 0 behind another Reshape as the size before both.
        kept = [op.constant([size or 0]) for size in spec.shape[:-1]]
        count = op.constant([-1 if groups is None else groups])
        x = op.reshape(x, (*spec.shape[:-1], groups, C), [*kept, count, op.constant([C])])
    mean = op.sum(x * x, x.rank - 1) * op.constant(1 / C)
    y = x / op.unary("Sqrt", mean + op.constant(spec.epsilon)) * scale
    if grouped:
        y = op.reshape(y, spec.shape, [*kept, op.constant([-1 if width is None else width])])
    opened = op.unary("Sigmoid", gate)
    y = y * (gate * opened if spec.silu else opened)
    return {"Y": op.cast(y, spec.dtype)} if "Y" in spec.outputs else {}


def lower_gated_delta_net(op: Ops, spec: GatedDeltaNetSpec, repeat: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names in the operator specification."""
    inner = spec.attention
    inputs = {symbol: op.value(tensor) for symbol, tensor in _attention_inputs(op, spec).items()}
    names = {"output": "output", "final_state": "present_state"}
    wanted = {names[symbol]: value for symbol, value in spec.outputs.items()}
    results = lower_linear_attention(op, replace(inner, inputs=inputs, outputs=wanted), repeat)
    outputs = {}
    if "output" in results:
        outputs["output"] = op.reshape(results["output"], (*rows_of(spec), inner.output_heads, inner.value_size))
    if "present_state" in results:
        outputs["final_state"] = op.transpose(results["present_state"], [0, 1, 3, 2])
    return {symbol: op.cast(tensor, spec.dtype_of(symbol)) for symbol, tensor in outputs.items()}


def _attention_inputs(op: Ops, spec: GatedDeltaNetSpec) -> dict[str, Tensor]:
    """Return the inputs of the LinearAttention, by their names there."""
    inner = spec.attention
    key, value = (inner.query_heads, inner.key_size), (inner.state_heads, inner.value_size)
    tensors = {
        "query": _packed(op, spec, "query", key),
        "key": _packed(op, spec, "key", key),
        "value": _packed(op, spec, "value", value),
    }
    if "initial_state" in spec.inputs:
        shape = (spec.batch_size, inner.state_heads, inner.value_size, inner.key_size)
        tensors["past_state"] = op.transpose(node_input(op, spec, "initial_state", shape), [0, 1, 3, 2])
    if inner.rule.decays:
        tensors["decay"] = _decay(op, spec)
    if inner.rule.corrects:
        beta = node_input(op, spec, "beta", (*rows_of(spec), inner.state_heads))
        tensors["beta"] = op.unary("Sigmoid", beta) if spec.squashes_beta else beta
    return tensors


def _decay(op: Ops, spec: GatedDeltaNetSpec) -> Tensor:
    inner = spec.attention
    heads: Dims = (inner.state_heads,)
    each = (*heads, inner.decay_size) if spec.has_key_decays else heads
    decay = node_input(op, spec, "decay", (*rows_of(spec), *each))
    if spec.computes_decay:
        rate, bias = (node_input(op, spec, symbol, heads) for symbol in ("a_log", "dt_bias"))
        if len(each) == 2:
            rate, bias = (op.unsqueeze(x, [1]) for x in (rate, bias))
        rate = op.unary("Exp", rate)
        if spec.lower_bound is None:
            decay = op.unary("Softplus", decay + bias) * op.neg(rate)
        else:
            decay = op.unary("Sigmoid", (decay + bias) * rate) * op.constant(spec.lower_bound)
    return _without_heads(op, spec, decay) if len(each) == 2 else decay


def _packed(op: Ops, spec: GatedDeltaNetSpec, symbol: str, each: tuple[int, int]) -> Tensor:
    """Return an input [batch, length, heads, size] as [batch, length, heads * size]."""
    x = node_input(op, spec, symbol, (*rows_of(spec), *each))
    if spec.normalizes and symbol != "value":
        x = x / op.unary("Sqrt", op.sum(x * x, 3) + op.constant(spec.least_square))
    return _without_heads(op, spec, x)


def _without_heads(op: Ops, spec: GatedDeltaNetSpec, x: Tensor) -> Tensor:
    """Return [batch, length, heads, size] as [batch, length, heads * size]."""
    return op.reshape(x, (*rows_of(spec), (x.shape[2] or 1) * (x.shape[3] or 1)))
