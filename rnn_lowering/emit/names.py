"""Unique names for the values and nodes that are emitted."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Names that are unique in the whole model: a body must not shadow a name of an outer scope."""

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def unique(self, hint: str) -> str:
        """Return `hint`, or `hint_1`, `hint_2`, ... where it is used already."""
        name, count = hint, self._next.get(hint, 0)
        while name in self._used:
            count += 1
            name = f"{hint}_{count}"
        self._next[hint] = count
        self._used.add(name)
        return name
