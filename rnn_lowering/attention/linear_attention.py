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
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from rnn_lowering.emit.composites import zeros
from rnn_lowering.emit.constants import zeros_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.nodes.connections import HINT_OF_TYPE, Connections, SpecifiedShape
from rnn_lowering.nodes.kinds import AxisName, InputRole, NodeReader, NodeSpec
from rnn_lowering.recurrence.forms import Recurrence, Repeat, Tensors
from rnn_lowering.recurrence.weights import node_input
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


@dataclass(frozen=True, kw_only=True)
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
        found = None if state is None else state[axis]
        if found is None:
            raise self.reader.unknown(f"the width of {next(iter(heads))}", _HINT_OF_SHAPE)
        if found <= 0:
            raise self.reader.invalid(f"past_state has {noun}s of size {found}", "it must be positive")
        return found

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


# The equivalent


@dataclass(frozen=True)
class LinearParts:
    """The operands of the equations: k, v and the rest of all steps, each [batch, seq, heads, ...].

    Attributes:
        state: S before the first step, [1, batch, heads, key, value].
        query: q, [..., queries, key]: several queries read each state.
        key, value: k [..., key] and v [..., value].
        steps_of_chunk: Maximum steps of a chunk.
        log_decay: g, [..., 1] or [..., key]; None for rules without decay.
        beta: [..., 1], where one head may stand for all; None for rules without the delta.
        scale: The factor of queries.
    """

    state: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    steps_of_chunk: int
    log_decay: Tensor | None = None
    beta: Tensor | None = None
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LinearRecurrence(Recurrence):
    """A recurrence whose step is linear in its state: `chunks.chunked` can join its steps.

    Attributes:
        parts: The operands of its equations. A form that uses them returns the state as `LinearParts` has it.
    """

    parts: LinearParts


def linear_attention(op: Ops, parts: LinearParts, *, single: bool = False) -> LinearRecurrence:
    """Return the recurrence of one LinearAttention; the rule follows from the parts that are there.

    Products with a value size of 1 are slow as MatMul: then rows are multiplied and added up, and the state is
    [..., 1, key].

    Args:
        op: The emitter.
        parts: The operands.
        single: There is one step: its inputs and the state have no axis of steps.
    """
    as_row = parts.value.shape[-1] == 1
    xs = _rule_rows(op, parts, as_row=as_row, single=single)

    def read(S: Tensor, x: Tensor) -> Tensor:
        return op.sum(x * S, x.rank - 1) if as_row else x @ S

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        (S,), x = states, dict(zip(xs, rows, strict=True))
        if "exp(g)" in x:
            S = S * x["exp(g)"]
        u = x["beta v"] - read(S, x["beta k"]) if "beta k" in x else x["beta v"]
        S = S + (x["k"] * u if as_row else x["k"] @ u)
        return [S], [read(S, x["scale q"])]

    init = _as_row(op, parts.state) if as_row else parts.state
    init = op.without_first_axis(init) if single else init
    return LinearRecurrence([init], list(xs.values()), step, keeps_states=True, parts=parts)


def _rule_rows(op: Ops, parts: LinearParts, *, as_row: bool, single: bool) -> dict[str, Tensor]:
    """Return the inputs of the steps: all that does not depend on the state is computed before them."""

    def at(x: Tensor, *shape: int | None) -> Tensor:
        """Return [batch, seq, heads, ...] as [seq, batch, heads, *shape], or [batch, heads, *shape]."""
        batch, seq, heads = x.shape[:3]
        if single:
            return op.reshape(x, (batch, heads, *shape)) if heads is not None else op.squeeze(x, [1])
        whole = x if x.shape[3:] == shape else op.reshape(x, (batch, seq, heads, *shape))
        return op.transpose(whole, [1, 0, *range(2, whole.rank)])

    def column(x: Tensor) -> Tensor:
        return at(x, 1, x.shape[-1]) if as_row else at(x, x.shape[-1], 1)

    def row(x: Tensor) -> Tensor:
        return at(x, 1, x.shape[-1])

    q, k, v, g, beta = parts.query, parts.key, parts.value, parts.log_decay, parts.beta
    q = q if parts.scale == 1 else q * op.constant(parts.scale)
    rows = {"scale q": at(q, *q.shape[3:]), "k": column(k), "beta v": row(v if beta is None else beta * v)}
    if beta is not None:
        rows["beta k"] = row(beta * k)
    if g is not None:
        rows["exp(g)"] = op.unary("Exp", column(g))
    return rows


def _as_row(op: Ops, state: Tensor) -> Tensor:
    """Return a state [1, batch, heads, key, 1] as [1, batch, heads, 1, key]."""
    *outer, size, one = state.shape
    return op.reshape(state, (*outer, one, size))


_LARGE, _IN_CACHE = 1 << 19, 1 << 16
"""With more numbers than `_LARGE` in all states, onnxruntime is faster on groups of heads with `_IN_CACHE` each."""


def lower_linear_attention(op: Ops, spec: LinearAttentionSpec, repeat: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names in the operator specification."""
    sizes = (spec.batch_size, spec.state_heads, spec.key_size, spec.value_size)
    state = node_input(op, spec, "past_state", sizes)
    if spec.seq_length == 0 or spec.batch_size == 0:
        found = _without_steps(op, spec, state)
    else:
        parts = _linear_parts(op, spec, op.unsqueeze(state, [0]))
        found = _one_step(op, spec, parts) if spec.seq_length == 1 else _all_steps(op, spec, parts, repeat)
    return {symbol: op.cast(found[symbol], spec.dtype_of(symbol)) for symbol in spec.outputs}


def _without_steps(op: Ops, spec: LinearAttentionSpec, state: Tensor) -> dict[str, Tensor]:
    """Return the outputs for a sequence length or batch size of 0: an empty output; the state is passed on."""
    query = node_input(op, spec, "query", (spec.batch_size, spec.seq_length, None))
    batch, seq = (op.dim(query, axis) for axis in (0, 1))
    width = spec.output_heads * spec.value_size
    if state.is_zero:
        state = zeros(op, [batch, *(op.constant([n]) for n in state.shape[1:] if n is not None)])
    return {"output": zeros(op, [batch, seq, op.constant([width])]), "present_state": state}


def _linear_parts(op: Ops, spec: LinearAttentionSpec, state: Tensor) -> LinearParts:
    """Return the inputs that the rule uses, split into heads."""
    states, d = spec.state_heads, spec.key_size
    if state.is_zero and op.dialect.zeros_apart and None not in state.shape:
        state = op.from_constant(zeros_of(op.dtype, static(state.shape)))
    readers = min(spec.query_heads, states)  # fewer query heads than states: each reads several
    query = _by_heads(op, spec, "query", (readers, spec.query_heads // readers, d))
    decay = None
    if spec.rule.decays:
        decay = _by_heads(op, spec, "decay", (states, spec.decay_size))
    return LinearParts(
        state=state,
        query=_repeated(op, query, states),
        key=_repeated(op, _by_heads(op, spec, "key", (spec.key_heads, d)), states),
        value=_by_heads(op, spec, "value", (states, spec.value_size)),
        log_decay=decay,
        beta=_beta(op, spec) if spec.rule.corrects else None,
        scale=spec.scale,
        steps_of_chunk=spec.steps_of_chunk,
    )


def _beta(op: Ops, spec: LinearAttentionSpec) -> Tensor:
    heads = spec.beta_heads
    if heads is None:
        return op.unsqueeze(node_input(op, spec, "beta", (*rows_of(spec), None)), [3])
    return _by_heads(op, spec, "beta", (heads, 1))


def rows_of(spec: NodeSpec) -> tuple[int | None, int | None]:
    """Return the batch size and the length."""
    return spec.batch_size, spec.seq_length


def _by_heads(op: Ops, spec: LinearAttentionSpec, symbol: str, shape: Dims) -> Tensor:
    """Return an input [batch, seq, width] as [batch, seq, *shape], of which the last size may not be known."""
    heads, *_, size = shape
    width = None if size is None or heads is None else heads
    given = node_input(op, spec, symbol, (*rows_of(spec), width))
    if size is not None:
        return op.reshape(given, (*rows_of(spec), *shape))
    each = op.dim(given, 2) / op.constant([heads or 1])
    return op.reshape(given, (*rows_of(spec), *shape), [op.constant([n]) for n in (0, 0, heads or 1)] + [each])


def _repeated(op: Ops, x: Tensor, heads: int) -> Tensor:
    """Repeat each head of [batch, seq, fewer heads, ...], such that there are `heads`: interleaved, not tiled."""
    fewer = x.shape[2] or 1
    if fewer == heads:
        return x
    zeros = op.from_constant(zeros_of(op.dtype, (heads // fewer, *[1] * (x.rank - 3))))
    copies = op.unsqueeze(x, [3]) + zeros  # one node, however many heads a model asks for
    return op.reshape(copies, (*x.shape[:2], heads, *x.shape[3:]))


def _one_step(op: Ops, spec: LinearAttentionSpec, parts: LinearParts) -> dict[str, Tensor]:
    """Return the outputs after one step, emitted without an axis of steps: [batch, heads, ...]."""
    found = []
    for group in _groups_of_heads(op, parts) if op.dialect.by_length else [parts]:
        r = linear_attention(op, group, single=True)
        (state,), (output,) = r.step(r.init, r.xs)
        found.append((state, output))
    state, output = (op.concat(list(each), axis=1) for each in zip(*found, strict=True))
    width = spec.output_heads * spec.value_size
    return {
        "output": op.reshape(output, (spec.batch_size, 1, width)),
        "present_state": _final(op, spec, state),
    }


def _groups_of_heads(op: Ops, parts: LinearParts) -> list[LinearParts]:
    """Return the parts of one step; of large states, in groups of heads whose states fit into a cache."""
    batch, _, heads, *sizes = parts.value.shape
    numbers = (batch or 1) * (heads or 1) * (sizes[0] or 1) * (parts.key.shape[-1] or 1)
    count = numbers // _IN_CACHE
    if numbers < _LARGE or heads is None or heads % count or parts.state.is_zero:
        return [parts]
    each = [heads // count] * count

    def split(x: Tensor | None) -> list[Tensor] | list[None]:
        if x is None:
            return [None] * count
        return [x] * count if x.shape[2] == 1 else op.split(x, each, axis=2)

    fields = ("state", "query", "key", "value", "log_decay", "beta")
    columns = [split(getattr(parts, name)) for name in fields]
    return [replace(parts, **dict(zip(fields, row, strict=True))) for row in zip(*columns, strict=True)]


def _all_steps(op: Ops, spec: LinearAttentionSpec, parts: LinearParts, repeat: Repeat) -> dict[str, Tensor]:
    """Return the outputs after all steps."""
    (final,), (ys,) = repeat(op, linear_attention(op, parts))
    width = spec.output_heads * spec.value_size
    if spec.batch_size == 1:
        output = op.reshape(ys, (*rows_of(spec), width), [op.constant([n]) for n in (1, -1, width)])
    else:
        rows = op.transpose(op.squeeze(ys, [1]), [1, 0, 2, 3, 4])  # [batch, seq, heads, queries, value]
        output = op.reshape(rows, (*rows_of(spec), width))
    return {
        "output": output,
        "present_state": _final(op, spec, op.without_first_axis(final)),
    }


def _final(op: Ops, spec: LinearAttentionSpec, state: Tensor) -> Tensor:
    """Return a state as the node outputs it; with a value size of 1 it may be [batch, heads, 1, key] before."""
    shape = (spec.batch_size, spec.state_heads, spec.key_size, spec.value_size)
    return state if spec.value_size > 1 else op.reshape(state, shape)
