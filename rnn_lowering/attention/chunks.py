"""The form "chunked": steps are joined into chunks, and the chunks are repeated in another form.

It needs a recurrence whose step is linear in its state S (`linear_attention`). In a chunk of C steps, with
rows t and columns j (the WY form of products of I - beta k k^T):

    D[t, j] = g[j+1] + .. + g[t]    M = exp(D) for j <= t, else 0       g: log_decay
    A = strictly lower part of (beta k) k^T * M         X = (I + A)^-1
    P = (q k^T) * M                                     e[t] = exp(g[1] + .. + g[t])
    U = X (beta v) - X (beta k e) S                     without beta U = v
    O = (q e) S + P U
    S = e[C] S + (k M[C, :])^T U

Example: two steps of the rule delta (beta, no decay) from the state S; u1, u2 are what the steps write to k1, k2.

    u1 = beta1 (v1 - S^T k1)                          o1 = S^T q1 + (q1 k1) u1
    u2 = beta2 (v2 - S^T k2 - (k2 k1) u1)             o2 = S^T q2 + (q2 k1) u1 + (q2 k2) u2

As matrices with a row for each step, that is (I + A) U = beta (V - K S) with A = [[0, 0], [beta2 k2 k1, 0]], and
O = Q S + P U with P = [[q1 k1, 0], [q2 k1, q2 k2]]. The new state is S + K^T U.

Shapes in comments: N chunks, Z states (batch * heads), C steps of a chunk, b steps of a block, m = C / b blocks of
a chunk, d numbers of a key, n queries that read a state, r = 1 + n rows of a step: its key and its queries.

All but the last three lines are computed for several chunks at once. A decay of each head is a factor of the matrix
[C, C]. A decay of each key dimension does not factor out of q k^T, so it multiplies the keys (`_by_key`): within a
block of few steps once for each row, and the keys of earlier blocks once for each block. Three rules keep the
numbers right:

* Sums run over segments, D = L (g * [s > j]); differences of running sums lose what is small beside a strong decay.
* g is bounded by -1e4, as 0 * -inf is NaN; exp is applied before the mask, which is 0 or 1.
* X is computed by blocks that double; powers of A would grow like binomials where keys resemble each other.

At an open length few steps are repeated one by one: a language model generates one token in each call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rnn_lowering.attention.linear_equivalent import LinearParts, LinearRecurrence, linear_attention
from rnn_lowering.emit.composites import first_rows, followed_by_zeros
from rnn_lowering.emit.constants import literal, zeros_of
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.recurrence.forms import Recurrence, Repeat, Tensors, unroll
from rnn_lowering.types import Array

_MOST_DECAY = 1e4
"""exp of more is infinite, of less than its negative 0."""
_BLOCK = 4
"""Steps of a block with a decay for each key dimension: each key takes this many exp and products."""
_DENSE = 16
"""The inverse of a matrix with more rows is computed from those of its two halves."""
_IN_CACHE = 1 << 15
"""Maximum elements of the keys and decays of a group; above it, every operator waits for memory."""
_OPEN_GROUP = 32
"""The steps of a group at an open length."""


def chunked(op: Ops, r: Recurrence, repeat: Repeat, few: Repeat | None = None) -> tuple[Tensors, Tensors]:
    """Emit a recurrence in chunks of steps.

    Args:
        r: A `LinearRecurrence`, which does not run in reverse.
        repeat: The form that repeats groups of chunks; unrolled they are one group.
        few: The form that repeats the steps of a short sequence of open length; None for chunks at any length.
    """
    assert isinstance(r, LinearRecurrence)
    parts = r.parts
    groups = _Groups(op, parts, in_loop=repeat is not unroll)
    if few is None or groups.T.number is not None:
        return groups.repeated(repeat)
    some, half = op.less(op.constant([0]), groups.T), op.less(groups.T, op.constant([groups.few]))
    is_short = op.squeeze(op.both(some, half), [0])  # a Scan needs a step: no steps are a group
    with op.body():
        (final,), (ys,) = few(op, linear_attention(op, parts))
        steps = op.body_graph([], [op.without_first_axis(final), ys])
    with op.body():
        (final,), (ys,) = groups.repeated(repeat)
        joined = op.body_graph([], [op.without_first_axis(final), ys])
    shapes, types = [final.shape[1:], ys.shape], [final.dtype, ys.dtype]
    state, outputs = op.emit_all("If", [is_short], shapes, types, then_branch=steps, else_branch=joined)
    return [op.unsqueeze(state, [0])], [outputs]


class _Groups:
    """Groups of chunks: a group is computed at once; in a loop it is as many chunks as fit into a cache.

    Attributes:
        chunks, steps: The numbers of chunks of a group, and of steps of a chunk.
        length, few: The number of steps of a group, and from how many steps on chunks are faster.
        B, T, count: The numbers of rows of the batch, of steps, and of groups: each an int64 [1].
    """

    def __init__(self, op: Ops, parts: LinearParts, *, in_loop: bool) -> None:
        self.op, self.parts = op, parts
        self.B, self.T = (op.dim(parts.key, axis) for axis in (0, 1))
        by_key, most, T = _is_by_key(parts), parts.steps_of_chunk, self.T.number
        if T is None:
            self.steps = _in_blocks(most, by_key)
            self.chunks = -(-_OPEN_GROUP // self.steps)
            self.length = self.chunks * self.steps
            self.few = self.length * (3 if by_key else 2) // 4
            empty = op.cast(op.less(self.T, op.constant([1])), self.T.dtype)  # a Scan needs one group at least
            self.count = (self.T + op.constant([self.length - 1])) / op.constant([self.length]) + empty
            return
        count, every = 1, -(-T // most)
        if in_loop:
            heads, numbers = static(parts.key.shape[2:])
            of_chunk = (self.B.number or 1) * heads * numbers * most * (_BLOCK if by_key else 1)
            at_once = max(1, _IN_CACHE // of_chunk)
            count = -(-every // at_once)
        self.chunks = -(-every // count)
        self.steps = _in_blocks(-(-T // (count * self.chunks)), by_key)
        self.length = self.chunks * self.steps
        self.count = op.constant([-(-T // self.length)])

    def repeated(self, repeat: Repeat) -> tuple[Tensors, Tensors]:
        """Return the state after all groups and the outputs of all steps, as a form does."""
        op, parts = self.op, self.parts
        given = {"query": parts.query, "key": parts.key, "value": parts.value}
        heads, size = static(parts.key.shape[2:])
        if parts.log_decay is not None:
            given["log_decay"] = _of_sizes(op, parts.log_decay, heads, size if _is_by_key(parts) else 1)
        if parts.beta is not None:
            given["beta"] = _of_sizes(op, parts.beta, heads, 1)
        xs = {name: self._cut(x) for name, x in given.items()}

        def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            alone = states[0].rank == 5  # of one step, as unrolled
            own: dict[str, Any] = dict(zip(xs, (op.squeeze(x, [0]) if alone else x for x in rows), strict=True))
            own["state"] = states[0] if alone else op.unsqueeze(states[0], [0])
            group = _GroupChunks(op, replace(parts, **own), self.chunks, self.steps)
            (final,), (chunks,) = unroll(op, group.recurrence())
            final, y = group.state(final), group.by_steps(chunks)
            return ([final], [op.unsqueeze(y, [0])]) if alone else ([op.squeeze(final, [0])], [y])

        repeat = unroll if self.count.number == 1 else repeat
        (final,), (ys,) = repeat(op, Recurrence([parts.state], list(xs.values()), step, keeps_states=True))
        return [final], [self._by_steps(ys)]

    def _cut(self, x: Tensor) -> Tensor:
        """Return [batch, seq, ...] as [groups, batch, steps, ...], with zeros after the last step."""
        op, count, each = self.op, self.count, static(x.shape[2:])
        x = followed_by_zeros(op, x, count * op.constant([self.length]) - self.T)
        if self.B.number == 1:
            return shaped(op, x, count, 1, self.length, *each)
        apart = shaped(op, x, self.B, count, self.length * math.prod(each), batch=self.B)
        return shaped(op, op.transpose(apart, [1, 0, 2]), count, self.B, self.length, *each)

    def _by_steps(self, ys: Tensor) -> Tensor:
        """Return [groups, 1, batch, steps, ...] as [seq, 1, batch, ...]."""
        op, each = self.op, static(ys.shape[4:])
        steps = self.count * op.constant([self.length])
        if self.B.number != 1:
            apart = shaped(op, ys, self.count, self.B, self.length, math.prod(each))
            ys = op.transpose(apart, [0, 2, 1, 3])
        if self.T.number is not None and steps.number != self.T.number:  # two axes: QNN cuts at most 5
            flat = shaped(op, ys, steps, self.B * op.constant([math.prod(each)]))
            return shaped(op, first_rows(op, flat, self.T), self.T, 1, self.B, *each)
        return first_rows(op, shaped(op, ys, steps, 1, self.B, *each), self.T)


def shaped(op: Ops, x: Tensor, *sizes: int | Tensor, batch: Tensor | None = None) -> Tensor:
    """Reshape x to sizes, of which some may be known at run time only: that of the batch, or else the last one, is
    -1, since a size of 0 would mean that of x at this axis."""
    every = [op.constant([size]) if isinstance(size, int) else size for size in sizes]
    shape = tuple(size.number for size in every)
    if None not in shape:
        return x if shape == x.shape else op.reshape(x, shape)
    unknown = [n for n, size in enumerate(shape) if size is None]
    free = next((n for n in unknown if every[n] is batch), unknown[-1])
    return op.reshape(x, shape, [*every[:free], op.constant([-1]), *every[free + 1 :]])


@dataclass(frozen=True)
class _Products:
    """Products of the queries and keys of a chunk, with decays, where `key @ S` stands for what a key reads.

    Attributes:
        P: scale * q k^T, [..., steps * queries, steps], lower.
        A: k k^T, [..., steps, steps]; of which the part that is not strictly lower may be any numbers.
        queries: scale * q e, [..., steps * queries, key].
        before, after: k e and k M[C, :], [..., steps, key].
        whole: e[C], [..., 1 or key, 1]; None without decays.
    """

    P: Tensor
    A: Tensor
    queries: Tensor
    before: Tensor
    after: Tensor
    whole: Tensor | None = None


class _GroupChunks:
    """The chunks of a group. Their tensors are [chunks, states, steps, ...]: there is a state for each row of
    the batch and each head.

    Attributes:
        N, length: The numbers of chunks, and of steps of a chunk.
        B, states: The numbers of rows of the batch and of states: each an int64 [1].
    """

    def __init__(self, op: Ops, parts: LinearParts, chunks: int, steps: int) -> None:
        self.op, self.parts = op, parts
        self.heads, self.queries, self.key_size = static(parts.query.shape[2:])
        self.N, self.length = chunks, steps
        self.B = op.dim(parts.key, 0)
        self.states = self.B * op.constant([self.heads])

    def recurrence(self) -> Recurrence:
        """Return the recurrence of the chunks: a step of it is a chunk."""
        parts = self.parts
        q, k, v = (self._cut(x) for x in (parts.query, parts.key, parts.value))
        products = self._products(q, k)
        beta = None if parts.beta is None else self._cut(parts.beta)
        xs = {"Q": products.queries, "K": products.after}
        if products.whole is not None:
            xs["whole"] = products.whole
        if beta is None:
            xs |= {"U": v, "O": products.P @ v}
        else:
            X = self._inverse(products.A * beta) * self._as_row(beta)
            xs |= {"W": X @ products.before, "U": X @ v, "P": products.P}
        names = list(xs)

        def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            (S,), x = states, dict(zip(names, rows, strict=True))
            U = x["U"] - x["W"] @ S if "W" in x else x["U"]
            O = x["Q"] @ S + (x["P"] @ U if "P" in x else x["O"])  # noqa: E741
            return [(S * x["whole"] if "whole" in x else S) + self.op.transpose_last(x["K"]) @ U], [O]

        state = self._shaped(parts.state, 1, self.states, *static(parts.state.shape[3:]))
        return Recurrence([state], list(xs.values()), step, keeps_states=True)

    def state(self, final: Tensor) -> Tensor:
        """Return the state after the last chunk as `LinearParts` has it."""
        return self._shaped(final, 1, self.B, self.heads, *static(final.shape[2:]))

    def by_steps(self, ys: Tensor) -> Tensor:
        """Return the outputs of chunks, [chunks, 1, states, steps * queries, value], as `LinearParts` has values,
        with an axis of queries."""
        N, B, C, heads, size = self.N, self.B, self.length, self.heads, static(ys.shape[-1:])[0]
        x = self._swapped(self._shaped(ys, B * self.op.constant([N]), heads, C, self.queries * size))
        if B.number != 1 and N > 1:
            x = self.op.transpose(self._shaped(x, N, B, C * heads * self.queries * size), [1, 0, 2])
        return self._shaped(x, B, N * C, heads, self.queries, size)

    def _shaped(self, x: Tensor, *sizes: int | Tensor) -> Tensor:
        return shaped(self.op, x, *sizes)

    def _chunk(self, x: Tensor, *sizes: int) -> Tensor:
        """Reshape x to [chunks, states, *sizes]."""
        return self._shaped(x, self.N, self.states, *sizes)

    def _swapped(self, x: Tensor) -> Tensor:
        """Swap the two middle axes of four; onnxruntime is fast where one axis moves."""
        return self.op.transpose(x, [0, 2, 1, 3])

    def _cut(self, x: Tensor) -> Tensor:
        """Return [batch, seq, heads, ...] as [chunks, states, steps, numbers]."""
        N, B, C, heads, numbers = self.N, self.B, self.length, self.heads, math.prod(static(x.shape[3:]))
        if B.number != 1 and N > 1:  # [batch, chunks, ...] -> [chunks, batch, ...]
            x = self.op.transpose(self._shaped(x, B, N, C * heads * numbers), [1, 0, 2])
        return self._chunk(self._swapped(self._shaped(x, B * self.op.constant([N]), C, heads, numbers)), C, numbers)

    def _mask(self, numbers: Array) -> Tensor:
        return self.op.from_constant(literal(numbers, self.op.dtype, "mask"))

    def _times(self, numbers: Array, x: Tensor) -> Tensor:
        """Return the product of a constant matrix and each of x [..., rows, columns]. Where the batch may be empty
        the constant is on the right: onnxruntime takes no left operand of a lower rank then."""
        if self.B.number is None:
            return self.op.transpose_last(self.op.transpose_last(x) @ self._mask(numbers.T))
        return self._mask(numbers) @ x

    def _products(self, q: Tensor, k: Tensor) -> _Products:
        g = self.parts.log_decay
        if g is None:
            P, A = self._lower(self._in_rows(q) @ self.op.transpose_last(k)), k @ self.op.transpose_last(k)
            return _Products(P, A, self._in_rows(q * self.op.constant(self.parts.scale)), k, k)
        decays = self._cut(self.op.clip(g, _MOST_DECAY))
        return self._by_key(q, k, decays) if _is_by_key(self.parts) else self._by_head(q, k, decays)

    def _by_head(self, q: Tensor, k: Tensor, g: Tensor) -> _Products:
        op, C = self.op, self.length
        segments = np.concatenate([_segments(C), _ends(C), np.ones((1, C))])  # [C * C + 2 * C + 1, C]
        sums = self._chunk(g, 1, C) @ self._mask(segments.T)  # [N, Z, 1, C * C + 2 * C + 1]
        parts = op.split(op.unary("Exp", sums), [C * C, C, C, 1], axis=3)
        sizes = ((C, C), (C, 1), (C, 1), (1, 1))
        M, before, after, whole = (self._chunk(x, *size) for x, size in zip(parts, sizes, strict=True))
        P = self._lower(self._in_rows(q) @ self.op.transpose_last(k), M)  # [N, Z, C * n, C]
        scaled = op.unsqueeze(before * op.constant(self.parts.scale), [3])  # [N, Z, C, 1, 1]
        queries = self._in_rows(self._by_query(q) * scaled)  # [N, Z, C * n, d]
        return _Products(P, (k @ self.op.transpose_last(k)) * M, queries, k * before, k * after, whole)

    def _lower(self, P: Tensor, M: Tensor | None = None) -> Tensor:
        """Return scale * P * M for columns j <= t, else 0; P is [..., steps * queries, steps]."""
        C = self.length
        lower = self._mask(np.tril(np.ones((C, C))) * self.parts.scale)
        factor = lower if M is None else M * lower
        if self.queries == 1:
            return P * factor
        by_query = self._chunk(P, C, self.queries, C)
        return self._in_rows(by_query * self.op.unsqueeze(factor, [factor.rank - 1]))

    def _by_key(self, q: Tensor, k: Tensor, g: Tensor) -> _Products:
        """Return the products with a decay of each key dimension: within blocks, and with those before."""
        op, C, d, r = self.op, self.length, self.key_size, 1 + self.queries
        b = min(C, _BLOCK)
        m = C // b
        blocks = self.states * op.constant([m])

        def cut(x: Tensor, *sizes: int) -> Tensor:
            """Reshape x to [N, Z * m, *sizes]."""
            return self._shaped(x, self.N, blocks, *sizes)

        decays = cut(g, b, d)
        within = op.unary("Exp", self._times(_segments(b), decays))  # [N, Z * m, b * b, d]
        before, after = op.split(op.unary("Exp", self._times(_ends(b), decays)), [b, b], axis=2)  # [N, Z * m, b, d]
        key = cut(k, b, d)
        rows = op.concat([op.unsqueeze(key, [3]), cut(q, b, self.queries, d)], axis=3)  # [N, Z * m, b, r, d]
        keys = cut(within, b, b, d) * op.unsqueeze(key, [2])  # [N, Z * m, b, b, d]
        near_products = cut(rows @ self.op.transpose_last(keys), b * r, b)
        reading, after = cut(rows * op.unsqueeze(before, [3]), b * r, d), key * after
        sums = self._times(_of_blocks(m), self._times(_each_block(m, b), g))  # [N, Z, m * m + 2 * m + 1, d]
        between, start, end, whole = op.split(op.unary("Exp", sums), [m * m, m, m, 1], axis=2)
        if m > 1:
            earlier = self._mask(np.tril(np.ones((m, m)), -1).reshape(m * m, 1))
            every = self.states * op.constant([self.N])  # QNN has at most 5 axes
            factor = self._shaped(between * earlier, every, m, m, 1, d)
            others = self._shaped(after, every, 1, m, b, d) * factor  # [N * Z, m, m, b, d]
            far = reading @ self.op.transpose_last(cut(others, C, d))  # [N, Z * m, b * r, C]
            near = self._in_places(self._chunk(near_products, C * r, b), r)  # [N, Z, C * r, C]
            near_products = far + cut(near, b * r, C)
            reading = self._chunk(reading, m, b * r, d) * self._chunk(start, m, 1, d)
            after = self._chunk(after, m, b, d) * self._chunk(end, m, 1, d)
        # A key and its queries lie side by side: split on an axis of their own, QNN got some sizes wrong.
        A, P = op.split(self._chunk(near_products, C, r * C), [C, self.queries * C], axis=3)
        of_key, of_query = op.split(self._chunk(reading, C, r * d), [d, self.queries * d], axis=3)
        return _Products(
            P=self._lower(self._chunk(P, C * self.queries, C)),
            A=A,
            queries=self._in_rows(of_query * op.constant(self.parts.scale)),
            before=of_key,
            after=self._chunk(after, C, d),
            whole=self._chunk(whole, d, 1),
        )

    def _as_row(self, x: Tensor) -> Tensor:
        """Return [..., steps, 1] as [..., 1, steps]."""
        return self._chunk(x, 1, self.length)

    def _by_query(self, x: Tensor) -> Tensor:
        """Return [..., steps, queries * key] as [..., steps, queries, key]."""
        return self._chunk(x, self.length, self.queries, self.key_size)

    def _in_rows(self, x: Tensor) -> Tensor:
        """Return [..., steps, queries, n], or [..., steps, queries * key], as [..., steps * queries, n]."""
        size = x.shape[4] if x.rank == 5 else self.key_size
        if x.rank == 4 and self.queries == 1:
            return x
        return self._chunk(x, self.length * self.queries, size or 1)

    def _inverse(self, A: Tensor) -> Tensor:
        """Return (I + A)^-1 for the strictly lower part of A, [..., steps, steps]."""
        C = self.length
        if C <= _DENSE or C % 2:
            return _doubled(self.op, A, self._mask(np.eye(C)), 1, C)
        h = C // 2
        halves = (A * self._mask(_places(2, h))) @ self._mask(np.tile(np.eye(h), (2, 1)))  # [N, Z, C, h]
        apart = self._shaped(halves, self.N, self.states * self.op.constant([2]), h, h)  # QNN crashes at 5 axes
        X = _doubled(self.op, apart, self._mask(np.eye(h)), 1, h)
        return _doubled(self.op, A, self._in_places(self._chunk(X, C, h)), h, C)

    def _in_places(self, x: Tensor, rows: int = 1) -> Tensor:
        """Return blocks [..., steps * rows, steps of a block] at their places in [..., steps * rows, steps]. OpenCV
        computes products with one constant for each block wrongly."""
        C, b = self.length, x.shape[-1] or 1
        every = x @ self._mask(np.tile(np.eye(b), C // b))
        return every * self._mask(_places(C // b, b, rows))


def _of_sizes(op: Ops, x: Tensor, *sizes: int) -> Tensor:
    """Broadcast the axes of x [batch, seq, ...] behind the second to sizes."""
    return x if x.shape[2:] == sizes else x + op.from_constant(zeros_of(op.dtype, sizes))


def _is_by_key(parts: LinearParts) -> bool:
    return parts.log_decay is not None and parts.log_decay.shape[-1] != 1


def _in_blocks(steps: int, by_key: bool) -> int:
    """Return `steps` rounded up to a number that blocks, or two halves, divide."""
    multiple = (_BLOCK if steps > _BLOCK else 1) if by_key else (2 if steps > _DENSE else 1)
    return -(-steps // multiple) * multiple


def _doubled(op: Ops, A: Tensor, X: Tensor, h: int, C: int) -> Tensor:
    """Return (I + A)^-1 for the strictly lower part of A, [..., C, C], where X is that of blocks of h on the
    diagonal: of blocks of 2h it is X - X (lower left blocks of A) X."""
    t, j = np.indices((C, C))
    while h < C:
        corner = (t // (2 * h) == j // (2 * h)) & (t // h % 2 == 1) & (j // h % 2 == 0)
        block = A * op.from_constant(literal(corner, op.dtype, "mask"))
        X = X - (block if h == 1 else X @ block @ X)
        h *= 2
    return X


def _segments(C: int) -> Array:
    """Return 1 for the steps s of each segment j < s <= t, else 0: [C * C, C], a row for each t and j."""
    t, j, s = np.indices((C, C, C))
    return np.asarray(((j < s) & (s <= t)).reshape(C * C, C), np.float32)


def _ends(C: int) -> Array:
    """Return 1 for the steps up to each t and with it, then for those after each t: [2 C, C]."""
    t, s = np.indices((C, C))
    return np.concatenate([s <= t, s > t]).astype(np.float32)


def _each_block(m: int, b: int) -> Array:
    """Return 1 for the steps of each of m blocks of b steps: [m, m * b]."""
    return np.kron(np.eye(m), np.ones((1, b)))


def _of_blocks(m: int) -> Array:
    """Return 1 for the blocks s between block j and block a, before a, and after a; then for all of them."""
    a, j, s = np.indices((m, m, m))
    between = ((j < s) & (s < a)).reshape(m * m, m)
    a, s = np.indices((m, m))
    return np.concatenate([between, s < a, s > a, np.ones((1, m))])


def _places(m: int, b: int, rows: int = 1) -> Array:
    """Return 1 where a step and a column belong to one of m blocks of b steps: [m * b * rows, m * b]."""
    return np.kron(np.eye(m), np.ones((b * rows, b)))
