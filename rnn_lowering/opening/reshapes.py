"""How a Reshape with numbers is read once sizes of its input are open: which numbers grow with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from itertools import product as combinations

from rnn_lowering.facts.size import Shape, Size, Symbol, product, size

Sizes = Mapping[Symbol, int]
"""By symbol, the size that the model was exported with."""


def read_reshape(before: Shape, numbers: Sequence[int], exported: Sizes) -> list[Shape]:
    """Return the sizes that a Reshape may give, with each open size where it can be: one shape for each reading.

    Both shapes are cut into the smallest parts with equal numbers of elements: an axis stays in its part, since no
    frame becomes part of another.

    Args:
        before: The shape of its input.
        numbers: The target, in which 0 is a size of the input and -1 what is left.
        exported: The sizes that the model was exported with.
    """
    was = [int(dim.at(exported)) for dim in before]
    now = [was[n] if number == 0 and n < len(was) else number for n, number in enumerate(numbers)]
    if -1 in now:
        now[now.index(-1)] = math.prod(was) // max(math.prod(n for n in now if n != -1), 1)
    parts = [
        _read_part([before[n] for n in given], [now[n] for n in target], exported)
        for given, target in _parts_of_reshape(was, now)
    ]
    return [tuple(chain(*reading)) for reading in combinations(*parts)]


def _parts_of_reshape(was: Sequence[int], now: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Yield the axes of the input and of the target of each part."""
    i = j = 0
    while i < len(was) or j < len(now):
        first, second = i, j
        ones = _ones(was, i), _ones(now, j)
        if all(ones):  # axes of size 1 stand for themselves if there are as many, else for each other
            each = 1 if ones[0] == ones[1] else max(ones)
            i, j = min(i + each, i + ones[0]), min(j + each, j + ones[1])
            yield range(first, i), range(second, j)
            continue
        i, j = min(i + 1, len(was)), min(j + 1, len(now))
        while math.prod(was[first:i]) != math.prod(now[second:j]):
            if j == len(now) or (i < len(was) and math.prod(was[first:i]) < math.prod(now[second:j])):
                i += 1
            else:
                j += 1
        yield range(first, i), range(second, j)


def _ones(sizes: Sequence[int], start: int) -> int:
    end = start
    while end < len(sizes) and sizes[end] == 1:
        end += 1
    return end - start


def _read_part(dims: Sequence[Size], target: Sequence[int], exported: Sizes) -> list[list[Size]]:
    """Return the sizes that a part may have: its open sizes are factors of one number each."""
    total = product(dims)
    symbols = sorted(total.symbols, key=str)
    if not symbols:
        return [[size(number) for number in target]]
    if len(target) == 1:
        return [[total]]
    readings = []
    for places in combinations(range(len(target)), repeat=len(symbols)):
        held = [[s for s, place in zip(symbols, places, strict=True) if place == n] for n in range(len(target))]
        grown = [product(map(Size.symbol, each)) for each in held]
        factors = [number / each.at(exported) for number, each in zip(target, grown, strict=True)]
        sizes = [each * factor for each, factor in zip(grown, factors, strict=True)]
        if all(factor.denominator == 1 for factor in factors) and product(sizes) == total:
            readings.append(sizes)
    return readings
