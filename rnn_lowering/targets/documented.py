"""Runtimes that are known from public documents only, listed in documented.json.

An operator is listed only if its source names it as supported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Documented:
    """The operators that a public document or source lists.

    Attributes:
        source: A URL, or a repository on GitHub and a path in it.
        date: Of the source.
        named: The operators of the default domain that it names as supported, separated by white space.
        left_out: Named operators that count as unsupported, each with the limit that the document names.
        unchecked: Limits that the document names and a lowering does not check.

    Examples:
        >>> rl.TARGETS["tensorrt"].documented.source
        'onnx/onnx-tensorrt: docs/operators.md'
    """

    source: str
    date: str
    named: str
    left_out: tuple[tuple[str, str], ...] = ()
    unchecked: str = ""

    @property
    def operators(self) -> frozenset[str]:
        """The operators that may be emitted."""
        return frozenset(self.named.split()) - {operator for operator, _ in self.left_out}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Documented:
        """Return the operators in a row of `rows`."""
        left_out = tuple(row.get("left_out", {}).items())
        return cls(row["source"], row["date"], " ".join(row["operators"]), left_out, row.get("unchecked", ""))


def rows() -> list[dict[str, Any]]:
    """Return the rows of documented.json: name, other_names, version, forms, limits (attributes of `Target`),
    source, date, operators, left_out, unchecked; constant_minus is false where that runs in software."""
    found: list[dict[str, Any]] = json.loads(files(__package__).joinpath("documented.json").read_text("utf-8"))
    return found
