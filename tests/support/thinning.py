"""Which of many parameters the default run leaves to the exhaustive one."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest


def thinned(parameters: Sequence[Any], keep: int) -> list[Any]:
    """Return the parameters, all but every `keep`-th marked exhaustive."""
    return [p if n % keep == 0 else exhaustive(p) for n, p in enumerate(parameters)]


def by_turns(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """Return every pair of two lists; the default run has each of the first with one of the second, by turns."""
    pairs = [
        (n, m, (*(a if isinstance(a, tuple) else (a,)), b))
        for n, a in enumerate(first)
        for m, b in enumerate(second)
    ]
    return [pair if n % len(second) == m else exhaustive(pair) for n, m, pair in pairs]


def exhaustive(parameter: Any) -> Any:
    """Return a parameter (a value, a tuple or what `pytest.param` gives) marked exhaustive."""
    if hasattr(parameter, "values") and hasattr(parameter, "marks"):
        return pytest.param(*parameter.values, id=parameter.id, marks=[*parameter.marks, pytest.mark.exhaustive])
    values = parameter if isinstance(parameter, tuple) else (parameter,)
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def rest_of_products(tests: Sequence[Any]) -> Iterator[Any]:
    """Yield those tests of a function that only repeat what others have: where it has several `parametrize`, those
    that stay have each value of each of them, by turns. With the mark `few` so many of them stay, at equal
    distances. All stay with the mark `every_pair`."""
    others = ("exhaustive", "every_pair", "clients")
    combined = [
        test for test in tests if hasattr(test, "callspec") and not any(map(test.get_closest_marker, others))
    ]
    if not combined:
        return
    columns = zip(*(test.callspec._idlist for test in combined), strict=True)
    values = [list(dict.fromkeys(column)) for column in columns]
    turns = {tuple(column[n % len(column)] for column in values) for n in range(max(map(len, values)))}
    stay = [test for test in combined if tuple(test.callspec._idlist) in turns]
    if few := combined[0].get_closest_marker("few"):
        stay = _spread(stay, *few.args)
    yield from (test for test in combined if test not in stay)


def _spread(items: list[Any], count: int) -> list[Any]:
    """Return so many of the items, at equal distances, the first among them."""
    return [items[n * len(items) // count] for n in range(count)] if len(items) > count else items
