"""The form "chunked": steps are joined into chunks, and the chunks are repeated by another fold.

It needs a recurrence whose step is linear in its state S (`recurrence.LinearParts`). In a chunk of C steps, with
rows t and columns j (the WY form of products of I - beta k k^T):

    D[t, j] = g[j+1] + .. + g[t]    M = exp(D) for j <= t, else 0       g: log_decay
    A = strictly lower part of (beta k) k^T * M         X = (I + A)^-1
    P = (q k^T) * M                                     e[t] = exp(g[1] + .. + g[t])
    U = X (beta v) - X (beta k e) S                     without beta U = v
    O = (q e) S + P U
    S = e[C] S + (k M[C, :])^T U

All but the last three lines are computed for all chunks at once. What is numerically essential:

* Sums run over segments, D = L (g * [s > j]); differences of running sums lose what is small beside a strong decay.
* g is at least -1e4, as 0 * -inf is NaN; exp is applied before the mask, which is 0 or 1.
* X is computed by blocks that double; powers of A would grow like binomials where keys resemble each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rnn_lowering.emit.constants import literal, zeros_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.run_time_sizes import zeros
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.recurrence import Fold, LinearParts, Recurrence, Tensors
from rnn_lowering.types import Array, Dims

_LEAST_DECAY = -1e4


def chunked(op: Ops, r: Recurrence, repeat: Fold) -> tuple[Tensors, Tensors]:
    """Emit a recurrence in chunks of steps.

    Args:
        r: Has `linear` parts, and does not run in reverse.
        repeat: The fold that repeats the chunks.
    """
    parts = r.linear
    assert parts is not None
    cut = _Chunks(op, parts)
    final, (ys,) = repeat(op, cut.recurrence())
    return final, [cut.by_steps(ys)]


@dataclass(frozen=True)
class _Decays:
    """Products of decays: up to each step and with it, after each step, of the whole chunk, and `within` it from
    one step to another: M, with a decay of each key dimension [..., t, j, key] and not masked."""

    before: Tensor
    after: Tensor
    whole: Tensor
    within: Tensor


class _Chunks:
    """The chunks of a recurrence.

    Attributes:
        length: The number of steps of a chunk.
        count: The number of chunks, int64 [1].
        N: The same, where it is known.
    """

    def __init__(self, op: Ops, parts: LinearParts) -> None:
        self.op, self.parts = op, parts
        self.batch, self.T, self.heads, self.queries, self.key_size = parts.query.shape
        self.by_key = parts.log_decay is not None and parts.log_decay.shape[-1] != 1
        steps = parts.steps_of_chunk
        self.seq = op.dim(parts.key, 1)
        if self.T is not None:
            self.N: int | None = -(-self.T // steps)
            self.length = -(-self.T // self.N)
            self.count = op.constant([self.N])
            return
        self.N, self.length = None, steps
        empty = op.cast(op.less(self.seq, op.constant([1])), self.seq.dtype)  # a Scan needs one chunk at least
        self.count = (self.seq + op.constant([steps - 1])) / op.constant([steps]) + empty

    def recurrence(self) -> Recurrence:
        """Return the recurrence of the chunks: a step of it is a chunk."""
        op, parts = self.op, self.parts
        q, k, v = (self._cut(x) for x in (parts.query, parts.key, parts.value))
        g = None if parts.log_decay is None else self._cut(op.at_least(parts.log_decay, _LEAST_DECAY))
        if g is not None and g.shape[-1] is None:
            g = g + op.known(zeros_of(op.dtype, (self.key_size or 1,)))
        beta = None if parts.beta is None else self._cut(parts.beta)
        decays = None if g is None else self._decays(g)
        weak = k if beta is None else beta * k
        P, A = self._products(q, k, weak, decays)
        q = self._with_queries_in_rows(q if decays is None else q * self._of_queries(decays.before))
        last = k if decays is None else k * decays.after
        xs = {"Q": q, "P": P, "K": op.transpose(last, [0, 1, 2, 4, 3])}
        if decays is not None:
            xs["whole"] = decays.whole
        if beta is None:
            xs["U"] = v
            xs["P"] = P @ v
        else:
            X = self._inverse(A)
            xs["U"] = X @ (beta * v)
            xs["W"] = X @ (weak if decays is None else weak * decays.before)
        names = list(xs)

        def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            (S,), x = states, dict(zip(names, rows, strict=True))
            U = x["U"] - x["W"] @ S if "W" in x else x["U"]
            O = x["Q"] @ S + (x["P"] @ U if "W" in x else x["P"])  # noqa: E741
            S = (S * x["whole"] if "whole" in x else S) + x["K"] @ U
            return [S], [O]

        return Recurrence([parts.state], list(xs.values()), step, keeps_states=True)

    def by_steps(self, ys: Tensor) -> Tensor:
        """Return the outputs of chunks, [chunks, 1, batch, heads, steps * queries, value], as those of steps."""
        op, C, size = self.op, self.length, ys.shape[-1]
        apart = self._reshaped(op.squeeze(ys, [1]), (self.N, self.batch, self.heads, C, self.queries, size))
        in_order = op.transpose(apart, [0, 3, 1, 2, 4, 5])
        rows = None if self.N is None else self.N * C
        shape = (rows, 1, self.batch, self.heads, self.queries, size)
        if None in shape:
            total = self.count * op.constant([C])
            kept = [op.dim(in_order, n) for n in (2, 3, 4, 5)]
            whole = op.reshape(in_order, shape, [total, op.constant([1]), *kept])
        else:
            whole = op.reshape(in_order, shape)
        return op.head(whole, self.seq)

    def _reshaped(self, x: Tensor, shape: Dims) -> Tensor:
        """Reshape x; sizes that are not known stay at their axis."""
        if None not in shape:
            return self.op.reshape(x, shape)
        return self.op.reshape(x, shape, [self.op.constant([0 if n is None else n]) for n in shape])

    def _cut(self, x: Tensor) -> Tensor:
        """Return [batch, seq, heads, ...] as [chunks, batch, heads, steps, ...], with zeros after the last step."""
        op, C = self.op, self.length
        batch, _, *rest = x.shape
        total = self.count * op.constant([C])
        missing = total - self.seq
        if missing.number != 0:
            sizes = [op.dim(x, n) for n in range(x.rank)]
            x = op.concat([x, zeros(op, [sizes[0], missing, *sizes[2:]])], axis=1)
        shape = (batch, self.N, C, *rest)
        if None in shape:
            # Both at run time: of a single unknown size onnxruntime makes -1, which fails where the batch is empty.
            sizes = [op.dim(x, 0), self.count, op.constant([C])]
            sizes += [op.dim(x, n + 2) for n in range(len(rest))]
            apart = op.reshape(x, shape, sizes)
        else:
            apart = op.reshape(x, shape)
        return op.transpose(apart, [1, 0, 3, 2, *range(4, apart.rank)])

    def _mask(self, numbers: Array) -> Tensor:
        return self.op.known(literal(numbers, self.op.dtype, "mask"))

    def _decays(self, g: Tensor) -> _Decays:
        """Return exp of sums of g, [..., steps, 1 or key]: each sum is a product with zeros and ones."""
        op, C = self.op, self.length
        t, j, s = np.indices((C, C, C))
        between = ((j < s) & (s <= t)).reshape(C * C, C)
        t, s = np.indices((C, C))
        others = np.concatenate([s <= t, s > t, np.ones((1, C))])
        if self.by_key:
            M = op.unary("Exp", self._for_each_row(between) @ g)
            before, after, whole = op.split(op.unary("Exp", self._for_each_row(others) @ g), [C, C, 1], axis=3)
            within = self._reshaped(M, (*self._outer, C, C, self.key_size))
            return _Decays(before, after, op.transpose(whole, [0, 1, 2, 4, 3]), within)
        every = self._mask(np.concatenate([between, others]).T)
        sums = self._reshaped(g, (*self._outer, 1, C)) @ every  # one product for all chunks
        parts = op.split(op.unary("Exp", sums), [C * C, C, C, 1], axis=4)
        sizes = ((C, C), (C, 1), (C, 1), (1, 1))
        within, before, after, whole = (
            self._reshaped(part, (*self._outer, *size)) for part, size in zip(parts, sizes, strict=True)
        )
        return _Decays(before, after, whole, within * self._lower)

    @property
    def _outer(self) -> Dims:
        return self.N, self.batch, self.heads

    @property
    def _lower(self) -> Tensor:
        """1 for columns j <= t, else 0."""
        return self._mask(np.tril(np.ones((self.length, self.length))))

    def _for_each_row(self, numbers: Array) -> Tensor:
        """Return numbers as the left operand of a product with [chunks, batch, heads, ...], of which onnxruntime
        does not take one of a lower rank where the batch is empty."""
        op, mask = self.op, self._mask(numbers)
        if self.batch is not None:
            return mask
        one = op.constant([1])
        return mask + zeros(op, [self.count, op.dim(self.parts.key, 0), one, one, one])

    def _products(self, q: Tensor, k: Tensor, weak: Tensor, decays: _Decays | None) -> tuple[Tensor, Tensor]:
        """Return P, [..., steps * queries, steps], and A without its mask, [..., steps, steps]."""
        if decays is not None and self.by_key:
            return self._products_by_key(q, k, weak, decays)
        M = self._lower if decays is None else decays.within
        columns = self.op.transpose(k, [0, 1, 2, 4, 3])
        P = self._with_queries_in_rows(q) @ columns
        A = (weak @ columns) * M
        if self.queries == 1:
            return P * M, A
        apart = self._reshaped(P, (*self._outer, self.length, self.queries, self.length)) * self._of_queries(M)
        return self._with_queries_in_rows(apart), A

    def _products_by_key(self, q: Tensor, k: Tensor, weak: Tensor, decays: _Decays) -> tuple[Tensor, Tensor]:
        """Return the `_products` with a decay of each key dimension, which does not factor out of them."""
        op = self.op
        keys = decays.within * op.unsqueeze(k, [3])  # [..., t, j, key]
        rows = op.concat([op.unsqueeze(weak, [4]), q], axis=4)  # [..., t, 1 + queries, key]
        products = keys @ op.transpose(rows, [0, 1, 2, 3, 5, 4])  # [..., t, j, 1 + queries]
        A, P = op.split(products, [1, self.queries or 1], axis=5)
        P = op.transpose(P, [0, 1, 2, 3, 5, 4]) * self._of_queries(self._lower)
        return self._with_queries_in_rows(P), op.squeeze(A, [5])

    def _of_queries(self, x: Tensor) -> Tensor:
        """Return [..., steps, n] as [..., steps, 1, n]."""
        return self.op.unsqueeze(x, [x.rank - 1])

    def _with_queries_in_rows(self, x: Tensor) -> Tensor:
        """Return [..., steps, queries, n] as [..., steps * queries, n]."""
        return self._reshaped(x, (self.N, self.batch, self.heads, self.length * (self.queries or 1), x.shape[-1]))

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
