"""Apply sequence_lens outside of the loop: gather rows before and after it, so steps need no lengths.

Row t*batch + n of [seq*batch, ...] is step t of sequence n. The recurrence runs over all steps. Steps beyond the
length of a sequence may compute anything, even NaN, so the outputs are gathered: from the computed rows, and from a
row of zeros after them. In reverse each sequence is reversed within its length before, and its outputs after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rnn_lowering.emit.composites import count
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.forms import Recurrence, Repeat, Tensors


@dataclass(frozen=True)
class Lengths:
    """Numbers of rows, of the type for indices; row seq*batch is a row of zeros.

    Attributes:
        reversed: [seq, batch]: the rows of each sequence in reverse order; beyond its length, in their own order.
        within: [seq, batch]: each row within the length of its sequence; beyond it, the row of zeros.
        last: [1, batch]: the row of the last step of each sequence; for length 0, the row of zeros.
        alive: bool [seq, batch, 1]: whether a step is within the length of its sequence.
        any_alive: bool [seq, 1]: whether a step is within any length.
    """

    reversed: Tensor
    within: Tensor
    last: Tensor
    alive: Tensor
    any_alive: Tensor

    def reverse(self, op: Ops, x: Tensor) -> Tensor:
        """Reverse each sequence of x [seq, ..., batch, hidden] within its length; the shape stays."""
        rows = op.take(op.flatten(x), self.reversed)
        return op.unsqueeze(rows, [1]) if x.rank == 4 else rows

    def mask(self, op: Ops, y: Tensor) -> Tensor:
        """Replace rows of y [seq, 1, batch, hidden] beyond the lengths by zeros; the shape stays."""
        return op.unsqueeze(op.take(_with_zeros(op, y), self.within), [1])

    def final(self, op: Ops, states: Tensor) -> Tensor:
        """Return the state after each sequence's last step: [seq, 1, batch, hidden] -> [1, batch, hidden]."""
        return op.take(_with_zeros(op, states), self.last)


def _with_zeros(op: Ops, y: Tensor) -> Tensor:
    """Return the rows of [seq, 1, batch, hidden] and a row of zeros: [seq*batch + 1, hidden]."""
    return op.concat([op.flatten(y), op.zero((1, y.shape[-1]))], axis=0)


def read_lengths(op: Ops, lengths: Tensor, seq: Tensor, batch: Tensor) -> Lengths | None:
    """Return the rows for sequence_lens; None if all lengths are known to be seq (or more, which counts as seq).

    Args:
        lengths: int32 [batch].
        seq, batch: int64 [1].
    """
    index = op.dialect.index_type
    t = op.cast(op.unsqueeze(count(op, seq), [1]), index)  # [seq, 1]
    n = op.cast(op.unsqueeze(count(op, batch), [0]), index)  # [1, batch]
    length = op.unsqueeze(op.cast(lengths, index), [0])  # [1, batch]
    seq, batch, one = op.cast(seq, index), op.cast(batch, index), op.constant([1], index)
    L = seq - op.cast(op.less(length, seq), index) * (seq - length)
    within = op.less(t, L)
    if within.is_true:
        return None
    inside, zero_row, row = op.cast(within, index), seq * batch, t * batch + n
    not_empty = op.cast(op.less(op.constant([0], index), L), index)
    rows = Lengths(
        reversed=row + inside * (L - t - t - one) * batch,
        within=zero_row + inside * (row - zero_row),
        alive=op.unsqueeze(within, [2]),
        any_alive=op.less(t, op.largest(L)),
        last=zero_row + not_empty * ((L - one) * batch + n - zero_row),
    )
    op.name(row=row, reversed=rows.reversed, within=rows.within, last=rows.last)
    return rows


def ragged(repeat: Repeat, lengths: Lengths, wanted: Sequence[bool]) -> Repeat:
    """Return a form for sequences of these lengths.

    Args:
        repeat: The form for sequences of full length.
        lengths: Numbers of rows.
        wanted: By state, whether its final value is needed.
    """

    def repeat_ragged(op: Ops, r: Recurrence) -> tuple[Tensors, Tensors]:
        places: list[int] = []

        def stacking(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            new, ys = r.step(states, rows)
            all_of_step = [*ys, *(s for s, want in zip(new, wanted, strict=True) if want)]
            stacked = list(dict.fromkeys(all_of_step))
            places[:] = map(stacked.index, all_of_step)
            return new, stacked

        rows = [lengths.reverse(op, x) for x in r.xs] if r.reverse else r.xs
        final, stacked = repeat(op, Recurrence(r.init, rows, stacking))
        of_ys = len(places) - sum(wanted)
        ys = [lengths.mask(op, stacked[place]) for place in places[:of_ys]]
        ends = (lengths.final(op, stacked[place]) for place in places[of_ys:])
        final = [next(ends) if want else s for s, want in zip(final, wanted, strict=True)]
        return final, [lengths.reverse(op, y) for y in ys] if r.reverse else ys

    return repeat_ragged


def up_to_longest(op: Ops, X: Tensor, lengths: Lengths) -> Tensor:
    """Return X [seq, batch, input] with zeros, which change no range, for the steps that no sequence has."""
    return op.where(op.unsqueeze(lengths.any_alive, [1]), X, op.constant(0.0))


def with_ended_rows(op: Ops, r: Recurrence, lengths: Lengths, *, zeros: bool) -> Recurrence:
    """Return a recurrence in which rows beyond their lengths enter the next step as zeros, or hold their state.

    DynamicQuantizeLSTM quantizes H of all rows with one range, so ended rows matter. Its kernel uses zeros if the
    node has an output Y, otherwise the state. (Without Y it reads unset memory for a row of length 0; here that row
    keeps its state.)
    """

    def ended(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        *xs, alive = rows
        new, ys = r.step(states, xs)
        after_end: Sequence[Tensor] = [op.constant(0.0)] * len(new) if zeros else states
        pairs = ((n, op.constant(0.0) if a.is_zero else a) for n, a in zip(new, after_end, strict=True))
        new = [op.where(alive, n, a) for n, a in pairs]
        return new, [new[0]] if ys else []

    return replace(r, xs=[*r.xs, lengths.alive], step=ended)
