"""`RunSizes`: the axes of a run that stand for open ones, and how far their rows are moved.

A graph may move the rows of an open axis by a few, count them from the other end, or choose them by a counter or a
length. If all moves in a row are by at most D, what becomes of a row depends on which of the first D + 1 it is,
which of the last D + 1 (if sequences have lengths, also of those beside the end of its own), or that it is
another; and on whether such rows are the same one, which they are at small sizes. So a run at each small size and
at one where all kinds are there shows every size. What could tell of a row whether there are others is refused:
sums and extremes over an open axis.

So each size is told from all others: an operator that makes an axis says whether it is open, and a number that is
two sizes is refused.

| moves | how far |
|---|---|
| Slice, Gather | the number without size, counter and length, beyond how far the rows and the indices were moved |
| Concat | the rows of constants in front; those behind, once rows are counted from the end |
| Reshape | none: it joins axes, or takes apart what it joined, in the same order |
| all others | none: they take their inputs row by row |
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, combinations
from typing import Any

from rnn_lowering.compare.proof.polynomials import UnprovenError
from rnn_lowering.compare.proof.sizes import (
    LENGTH,
    Form,
    SymbolicSize,
    Symbols,
    bound,
    check_plain,
    in_units,
    is_counted,
    sized,
)
from rnn_lowering.types import Array

_UNBOUNDED = 2**31 - 1
"""A bound of a Slice from here on means the end."""

_MOST_CHOICES = 3
"""So often in a row a counter or a length may choose rows."""

Moves = Counter[str]
"""How far rows are moved along the axis of each open size; `CHOSEN`: how often one is chosen by a counter."""

CHOSEN = ""

_END = " from the end"
"""Behind the name of a size: how many rows came behind. They move others only from the end."""


class SizesMeetError(UnprovenError):
    """One number is two sizes of a run: at others it may not be."""


class RunSizes:
    """The sizes of axes in a run at sizes that no constant of the models has.

    Args:
        sizes: Those that are open, by name; the number of a product of two is none of them either.
        fixed: The sizes and integers of the models; None if nothing is open.

    Attributes:
        fixed: The same, with the sizes that follow from them.
        farthest: How far rows were moved in the run.
    """

    def __init__(self, sizes: Mapping[str, int], fixed: frozenset[int] | None) -> None:
        self.fixed = None if fixed is None else set(fixed)
        self.farthest = Moves()
        self._parts: dict[int, tuple[int, ...]] = {}
        self._forms: dict[int, Form] = {value: {(name,): 1} for name, value in sizes.items()}
        self._names = set(sizes)
        self._is_one_to_one = True
        for (a, m), (b, n) in combinations(sorted(sizes.items()), 2):
            self._is_one_to_one &= m != n and m * n not in self._forms
            self._forms[m * n] = {(a, b): 1}
        self._open: dict[int, Hashable] = {size: symbols for size, form in self._forms.items() for symbols in form}

    @property
    def are_clear(self) -> bool:
        """Whether no size that is open is another or the product of two, or one of those that are not."""
        return self._is_one_to_one and self.fixed is not None and self.fixed.isdisjoint(self._forms)

    def is_apart(self, moves: Moves) -> bool:
        """Whether no open size becomes another by rows that come and go, and by one of zeros."""
        near = self._near(moves, 1)
        for size, meaning in self._open.items():
            if any(size in near[known] and meaning not in form for known, form in self._forms.items()):
                return False
        return len(set(chain.from_iterable(near.values()))) == sum(map(len, near.values()))

    def _near(self, moves: Moves, least: int = 0) -> dict[int, range]:
        """Return what each open size becomes by rows that come and go, at least so many; those behind come only."""
        near = {}
        for known, form in self._forms.items():
            (symbols,) = form
            gone, behind = (sum(moves[name + end] for name in symbols) for end in ("", _END))
            near[known] = range(known - gone, known + max(gone + behind, len(symbols) - 1, least) + 1)
        return near

    def is_open(self, size: int) -> bool:
        """Whether an axis of this size is open."""
        return self.fixed is not None and size not in self.fixed

    def of(self, size: int) -> int:
        """Return a size of an array as what it is at every size."""
        if not self.is_open(size):
            return size
        if size not in self._forms:
            raise UnprovenError("a size is not one of the input's")
        return sized(size, self._forms[size])

    def closed(self, *sizes: int) -> None:
        """Note sizes of axes that follow from no open one.

        Raises:
            SizesMeetError: An open one is as large.
        """
        if self.fixed is not None and not self.fixed.issuperset(sizes):
            self.fixed.update(sizes)
            if not self.fixed.isdisjoint(self._open):
                raise SizesMeetError("a size cannot be told from a constant")

    def opened(self, size: int, meaning: Hashable) -> None:
        """Note the size of an axis that follows from open ones: from which, or how.

        Raises:
            SizesMeetError: Another is as large.
        """
        if self.fixed is None or size <= 1:
            return
        own = [symbols for _, symbols in self._own(size)]
        if size in self.fixed or self._open.setdefault(size, meaning) != meaning or (own and meaning not in own):
            raise SizesMeetError("a size cannot be told from a constant")

    def made(self, size: int) -> None:
        """Note the size of an axis that a graph computed."""
        if isinstance(size, SymbolicSize):
            check_plain(size)
            symbols = sorted(size.form.keys() - {()})
            self.opened(size, symbols[0] if len(symbols) == 1 else tuple(symbols))
        elif size > 1:
            self.closed(size)

    def sliced(self, before: int, after: int, *bounds: int) -> None:
        """Note how many rows are left of so many: by how much it is longer or shorter was noted."""
        own, others = (
            [(symbols, self._unit(known)) for known, symbols in self._own(size)] for size in (before, after)
        )
        are_plain = not any(isinstance(bound, SymbolicSize) for bound in bounds)
        if not self.is_open(before) or (are_plain and own and own != others):
            self.closed(after)  # so many from one end
        elif after != before:
            self.opened(after, own[0][0] if own and own == others else ("part", self._open.get(before)))

    def joined(self, sizes: Sequence[int], size: int) -> None:
        """Note how long an axis is to which rows of so long ones were joined."""
        meanings = [self._open.get(part) for part in sizes if self.is_open(part)]
        if meanings:
            self.opened(size, meanings[0] if len(meanings) == 1 else ("sum", *sorted(map(str, meanings))))
        else:
            self.closed(size)

    def check_known(self, array: Array) -> None:
        """Raise if it is not known of an axis whether it is open."""
        if self.fixed is not None and not all(size in self.fixed or size in self._open for size in array.shape):
            raise UnprovenError("a size is not one of the input's")

    # Moves

    def noted(self, moves: Moves) -> bool:
        """Note how far rows are moved; return whether they are.

        Raises:
            UnprovenError: Counters choose rows too often for few sizes to show what they choose.
        """
        if moves:
            self.farthest |= moves
        if moves[CHOSEN] > _MOST_CHOICES:
            raise UnprovenError("counters choose rows of chosen rows too often")
        return any(moves.values())

    @staticmethod
    def from_the_end(moves: Moves) -> Moves:
        """Return how far rows are moved that are counted from the end."""
        return moves + Moves({name.removesuffix(_END): far for name, far in moves.items() if name.endswith(_END)})

    def chosen(self, size: int, *numbers: Any, past: int = 0, alone: bool = False) -> Moves:
        """Return how far numbers move rows of an axis that they choose.

        Args:
            past: How far a number is past the row that it means: 1 for an end, -1 for one of rows in reverse.
            alone: Whether each chooses one row.

        Raises:
            UnprovenError: They choose in a way that few sizes do not show.
        """
        moves = Moves()
        for value in numbers:
            if isinstance(value, SymbolicSize):
                moves |= self._moved_by(size, value, past, alone)
            elif self.is_open(size) and abs(int(value)) < _UNBOUNDED:
                row = int(value) - past
                moves |= self.beside(size, row if row >= 0 else -row - 1)
        return moves

    def _moved_by(self, size: int, value: SymbolicSize, past: int, alone: bool) -> Moves:
        """Return how far a number that follows from sizes moves rows, whichever open size the axis has."""
        if not self.is_open(size):
            raise UnprovenError("a size chooses a row of a constant")
        reason, found = "a size chooses rows of an axis of another size", list[Moves]()
        for known, symbols in self._own(size):  # one, where open sizes are apart
            try:
                if self._unit(known) > 1 and not alone:
                    raise UnprovenError("rows of an axis that was joined are sliced")
                form = in_units(value.form, self._unit(known))
                found.append(self._moved_along(known, symbols, form, past))
            except UnprovenError as error:
                reason = str(error)
        if not found:
            raise UnprovenError(reason)
        return reduce(Moves.__or__, found)

    def _moved_along(self, size: int, own: Symbols, form: Form, past: int) -> Moves:
        """Return what is left of a number without the size of the axis, without counters and lengths, and, if it is
        no end, without the 1 between a length and its last row."""
        units = self._units(size, own)
        rest, counted, has_end = Moves(), Counter[tuple[str, bool]](), False
        for symbols, count in form.items():
            of_sizes = tuple(name for name in symbols if not is_counted(name))
            has_end |= count > 0 and (symbols == own or any(name.startswith(LENGTH) for name in symbols))
            if of_sizes not in units and symbols != own:
                raise UnprovenError("a size chooses rows of an axis of another size")
            if of_sizes == symbols != own:
                rest[units[symbols]] = count
            counters = list(filter(is_counted, symbols))
            if len(counters) > 1:
                raise UnprovenError("a product of counters chooses a row")
            for name in counters:
                counted[units[of_sizes], name.startswith(LENGTH)] += abs(count)
                if bound(name) != units[of_sizes]:
                    raise UnprovenError("a counter chooses rows of an axis of another size")
        if any(count > 1 for count in counted.values()):
            raise UnprovenError("several counters choose a row")
        rest[units.get((), own[0])] += min(past, 0)
        ends = [name for name, far in rest.items() if far < 0][: has_end and not past]
        moves = Moves({name: abs(far) - (name in ends) for name, far in rest.items()})
        for name in set(own) - {units.get(())} if units else ():
            moves[name] += moves[units[()]]  # behind the last row of the second comes a row of the next
        return moves | Moves({CHOSEN: bool(counted)})

    def _unit(self, size: int) -> int:
        """Return how many rows of an axis are one of the open size that it was joined of."""
        parts = self._parts.get(size, ())
        return parts[-1] if len(parts) == 3 else 1

    def _units(self, size: int, own: Symbols) -> dict[Symbols, str]:
        """Return which size of an axis a row, or so many as a size, goes along: of two that were joined, a row goes
        along the second, and so many as that has along the first. None of two of which that is not known."""
        if len(own) == 1:
            return {(): own[0]}
        names = [symbols for part in self._parts.get(size, ()) for symbols in self._forms.get(part, ())]
        if len(names) != 2:
            return {}
        (first,), (second,) = names
        return {(): second, (second,): first}

    def _own(self, size: int) -> list[tuple[int, Symbols]]:
        """Return which open sizes an axis may have that is as long, or longer or shorter by what came and went."""
        near = self._near(self.farthest)
        return [(known, s) for known, form in self._forms.items() if size in near[known] for s in form]

    def beside(self, size: int, rows: int) -> Moves:
        """Return how far other rows are moved by rows that come or go in front of them."""
        names = {name for _, symbols in self._own(size) for name in symbols}
        return Moves(dict.fromkeys(names or self._names, rows))

    def behind(self, size: int, rows: int) -> Moves:
        """Return how far other rows are moved, from the end, by rows that come behind them."""
        return Moves({name + _END: far for name, far in self.beside(size, rows).items()})

    # Reshape

    def check_order(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Raise if a Reshape takes an open axis apart into others than it was made of, or in another order."""
        if self.fixed is None or 0 in before:
            return
        rest = [list(before), list(after)]
        while any(rest):
            groups = [[sizes.pop(0)] if sizes else [1] for sizes in rest]
            while (products := list(map(math.prod, groups))) and products[0] != products[1]:
                shorter = products.index(min(products))
                groups[shorter].append(rest[shorter].pop(0))
            self._check_group(*groups)

    def _check_group(self, before: Sequence[int], after: Sequence[int]) -> None:
        if not any(map(self.is_open, before)):
            self.closed(*after)
            return
        for one, other in ((before, after), (after, before)):
            joined = [size for size in one if size != 1]
            if len(joined) == 1 and self.is_open(joined[0]) and joined != [size for size in other if size != 1]:
                parts = self._parts.setdefault(joined[0], tuple(self._expanded(other)))
                if len(parts) == 3 and 1 in parts[::2] and parts[1] in self._forms:  # one, so many times
                    form = {s: n * parts[0] * parts[2] for s, n in self._forms[parts[1]].items()}
                    if self._forms.setdefault(joined[0], form) != form:
                        raise SizesMeetError("a size cannot be told from another")
                self.opened(joined[0], self._meaning_of(parts[1::2]))
        if self._expanded(before) != self._expanded(after):
            raise SizesMeetError("a Reshape takes an open axis apart in another order")
        for size in after:
            if self.is_open(size) and size not in self._open:
                self.opened(size, ("part", *map(self._open.get, before)))

    def _meaning_of(self, sizes: Sequence[int]) -> Hashable:
        """Return from which open sizes one follows that is a product of so large ones."""
        meanings = [self._open.get(size) for size in sizes]
        if any(size not in self._forms for size in sizes):
            return meanings[0] if len(meanings) == 1 else ("product", *map(str, meanings))
        return tuple(sorted(name for size in sizes for (symbols,) in [self._forms[size]] for name in symbols))

    def _expanded(self, shape: Iterable[int]) -> list[int]:
        """Return the open sizes that axes are made of, and the products of the sizes between them."""
        sizes = [1]
        for part in chain.from_iterable(self._parts.get(size, (size,)) for size in shape):
            if self.is_open(part):
                sizes += [part, 1]
            else:
                sizes[-1] *= part
        return sizes
