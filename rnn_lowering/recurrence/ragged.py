"""sequence_lens, once for all folds: rows are picked before and after, so that a step knows nothing of lengths.

A row is one of t*batch + n. A recurrence runs over all steps, whatever comes of those beyond a length, which may
be NaN: the outputs are then picked from its rows and one of zeros behind them. In reverse each sequence is turned
within its length before, and its outputs are turned back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.sizes import steps
from rnn_lowering.emit.tensors import Tensor
from rnn_lowering.recurrence.folds import Fold, Step, Tensors

_INT64 = ir.DataType.INT64


@dataclass(frozen=True)
class Lengths:
    """Which rows are where; the row of zeros is number seq*batch.

    Attributes:
        turned: The rows of each sequence from its last to its first, those beyond at their places [seq, batch].
        within: Each row within the lengths at its place, that of zeros beyond them [seq, batch].
        last: The row of each sequence's last step; that of zeros for length 0 [1, batch].
    """

    turned: Tensor
    within: Tensor
    last: Tensor

    def turn(self, op: Ops, x: Tensor) -> Tensor:
        """Reverse each sequence within its length: [seq, ..., batch, hidden], the same shape."""
        rows = op.take(op.flatten(x), self.turned)
        return op.unsqueeze(rows, [1]) if x.rank == 4 else rows

    def cut(self, op: Ops, y: Tensor) -> Tensor:
        """Let rows beyond the lengths be zero: [seq, 1, batch, hidden], the same shape."""
        return op.unsqueeze(op.take(_with_zeros(op, y), self.within), [1])

    def final(self, op: Ops, states: Tensor) -> Tensor:
        """The state after each sequence's last step: [seq, 1, batch, hidden] -> [1, batch, hidden]."""
        return op.take(_with_zeros(op, states), self.last)


def _with_zeros(op: Ops, y: Tensor) -> Tensor:
    """The rows of [seq, 1, batch, hidden] and one of zeros. Not shared by two that pick: rknn rejects that."""
    return op.concat([op.flatten(y), op.zero((1, y.shape[-1]))], axis=0)


def read_lengths(op: Ops, lengths: Tensor, seq: Tensor, batch: Tensor) -> Lengths | None:
    """Return where rows are; None where all lengths are known to be seq (or more, which counts as seq).

    Args:
        lengths: int32 [batch].
        seq, batch: int64 [1].
    """
    t = op.unsqueeze(steps(op, seq), [1])  # [seq, 1]
    n = op.unsqueeze(steps(op, batch), [0])  # [1, batch]
    given = op.unsqueeze(op.cast(lengths, _INT64), [0])  # [1, batch]
    L = seq - op.cast(op.less(given, seq), _INT64) * (seq - given)
    within = op.less(t, L)
    if op.is_true(within):
        return None
    inside, zeros, place = op.cast(within, _INT64), seq * batch, t * batch + n
    some = op.cast(op.less(op.constant([0]), L), _INT64)
    one = op.constant([1])
    found = Lengths(
        turned=place + inside * (L - t - t - one) * batch,
        within=zeros + inside * (place - zeros),
        last=zeros + some * ((L - one) * batch + n - zeros),
    )
    op.name(row=place, turned=found.turned, within=found.within, last=found.last)
    return found


def ragged(fold: Fold, lengths: Lengths, wanted: Sequence[bool]) -> Fold:
    """Let a fold, of sequences of these lengths, give the final states that are wanted."""

    def fold_ragged(
        op: Ops, step: Step, init: Sequence[Tensor], xs: Sequence[Tensor], reverse: bool
    ) -> tuple[Tensors, Tensors]:
        places: list[int] = []

        def stacking(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            new, ys = step(states, rows)
            stacked = list(dict.fromkeys([*ys, *(s for s, want in zip(new, wanted, strict=True) if want)]))
            places[:] = [stacked.index(y) for y in ys] + [
                stacked.index(s) if want else -1 for s, want in zip(new, wanted, strict=True)
            ]
            return new, stacked

        rows = [lengths.turn(op, x) for x in xs] if reverse else xs
        final, stacked = fold(op, stacking, init, rows, False)
        count = len(places) - len(final)
        ys = [lengths.cut(op, stacked[place]) for place in places[:count]]
        finals = [
            s if place < 0 else lengths.final(op, stacked[place])
            for s, place in zip(final, places[count:], strict=True)
        ]
        return finals, [lengths.turn(op, y) for y in ys] if reverse else ys

    return fold_ragged
