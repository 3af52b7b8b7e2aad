"""What public documents and sources name of runtimes that were not run: data only, for table.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Documented:
    """The operators that a public document or source names.

    Attributes:
        source: A URL, or a repository and a path in it.
        date: Of the source.
        operators: Those of the default domain that it names as supported.
    """

    source: str
    date: str
    operators: frozenset[str]
