"""The equivalent of a LinearAttention: its heads, its states, one step or all."""

from __future__ import annotations

from dataclasses import replace

from rnn_lowering.emit.constants import zeros_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.run_time_sizes import zeros
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.linear_attention_rules import LinearParts, linear_attention
from rnn_lowering.recurrence.recurrence import Repeat
from rnn_lowering.recurrence.weights import node_input
from rnn_lowering.spec.linear_attention import LinearAttentionSpec
from rnn_lowering.types import Dims

_LARGE, _IN_CACHE = 1 << 19, 1 << 16
"""With more numbers than `_LARGE` in all states, onnxruntime is faster on groups of heads with `_IN_CACHE` each."""


def lower_linear_attention(op: Ops, spec: LinearAttentionSpec, repeat: Repeat) -> dict[str, Tensor]:
    """Emit the equivalent of a node; return its connected outputs by their names in the operator specification."""
    sizes = (spec.batch_size, spec.state_heads, spec.key_size, spec.value_size)
    state = node_input(op, spec, "past_state", sizes)
    if spec.seq_length == 0 or spec.batch_size == 0:
        found = _without_steps(op, spec, state)
    else:
        parts = _parts(op, spec, op.unsqueeze(state, [0]))
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
        return op.unsqueeze(node_input(op, spec, "beta", (*_rows(spec), None)), [3])
    return _heads(op, spec, "beta", (heads, 1))


def _rows(spec: LinearAttentionSpec) -> tuple[int | None, int | None]:
    return spec.batch_size, spec.seq_length


def _heads(op: Ops, spec: LinearAttentionSpec, symbol: str, shape: Dims) -> Tensor:
    """Return an input [batch, seq, width] as [batch, seq, *shape], of which the last size may not be known."""
    heads, *_, size = shape
    width = None if size is None or heads is None else heads
    given = node_input(op, spec, symbol, (*_rows(spec), width))
    if size is not None:
        return op.reshape(given, (*_rows(spec), *shape))
    each = op.dim(given, 2) / op.constant([heads or 1])
    return op.reshape(given, (*_rows(spec), *shape), [op.constant([n]) for n in (0, 0, heads or 1)] + [each])


def _repeated(op: Ops, x: Tensor, heads: int) -> Tensor:
    """Repeat each head of [batch, seq, fewer heads, ...], such that there are `heads`: interleaved, not tiled."""
    fewer = x.shape[2] or 1
    if fewer == heads:
        return x
    zeros = op.known(zeros_of(op.dtype, (heads // fewer, *[1] * (x.rank - 3))))
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
        output = op.reshape(ys, (*_rows(spec), width), [op.constant([n]) for n in (1, -1, width)])
    else:
        rows = op.transpose(op.squeeze(ys, [1]), [1, 0, 2, 3, 4])  # [batch, seq, heads, queries, value]
        output = op.reshape(rows, (*_rows(spec), width))
    return {
        "output": output,
        "present_state": _final(op, spec, op.without_first_axis(final)),
    }


def _final(op: Ops, spec: LinearAttentionSpec, state: Tensor) -> Tensor:
    """Return a state as the node outputs it; with a value size of 1 it may be [batch, heads, 1, key] before."""
    shape = (spec.batch_size, spec.state_heads, spec.key_size, spec.value_size)
    return state if spec.value_size > 1 else op.reshape(state, shape)
