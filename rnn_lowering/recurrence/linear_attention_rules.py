"""The step equations of LinearAttention by update rule, in the notation of the operator specification:
https://onnx.ai/onnx/operators/onnx__LinearAttention.html.

A step t changes the state S [key, value] of a head, then reads it:

    linear       St = St-1 + kt vt^T
    gated        St = exp(gt) St-1 + kt vt^T
    delta        St = St-1 + kt (beta_t (vt - St-1^T kt))^T
    gated_delta  St = D + kt (beta_t (vt - D^T kt))^T    with D = exp(gt) St-1
    all          ot = scale St^T qt

g is the input decay: one number for the whole state, or one for each of its rows, the key dimensions. `chunks` has
the same equations for several steps at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.recurrence import Recurrence, Tensors


@dataclass(frozen=True)
class LinearParts:
    """The operands of the equations: k, v and the rest of all steps, each [batch, seq, heads, ...].

    Attributes:
        state: S before the first step, [1, batch, heads, key, value].
        query: q, [..., queries, key]: several queries read each state.
        key, value: k [..., key] and v [..., value].
        log_decay: g, [..., 1] or [..., key]; None for rules without decay.
        beta: [..., 1], where one head may stand for all; None for rules without the delta.
        scale: What queries are multiplied by.
        steps_of_chunk: The most steps of a chunk.
    """

    state: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor | None = None
    beta: Tensor | None = None
    scale: float = 1.0
    steps_of_chunk: int = 16


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
    xs = _rows(op, parts, as_row=as_row, single=single)

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


def _rows(op: Ops, parts: LinearParts, *, as_row: bool, single: bool) -> dict[str, Tensor]:
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
