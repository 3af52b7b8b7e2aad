"""The form "chunked": steps are joined into chunks, and the chunks are repeated in another form.

It needs a recurrence whose step is linear in its state S (`recurrence.LinearParts`). In a chunk of C steps, with
rows t and columns j (the WY form of products of I - beta k k^T):

    D[t, j] = g[j+1] + .. + g[t]    M = exp(D) for j <= t, else 0       g: log_decay
    A = strictly lower part of (beta k) k^T * M         X = (I + A)^-1
    P = (q k^T) * M                                     e[t] = exp(g[1] + .. + g[t])
    U = X (beta v) - X (beta k e) S                     without beta U = v
    O = (q e) S + P U
    S = e[C] S + (k M[C, :])^T U

All but the last three lines are computed for all chunks at once; a factor of each step is applied to [C, C], not to
keys and values. What is numerically essential:

* Sums run over segments, D = L (g * [s > j]); differences of running sums lose what is small beside a strong decay.
* g is bounded by -1e4, as 0 * -inf is NaN; exp is applied before the mask, which is 0 or 1.
* X is computed by blocks that double; powers of A would grow like binomials where keys resemble each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rnn_lowering.emit.constants import literal, zeros_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.run_time_sizes import first_rows, zeros
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.recurrence.recurrence import LinearParts, Recurrence, Repeat, Tensors
from rnn_lowering.types import Array

_MOST_DECAY = 1e4
"""exp of more is infinite, of less than its negative 0."""


def chunked(op: Ops, r: Recurrence, repeat: Repeat) -> tuple[Tensors, Tensors]:
    """Emit a recurrence in chunks of steps.

    Args:
        r: Has `linear` parts, and does not run in reverse.
        repeat: The form that repeats the chunks.
    """
    parts = r.linear
    assert parts is not None
    cut = _Chunks(op, parts)
    (final,), (ys,) = repeat(op, cut.recurrence())
    return [cut.state(final)], [cut.by_steps(ys)]


@dataclass(frozen=True)
class _Decays:
    """Products of decays: up to each step and with it, after each step, of the whole chunk, and `within` it from
    one step to another: M without its mask, with a decay of each key dimension [..., t, j, key]."""

    before: Tensor
    after: Tensor
    whole: Tensor
    within: Tensor


class _Chunks:
    """The chunks of a recurrence. Their tensors are [chunks, states, steps, ...]: there is a state for each row of
    the batch and each head.

    Attributes:
        length: The number of steps of a chunk.
        N, B, states, steps: The numbers of chunks, of rows of the batch, of states, and of the steps of all chunks:
            each an int64 [1].
    """

    def __init__(self, op: Ops, parts: LinearParts) -> None:
        self.op, self.parts = op, parts
        self.heads, self.queries, self.key_size = static(parts.query.shape[2:])
        self.by_key = parts.log_decay is not None and parts.log_decay.shape[-1] != 1
        self.B, self.T = (op.dim(parts.key, axis) for axis in (0, 1))
        self.states = self.B * op.constant([self.heads])
        steps, T = parts.steps_of_chunk, self.T.number
        if T is not None:
            count = -(-T // steps)
            self.N, self.length = op.constant([count]), -(-T // count)
            self.steps = op.constant([count * self.length])
            return
        self.length = steps
        empty = op.cast(op.less(self.T, op.constant([1])), self.T.dtype)  # a Scan needs one chunk at least
        self.N = (self.T + op.constant([steps - 1])) / op.constant([steps]) + empty
        self.steps = self.N * op.constant([steps])

    def recurrence(self) -> Recurrence:
        """Return the recurrence of the chunks: a step of it is a chunk."""
        op, parts = self.op, self.parts
        q, k, v = (self._cut(x) for x in (parts.query, parts.key, parts.value))
        decays = None if parts.log_decay is None else self._decays(parts.log_decay)
        beta = None if parts.beta is None else self._cut(self._of_sizes(parts.beta, self.heads, 1))
        P, A = self._products(q, k, decays)
        xs = {"Q": self._decayed_queries(q, decays), "K": k if decays is None else k * decays.after}
        if decays is not None:
            xs["whole"] = decays.whole
        if beta is None:
            xs |= {"U": v, "O": P @ v}
        else:
            X = self._inverse(A * beta) * self._as_row(beta)
            xs |= {"W": self._weights(X, k, decays), "U": X @ v, "P": P}
        names = list(xs)

        def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            (S,), x = states, dict(zip(names, rows, strict=True))
            U = x["U"] - x["W"] @ S if "W" in x else x["U"]
            O = x["Q"] @ S + (x["P"] @ U if "P" in x else x["O"])  # noqa: E741
            columns = op.transpose(x["K"], [*range(S.rank - 2), S.rank - 1, S.rank - 2])
            return [(S * x["whole"] if "whole" in x else S) + columns @ U], [O]

        state = self._shaped(parts.state, 1, self.states, *static(parts.state.shape[3:]))
        return Recurrence([state], list(xs.values()), step, keeps_states=True)

    def state(self, final: Tensor) -> Tensor:
        """Return the state after the last chunk as `LinearParts` has it."""
        return self._shaped(final, 1, self.B, self.heads, *static(final.shape[2:]))

    def by_steps(self, ys: Tensor) -> Tensor:
        """Return the outputs of chunks, [chunks, 1, states, steps * queries, value], as those of steps."""
        C, heads, size = self.length, self.heads, static(ys.shape[-1:])[0]
        x = self._shaped(ys, self.N * self.B, heads, C, self.queries * size)
        x = self._swapped(x)
        if self.B.number != 1:
            x = self._swapped(self._shaped(x, self.N, self.B, C, heads * self.queries * size))
        return first_rows(self.op, self._shaped(x, self.steps, 1, self.B, heads, self.queries, size), self.T)

    def _shaped(self, x: Tensor, *sizes: int | Tensor) -> Tensor:
        """Reshape x to sizes, of which those with the chunks and those with the rows of the batch may be known at
        run time only. The latter is -1: a size of 0 would mean that of x at this axis."""
        op = self.op
        every = [op.constant([size]) if isinstance(size, int) else size for size in sizes]
        shape = tuple(size.number for size in every)
        if None not in shape:
            return op.reshape(x, shape)
        unknown = [n for n, size in enumerate(shape) if size is None]
        rows = next((n for n in unknown if every[n] not in (self.N, self.steps)), unknown[0])
        return op.reshape(x, shape, [*every[:rows], op.constant([-1]), *every[rows + 1 :]])

    def _swapped(self, x: Tensor) -> Tensor:
        """Swap the two middle axes of four; onnxruntime is fast where one axis moves."""
        return self.op.transpose(x, [0, 2, 1, 3])

    def _cut(self, x: Tensor) -> Tensor:
        """Return [batch, seq, heads, ...] as [chunks, states, steps, numbers], with zeros after the last step."""
        op, C = self.op, self.length
        heads, numbers = self.heads, math.prod(static(x.shape[3:]))
        missing = self.steps - self.T
        if missing.number != 0:
            x = op.concat([x, zeros(op, [self.B, missing, *(op.dim(x, n) for n in range(2, x.rank))])], axis=1)
        if self.B.number != 1:  # [batch, chunks, ...] -> [chunks, batch, ...]
            x = self._swapped(self._shaped(x, 1, self.B, self.N, C * heads * numbers))
        in_order = self._swapped(self._shaped(x, self.N * self.B, C, heads, numbers))
        return self._shaped(in_order, self.N, self.states, C, numbers)

    def _of_sizes(self, x: Tensor, *sizes: int) -> Tensor:
        """Repeat [batch, seq, ...] such that it has sizes, of which it may have 1 in place of some."""
        return x if x.shape[2:] == sizes else x + self.op.known(zeros_of(self.op.dtype, sizes))

    def _mask(self, numbers: Array) -> Tensor:
        return self.op.known(literal(numbers, self.op.dtype, "mask"))

    @property
    def _triangle(self) -> Array:
        """1 for columns j <= t, else 0."""
        return np.tril(np.ones((self.length, self.length)))

    def _decays(self, log_decay: Tensor) -> _Decays:
        """Return exp of sums of decays: each sum is a product with zeros and ones."""
        op, C, d = self.op, self.length, self.key_size
        g = self._cut(op.clip(self._of_sizes(log_decay, self.heads, d if self.by_key else 1), _MOST_DECAY))
        t, j, s = np.indices((C, C, C))
        between = ((j < s) & (s <= t)).reshape(C * C, C)
        t, s = np.indices((C, C))
        others = np.concatenate([s <= t, s > t, np.ones((1, C))])
        if self.by_key:
            within = op.unary("Exp", self._for_each_state(between) @ g)
            before, after, whole = op.split(op.unary("Exp", self._for_each_state(others) @ g), [C, C, 1], axis=2)
            apart = self._shaped(within, self.N, self.states, C, C, d)
            return _Decays(before, after, self._shaped(whole, self.N, self.states, d, 1), apart)
        every = self._mask(np.concatenate([between, others]).T)
        sums = self._shaped(g, self.N, self.states, 1, C) @ every  # one product for all chunks
        parts = op.split(op.unary("Exp", sums), [C * C, C, C, 1], axis=3)
        sizes = ((C, C), (C, 1), (C, 1), (1, 1))
        within, before, after, whole = (
            self._shaped(part, self.N, self.states, *size) for part, size in zip(parts, sizes, strict=True)
        )
        return _Decays(before, after, whole, within)

    def _for_each_state(self, numbers: Array) -> Tensor:
        """Return numbers as the left operand of a product with [chunks, states, ...], of which onnxruntime does not
        take one of a lower rank where the batch is empty."""
        op, mask = self.op, self._mask(numbers)
        if self.B.number is not None:
            return mask
        one = op.constant([1])
        return mask + zeros(op, [self.N, self.states, one, one])

    def _products(self, q: Tensor, k: Tensor, decays: _Decays | None) -> tuple[Tensor, Tensor]:
        """Return P, [..., steps * queries, steps], and A without beta and its mask, [..., steps, steps]."""
        if decays is not None and self.by_key:
            return self._products_by_key(q, k, decays)
        columns = self.op.transpose(k, [0, 1, 3, 2])
        P, A = self._in_rows(q) @ columns, k @ columns
        lower = self._mask(self._triangle * self.parts.scale)
        M = lower if decays is None else decays.within * lower
        A = A if decays is None else A * decays.within
        if self.queries == 1:
            return P * M, A
        C = self.length
        by_query = self._shaped(P, self.N, self.states, C, self.queries, C)
        return self._in_rows(by_query * self.op.unsqueeze(M, [M.rank - 1])), A

    def _products_by_key(self, q: Tensor, k: Tensor, decays: _Decays) -> tuple[Tensor, Tensor]:
        """Return the `_products` with a decay of each key dimension, which does not factor out of them."""
        op = self.op
        keys = decays.within * op.unsqueeze(k, [2])  # [..., t, j, key]
        rows = op.concat([op.unsqueeze(k, [3]), self._by_query(q)], axis=3)  # [..., t, 1 + queries, key]
        products = rows @ op.transpose(keys, [0, 1, 2, 4, 3])  # [..., t, 1 + queries, j]
        A, P = op.split(products, [1, self.queries], axis=3)
        return self._in_rows(P * self._mask(self._triangle[:, None] * self.parts.scale)), op.squeeze(A, [3])

    def _decayed_queries(self, q: Tensor, decays: _Decays | None) -> Tensor:
        """Return scale * q e, [..., steps * queries, key]."""
        op, scale = self.op, self.op.constant(self.parts.scale)
        if decays is None:
            return self._in_rows(q * scale)
        return self._in_rows(self._by_query(q) * op.unsqueeze(decays.before * scale, [3]))

    def _weights(self, X: Tensor, k: Tensor, decays: _Decays | None) -> Tensor:
        """Return X (k e), of which X has the factor beta."""
        if decays is None:
            return X @ k
        return X @ (k * decays.before) if self.by_key else (X * self._as_row(decays.before)) @ k

    def _as_row(self, x: Tensor) -> Tensor:
        """Return [..., steps, 1] as [..., 1, steps]."""
        return self._shaped(x, self.N, self.states, 1, self.length)

    def _by_query(self, x: Tensor) -> Tensor:
        """Return [..., steps, queries * key] as [..., steps, queries, key]."""
        return self._shaped(x, self.N, self.states, self.length, self.queries, self.key_size)

    def _in_rows(self, x: Tensor) -> Tensor:
        """Return [..., steps, queries, n], or [..., steps, queries * key], as [..., steps * queries, n]."""
        size = x.shape[4] if x.rank == 5 else self.key_size
        if x.rank == 4 and self.queries == 1:
            return x
        return self._shaped(x, self.N, self.states, self.length * self.queries, size or 1)

    def _inverse(self, A: Tensor) -> Tensor:
        """Return (I + A)^-1 for the strictly lower part of A, by blocks: that of blocks of 2h follows from those of
        blocks of h, X - X (lower left blocks of A) X."""
        C = self.length
        t, j = np.indices((C, C))
        X, h = self._mask(t == j), 1
        while h < C:
            corner = self._mask((t // (2 * h) == j // (2 * h)) & (t // h % 2 == 1) & (j // h % 2 == 0))
            block = A * corner
            X = X - (block if h == 1 else X @ block @ X)
            h *= 2
        return X
