"""Unique names for what is emitted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


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


@dataclass(frozen=True)
class Place:
    """Where in the equivalent of a recurrent node something is emitted; what is emitted there has its name.

    Attributes:
        names: The name generator of the model.
        node: The recurrent node's name.
        short: The last part of it, for names in unrolled steps: a thousand steps repeat it.
        part: The part of the equivalent, as "forward/"; "" for the whole.
        step: The number of the unrolled step; "" outside.
    """

    names: Names
    node: str
    short: str
    part: str = ""
    step: str = ""

    @classmethod
    def of(cls, names: Names, node: str) -> Place:
        path, _, last = node.rpartition("/")
        return cls(names, node, names.unique(last) if path and last else node)

    def inside(self, part: str) -> Place:
        return replace(self, part=f"{self.part}{part}/") if part else self

    def at(self, t: int) -> Place:
        return replace(self, step=f"{self.part}{t}")

    def name(self, hint: str) -> str:
        """Return a unique name for a node or a value."""
        start = f"{self.short}/{self.step}/" if self.step else f"{self.node}/{self.part}"
        return self.names.unique(f"{start}{hint}")

    def constant(self, hint: str) -> str:
        """Return a unique name for a constant, which steps share."""
        return self.names.unique(f"{self.node}/{self.part}{hint}")
