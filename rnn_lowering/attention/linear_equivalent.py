"""The equivalent of a LinearAttention, with the equations of its page (`linear_attention`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rnn_lowering.attention.linear_attention import LinearAttentionSpec
from rnn_lowering.emit.composites import zeros
from rnn_lowering.emit.constants import zeros_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.recurrence.forms import Recurrence, Repeat, Tensors
from rnn_lowering.recurrence.weights import node_input
from rnn_lowering.types import Dims


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
        tensors = _without_steps(op, spec, state)
    else:
        parts = _linear_parts(op, spec, op.unsqueeze(state, [0]))
        tensors = _one_step(op, spec, parts) if spec.seq_length == 1 else _all_steps(op, spec, parts, repeat)
    return {symbol: op.cast(tensors[symbol], spec.dtype_of(symbol)) for symbol in spec.outputs}


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
    if state.is_zero and op.dialect.states_apart and None not in state.shape:
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
    results = []
    for group in _groups_of_heads(op, parts) if op.dialect.by_length else [parts]:
        r = linear_attention(op, group, single=True)
        (state,), (output,) = r.step(r.init, r.xs)
        results.append((state, output))
    state, output = (op.concat(list(each), axis=1) for each in zip(*results, strict=True))
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
