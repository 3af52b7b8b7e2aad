"""The recurrence of LinearAttention, and the equivalent of a whole node.

The equations are those of `recurrence.LinearParts`; the rule decides which terms there are. What does not depend on
the state is computed before the steps: exp(decay), beta * key, beta * value, scale * query.
"""

from __future__ import annotations

from dataclasses import replace

from rnn_lowering.emit.constants import zeros_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.run_time_sizes import zeros
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.recurrence import LinearParts, Recurrence, Repeat, Step, Tensors
from rnn_lowering.spec.linear_attention import LinearAttentionSpec
from rnn_lowering.types import Dims, array_of

_LARGE, _IN_CACHE = 1 << 19, 1 << 16
"""Elements of the states: above the first number, onnxruntime runs groups of heads of the second faster."""


def lower_linear_attention(op: Ops, spec: LinearAttentionSpec, repeat: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names in the operator specification."""
    state = _past_state(op, spec)
    if spec.seq_length == 0 or spec.batch_size == 0:
        found = _without_steps(op, spec, state)
    else:
        parts = _parts(op, spec, op.unsqueeze(state, [0]))
        found = _one_step(op, spec, parts) if spec.seq_length == 1 else _all_steps(op, spec, parts, repeat)
    return {symbol: op.cast(found[symbol], spec.dtype_of(symbol)) for symbol in spec.outputs}


def _given(op: Ops, spec: LinearAttentionSpec, symbol: str, shape: Dims) -> Tensor:
    """Return a connected input in the type of the recurrence."""
    return op.cast(op.given(spec.inputs[symbol], spec.dtype_of(symbol), shape), op.dtype)


def _past_state(op: Ops, spec: LinearAttentionSpec) -> Tensor:
    """Return past_state; a symbolic zero where it is absent or all zero."""
    shape = (spec.batch_size, spec.state_heads, spec.key_size, spec.value_size)
    constant = spec.constants.get("past_state")
    if "past_state" not in spec.inputs or (constant is not None and not array_of(constant).any()):
        return op.zero(shape)
    return _given(op, spec, "past_state", shape)


def _without_steps(op: Ops, spec: LinearAttentionSpec, state: Tensor) -> dict[str, Tensor]:
    """Return the outputs for a sequence length or batch size of 0: an empty output; the state is passed on."""
    query = _given(op, spec, "query", (spec.batch_size, spec.seq_length, None))
    batch, seq = (op.dim(query, axis) for axis in (0, 1))
    width = spec.output_heads * spec.value_size
    if state.is_zero:
        state = zeros(op, [batch, *(op.constant([n]) for n in state.shape[1:] if n is not None)])
    return {"output": zeros(op, [batch, seq, op.constant([width])]), "present_state": state}


def _parts(op: Ops, spec: LinearAttentionSpec, state: Tensor) -> LinearParts:
    """Return the inputs that the rule uses, split into heads."""
    states, d = spec.state_heads, spec.key_size
    readers = min(spec.query_heads, states)  # fewer query heads than states: each reads several
    query = _heads(op, spec, "query", (readers, spec.query_heads // readers, d))
    decay = None
    if spec.rule.decays:
        decay = _heads(op, spec, "decay", (states, spec.decay_size))
    return LinearParts(
        state=state,
        query=_repeated(op, query, states),
        key=_repeated(op, _heads(op, spec, "key", (spec.key_heads, d)), states),
        value=_heads(op, spec, "value", (states, spec.value_size)),
        log_decay=decay,
        beta=_beta(op, spec) if spec.rule.corrects else None,
        scale=spec.scale,
        steps_of_chunk=spec.steps_of_chunk,
    )


def _beta(op: Ops, spec: LinearAttentionSpec) -> Tensor:
    heads = spec.beta_heads
    if heads is None:
        return op.unsqueeze(_given(op, spec, "beta", (*_rows(spec), None)), [3])
    return _heads(op, spec, "beta", (heads, 1))


def _rows(spec: LinearAttentionSpec) -> tuple[int | None, int | None]:
    return spec.batch_size, spec.seq_length


def _heads(op: Ops, spec: LinearAttentionSpec, symbol: str, shape: Dims) -> Tensor:
    """Return an input [batch, seq, width] as [batch, seq, *shape], of which the last size may not be known."""
    heads, *_, size = shape
    width = None if size is None or heads is None else heads
    given = _given(op, spec, symbol, (*_rows(spec), width))
    if size is not None:
        return reshaped(op, given, (*_rows(spec), *shape))
    each = op.dim(given, 2) / op.constant([heads or 1])
    return op.reshape(given, (*_rows(spec), *shape), [op.constant([n]) for n in (0, 0, heads or 1)] + [each])


def reshaped(op: Ops, x: Tensor, shape: Dims) -> Tensor:
    """Reshape x; sizes that are not known are those that x has at the same axis."""
    if None not in shape:
        return op.reshape(x, shape)
    return op.reshape(x, shape, [op.constant([0 if size is None else size]) for size in shape])


def _repeated(op: Ops, x: Tensor, heads: int) -> Tensor:
    """Repeat each head of [batch, seq, fewer heads, ...], such that there are `heads`: interleaved, not tiled."""
    fewer = x.shape[2] or 1
    if fewer == heads:
        return x
    zeros = op.known(zeros_of(op.dtype, (heads // fewer, *[1] * (x.rank - 3))))
    copies = op.unsqueeze(x, [3]) + zeros  # one node, however many heads a model asks for
    return reshaped(op, copies, (*x.shape[:2], heads, *x.shape[3:]))


def _one_step(op: Ops, spec: LinearAttentionSpec, parts: LinearParts) -> dict[str, Tensor]:
    """Return the outputs after one step, emitted without an axis of steps: [batch, heads, ...]."""
    found = []
    for group in _groups_of_heads(op, parts) if op.dialect.by_length else [parts]:
        step, init, rows = by_steps(op, group, single=True)
        (state,), (output,) = step(init, rows)
        found.append((state, output))
    state, output = (op.concat(list(each), axis=1) for each in zip(*found, strict=True))
    width = spec.output_heads * spec.value_size
    return {
        "output": reshaped(op, output, (spec.batch_size, 1, width)),
        "present_state": _final(op, spec, state),
    }


def _groups_of_heads(op: Ops, parts: LinearParts) -> list[LinearParts]:
    """Return a step in groups of heads whose states fit into a cache together, where all of them do not."""
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
    step, init, xs = by_steps(op, parts, single=False)
    (final,), (ys,) = repeat(op, Recurrence(init, xs, step, linear=parts, keeps_states=True))
    width = spec.output_heads * spec.value_size
    if spec.batch_size == 1:
        output = op.reshape(ys, (*_rows(spec), width), [op.constant([n]) for n in (1, -1, width)])
    else:
        rows = op.transpose(op.squeeze(ys, [1]), [1, 0, 2, 3, 4])  # [batch, seq, heads, queries, value]
        output = reshaped(op, rows, (*_rows(spec), width))
    return {
        "output": output,
        "present_state": _final(op, spec, op.without_first_axis(final)),
    }


def _final(op: Ops, spec: LinearAttentionSpec, state: Tensor) -> Tensor:
    """Return a state as the node gives it; one of a value size of 1 may be [batch, heads, 1, key]."""
    shape = (spec.batch_size, spec.state_heads, spec.key_size, spec.value_size)
    return state if spec.value_size > 1 else reshaped(op, state, shape)


def by_steps(op: Ops, parts: LinearParts, *, single: bool) -> tuple[Step, Tensors, Tensors]:
    """Return the step of a recurrence, its initial states and its inputs.

    Products with a value size of 1 are slow as MatMul: then rows are multiplied and added up, and the state is
    [..., 1, key].

    Args:
        single: There is one step: its inputs and the state have no axis of steps.
    """
    value_size, size = parts.value.shape[-1], parts.key.shape[-1]
    as_row = value_size == 1

    def at(x: Tensor, *shape: int | None) -> Tensor:
        """Return [batch, seq, heads, ...] as [seq, batch, heads, *shape], or [batch, heads, *shape]."""
        batch, seq, heads = x.shape[:3]
        if single:
            return reshaped(op, x, (batch, heads, *shape)) if heads is not None else op.squeeze(x, [1])
        whole = x if x.shape[3:] == shape else reshaped(op, x, (batch, seq, heads, *shape))
        return op.transpose(whole, [1, 0, *range(2, whole.rank)])

    def column(x: Tensor, size: int | None) -> Tensor:
        return at(x, 1, size) if as_row else at(x, size, 1)

    beta, decay = parts.beta, parts.log_decay
    key, value = parts.key, parts.value
    query = parts.query if parts.scale == 1 else parts.query * op.constant(parts.scale)
    xs = {
        "query": at(query, *query.shape[3:]),
        "key": column(key, size),
        "value": at(value if beta is None else beta * value, 1, value_size),
    }
    if beta is not None:
        xs["beta_key"] = at(beta * key, 1, size)
    if decay is not None:
        xs["decay"] = op.unary("Exp", column(decay, decay.shape[-1]))
    init = _as_row(op, parts.state) if as_row else parts.state
    names = list(xs)

    def read(rows: Tensor, S: Tensor) -> Tensor:
        return op.sum(rows * S, rows.rank - 1) if as_row else rows @ S

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        (S,), x = states, dict(zip(names, rows, strict=True))
        S = S * x["decay"] if "decay" in x else S
        u = x["value"] - read(x["beta_key"], S) if "beta_key" in x else x["value"]
        S = S + (x["key"] * u if as_row else x["key"] @ u)
        return [S], [read(x["query"], S)]

    return step, [op.without_first_axis(init) if single else init], list(xs.values())


def _as_row(op: Ops, state: Tensor) -> Tensor:
    """Return a state [1, batch, heads, key, 1] as [1, batch, heads, 1, key]."""
    *outer, size, one = state.shape
    return reshaped(op, state, (*outer, one, size))
