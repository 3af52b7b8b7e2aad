"""Tables that fit the terminal: columns that do not fit become lines below their row, and no name is cut."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from rich.cells import cell_len

from rnn_lowering.errors import NAME, printable

_GAP, _INDENT = 2, "     "
_UNSAID = ("", "any", "main graph")
"""Cells that need no line of their own."""


def width() -> int:
    """Return the columns of the terminal, or those that the variable COLUMNS names; 80 in a pipe."""
    return max(shutil.get_terminal_size((80, 24)).columns, 20)


@dataclass
class Table:
    """Rows under titles; the first column has names.

    Attributes:
        titles: The titles of the columns.
        folds: The titles of the columns that become lines below the rows if the table is too wide, the first first.
        rows: The cells of each row, and its style for rich.

    Examples:
        >>> from rnn_lowering.cli.tables import Table
        >>> table = Table(("node", "form", "why"), folds=("why",))
        >>> table.add("/lstm/LSTM", "refused", "the sequence length is not known")
        >>> print(*(text for text, _ in table.lines(40)), sep="|")
         node        form| /lstm/LSTM  refused|     why: the sequence length is not|     known
    """

    titles: Sequence[str]
    folds: Sequence[str] = ()
    rows: list[tuple[list[str], str]] = field(default_factory=list)

    def add(self, *cells: object, style: str = "") -> None:
        """Add a row; text from a model is shortened and control characters are escaped."""
        self.rows.append(([printable(cell, 3 * NAME) for cell in cells], style))

    def lines(self, columns: int) -> list[tuple[str, str]]:
        """Return the lines of the table with their styles, for a terminal of so many columns."""
        kept = list(range(len(self.titles)))
        folded: list[int] = []
        longest = columns
        for title in (None, *self.folds):
            if title is not None:
                kept.remove(self.titles.index(title))
                folded.append(self.titles.index(title))
            if sum(self._widths(kept, longest)) + _GAP * len(kept) - 1 <= columns:
                break
        else:
            longest = columns // 3  # longer names have lines of their own
        widths = self._widths(kept, longest)
        lines = [(_row([self.titles[n] for n in kept], widths), "")]
        for cells, style in self.rows:
            lines += [(line, style) for line in self._lines(cells, kept, sorted(folded), widths, columns)]
        return lines

    def _widths(self, kept: Sequence[int], longest: int) -> list[int]:
        """Return the width of each column that is kept; a name longer than `longest` takes none."""
        cells = [self.titles, *(row for row, _ in self.rows)]
        return [
            max(size for row in cells if (size := cell_len(row[n])) <= longest or n or row is self.titles)
            for n in kept
        ]

    def _lines(
        self, cells: list[str], kept: Sequence[int], folded: Sequence[int], widths: Sequence[int], columns: int
    ) -> list[str]:
        shown = [cells[n] for n in kept]
        lines = []
        if cell_len(shown[0]) > widths[0]:
            lines, shown[0] = _wrapped(shown[0], " ", columns), ""
        lines.append(_row(shown, widths))
        said = "; ".join(f"{self.titles[n]}: {cells[n]}" for n in folded if cells[n] not in _UNSAID)
        return [*lines, *_wrapped(said, _INDENT, columns)]


def _wrapped(text: str, indent: str, columns: int) -> list[str]:
    """Return a text as lines that fit, but for words that do not."""
    parts = wrap(text, columns - len(indent), break_long_words=False, break_on_hyphens=False)
    return [indent + part for part in parts]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (size - cell_len(cell)) for cell, size in zip(cells, widths, strict=True)]
    return f" {(' ' * _GAP).join(padded)}".rstrip()
