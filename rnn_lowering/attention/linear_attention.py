"""The LinearAttention of ONNX (opset 27) and of com.microsoft, which allows more.

Specification: https://onnx.ai/onnx/operators/onnx__LinearAttention.html. That of com.microsoft is
docs/ContribOperators.md in onnxruntime, and contrib_ops/cpu/bert/linear_attention.cc where it says nothing.

A step t changes the state S [key, value] of a head, then reads it:

    linear       St = St-1 + kt vt^T
    gated        St = exp(gt) St-1 + kt vt^T
    delta        St = St-1 + kt (beta_t (vt - St-1^T kt))^T
    gated_delta  St = D + kt (beta_t (vt - D^T kt))^T    with D = exp(gt) St-1
    all          ot = scale St^T qt

g is the input decay: one number for the whole state, or one for each of its rows, the key dimensions. `chunks` has
the same equations for several steps at once. All is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from rnn_lowering.nodes.connections import HINT_OF_TYPE, Connections, SpecifiedShape
from rnn_lowering.nodes.spec import AxisName, InputRole, NodeReader, NodeSpec
from rnn_lowering.types import Dims

OPERATOR = "LinearAttention"


@dataclass(frozen=True)
class UpdateRule:
    """The change that a step makes to the state S [key, value].

    Attributes:
        decays: S is multiplied by exp(decay) first; the node has an input decay.
        corrects: The delta rule: S changes by beta key (value - key^T S). The node has an input beta.
    """

    decays: bool
    corrects: bool

    @property
    def needs(self) -> dict[str, bool]:
        """Whether it uses each of the optional inputs."""
        return {"decay": self.decays, "beta": self.corrects}


RULES = {
    "linear": UpdateRule(decays=False, corrects=False),
    "gated": UpdateRule(decays=True, corrects=False),
    "delta": UpdateRule(decays=False, corrects=True),
    "gated_delta": UpdateRule(decays=True, corrects=True),
}
"""By the attribute update_rule."""

DEFAULT_RULE = "gated_delta"

_STATES = ("past_state", "present_state")
_BOUNDS = {0: None, 1: (-0.15, 0.15), 2: None, 4: (-1.0, 0.0), 5: (0.0, 1.0)}
"""By slot of an input with a row for each token: the range of random numbers that keeps states from growing."""
_SHORT = 16
"""More steps with a value size of 1 are faster in a loop."""

_HINT_OF_SHAPE = "fix the sizes of the inputs (--set-dim, --set-shape), or declare its shape in the model"


@dataclass(frozen=True, kw_only=True, repr=False)
class LinearAttentionSpec(NodeSpec):
    """A validated LinearAttention node.

    Attributes:
        update_rule: The name of the rule.
        query_heads: q_num_heads.
        key_heads: The number of heads of key; other than `state_heads` in com.microsoft only.
        state_heads: kv_num_heads, those of value and of the state.
        key_size, value_size: d_k and d_v: a state is [key_size, value_size].
        scale: The factor of the query.
        state_dtype: Element type of past_state and present_state.
        beta_heads: 1 for one beta of all heads; None if unknown.
        decay_size: 1 for a decay of each head, key_size for one of each key dimension; None where its shape is not
            known, and for rules without decay.

    Examples:
        >>> from rnn_lowering.attention.linear_attention import LinearAttentionSpec
        >>> [spec.update_rule for spec in rl.inspect(model) if isinstance(spec, LinearAttentionSpec)]
        []
    """

    roles: ClassVar = {
        **{slot: InputRole(("N", "T"), is_data=True, bounds=bounds) for slot, bounds in _BOUNDS.items()},
        3: InputRole(("N",), is_state=True),
    }
    data: ClassVar = "query"
    in_float32: ClassVar = True  # so the operator specification computes every step

    update_rule: str
    query_heads: int
    key_heads: int
    state_heads: int
    key_size: int
    value_size: int
    scale: float
    state_dtype: ir.DataType
    decay_size: int | None
    beta_heads: int | None

    @classmethod
    def read(cls, reader: NodeReader) -> LinearAttentionSpec:
        reader.check_outputs()
        rule, (query_heads, state_heads) = _rule(reader), _heads(reader)
        if window := reader.attribute("state_window", 0):
            reason = f"state_window is {window}: the states after several tokens cannot be kept"
            raise reader.unsupported(reason, "export the model with state_window 0")
        dtype, state_dtype = _types(reader.connections)
        sizes = _Sizes(reader, query_heads, state_heads, RULES[rule])
        return cls(
            **reader.connections.fields(),
            dtype=dtype,
            seq_length=sizes.found.get("sequence length"),
            batch_size=sizes.found.get("batch size"),
            update_rule=rule,
            query_heads=query_heads,
            key_heads=sizes.key_heads,
            state_heads=state_heads,
            key_size=sizes.key_size,
            value_size=sizes.value_size,
            scale=reader.attribute("scale", 0.0) or 1 / math.sqrt(sizes.key_size),
            state_dtype=state_dtype,
            decay_size=sizes.decay_size,
            beta_heads=sizes.width("beta"),
        )

    @classmethod
    def fits(cls, node: ir.Node) -> bool:
        """Return whether it says how many heads there are, without which it is not this operator."""
        return {"q_num_heads", "kv_num_heads"} <= node.attributes.keys() and len(node.outputs) == 2

    @property
    def rule(self) -> UpdateRule:
        return RULES[self.update_rule]

    @property
    def uses(self) -> frozenset[str]:
        """The inputs that it reads: com.microsoft ignores those that its rule does not use."""
        ignored = {symbol for symbol, needed in self.rule.needs.items() if not needed}
        return frozenset(self.inputs.keys() - ignored)

    @property
    def output_heads(self) -> int:
        """Heads of the output: as many as the query has, or the state if it has more."""
        return max(self.query_heads, self.state_heads)

    @property
    def details(self) -> str:
        sizes = f"{self.key_size}x{self.value_size}"
        return f"{self.update_rule}, {self.state_heads} states of {sizes}"

    def axes(self, symbol: str) -> tuple[AxisName, ...]:
        return ("N", None, None, None) if symbol in _STATES else ("N", "T", None)

    def dtype_of(self, symbol: str) -> ir.DataType:
        return self.state_dtype if symbol in _STATES else self.dtype

    @property
    def steps_of_chunk(self) -> int:
        return 32 if self.decay_size == 1 or not self.rule.decays else 16

    def why_not(self, form: str) -> str:
        return ""

    def preferred_form(self) -> str:
        """Return the chunked form; with a value size of 1, products of chunks are slower than steps."""
        if self.value_size > 1:
            return "chunked"
        return "unroll" if self.seq_length is not None and self.seq_length <= _SHORT else ""


def _rule(reader: NodeReader) -> str:
    """Return update_rule; the inputs that it needs, and in ONNX's own operator no others, must be connected."""
    name, given = str(reader.choice("update_rule", DEFAULT_RULE, RULES)), reader.connections.inputs
    for symbol, needed in RULES[name].needs.items():
        if needed and symbol not in given:
            raise reader.invalid(f"input {symbol} is missing", f"update_rule {name} needs it")
        if not needed and symbol in given and reader.is_standard:
            raise reader.invalid(f"input {symbol} is connected", f"update_rule {name} does not allow it")
    return name


def _heads(reader: NodeReader) -> tuple[int, int]:
    """Return q_num_heads and kv_num_heads."""
    heads = {name: int(reader.attribute(name, 0)) for name in ("q_num_heads", "kv_num_heads")}
    for name, count in heads.items():
        if count <= 0:
            raise reader.invalid(f"{name} is {count}", "it must be positive")
    queries, states = heads.values()
    if queries % states and (reader.is_standard or states % queries):
        other = "" if reader.is_standard else ", or the other way round"
        reason = f"q_num_heads is {queries}, kv_num_heads {states}"
        raise reader.invalid(reason, f"the first must be a multiple of the second{other}")
    return queries, states


def _types(connections: Connections) -> tuple[ir.DataType, ir.DataType]:
    """Return the element types T and S."""
    types = connections.types()
    state = types.pop("past_state", None)
    dtype = connections.common_type(types)
    if "past_state" not in connections.inputs:
        return dtype, dtype
    if state is None:
        raise connections.invalid("the element type of past_state is not known", HINT_OF_TYPE)
    connections.check_type(state, "S")
    return dtype, state


class _Sizes:
    """The sizes of a node, on which all its inputs must agree.

    Attributes:
        found: "sequence length" and "batch size", if known.
        key_size, value_size, key_heads, decay_size: As in `LinearAttentionSpec`.
    """

    def __init__(self, reader: NodeReader, query_heads: int, state_heads: int, rule: UpdateRule) -> None:
        self.reader = reader
        self.query_heads, self.state_heads = query_heads, state_heads
        self.shapes = dict(self._shapes(rule))
        of_key = {"query": query_heads} | ({"key": state_heads} if reader.is_standard else {})
        self.key_size = self._one_size("key", 2, of_key)
        self.value_size = self._one_size("value", 3, {"value": state_heads})
        self.key_heads = state_heads if reader.is_standard else self._key_heads()
        self.decay_size = self._decay_size()
        wanted = self._wanted()
        self.found = reader.connections.agreed({s: wanted[s] for s in wanted if s in self.shapes})

    def _shapes(self, rule: UpdateRule) -> Iterator[tuple[str, Dims]]:
        """Yield the shapes that are known of the inputs that the rule uses."""
        connections = self.reader.connections
        for symbol in connections.inputs:
            shape = connections.dims(symbol)
            if shape is None or not rule.needs.get(symbol, True):
                continue
            rank = 4 if symbol in _STATES else 3
            if len(shape) != rank:
                raise self.reader.invalid(f"{symbol} has shape {list(shape)}, not one of rank {rank}")
            yield symbol, shape

    def width(self, symbol: str) -> int | None:
        shape = self.shapes.get(symbol)
        return None if shape is None else shape[2]

    def _one_size(self, noun: str, axis: int, heads: Mapping[str, int]) -> int:
        """Return d_k or d_v, from the width of an input with this many heads or from an axis of past_state."""
        for symbol, count in heads.items():
            width = self.width(symbol)
            if width is None:
                continue
            if width <= 0 or width % count:
                raise self.reader.invalid(f"{symbol} is {width} wide, not a multiple of its {count} heads")
            return width // count
        state = self.shapes.get("past_state")
        size = None if state is None else state[axis]
        if size is None:
            raise self.reader.unknown(f"the width of {next(iter(heads))}", _HINT_OF_SHAPE)
        if size <= 0:
            raise self.reader.invalid(f"past_state has {noun}s of size {size}", "it must be positive")
        return size

    def _key_heads(self) -> int:
        width, d, states = self.width("key"), self.key_size, self.state_heads
        if width is None:
            raise self.reader.unknown("the width of key", _HINT_OF_SHAPE)
        if width <= 0 or width % d or states % (width // d):
            raise self.reader.invalid(
                f"key is {width} wide, not a number of heads of size {d} that divides kv_num_heads ({states})"
            )
        return width // d

    def _decay_size(self) -> int | None:
        width, states, d = self.width("decay"), self.state_heads, self.key_size
        if width is None:
            return None
        if width not in (states, states * d):
            raise self.reader.invalid(
                f"decay is {width} wide, not {states} (of each head) or {states * d} (of each key dimension)"
            )
        return width // states

    def _wanted(self) -> dict[str, SpecifiedShape]:
        """Return the shapes that inputs must have."""
        by_step = ("batch size", "sequence length")
        return {
            "query": (*by_step, self.query_heads * self.key_size),
            "key": (*by_step, self.key_heads * self.key_size),
            "value": (*by_step, self.state_heads * self.value_size),
            "decay": (*by_step, self.width("decay") or "width"),
            "beta": (*by_step, 1 if self.width("beta") == 1 else self.state_heads),
            "past_state": ("batch size", self.state_heads, self.key_size, self.value_size),
        }
