"""Names of values and nodes."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Names that are unique in the whole model: a body must not shadow a name of an outer scope."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def unique(self, hint: str) -> str:
        """Return `hint`, or `hint_1`, `hint_2`, ... where it is taken."""
        name, count = hint, self._next.get(hint, 0)
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._next[hint] = count
        self._taken.add(name)
        return name
