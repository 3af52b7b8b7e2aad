"""Text from a file or another program, such that it can be printed: one line, no control characters, not long."""

from __future__ import annotations

NAME, LINE = 120, 800
"""The most characters that are shown of a name, and of a line."""


def printable(text: object, most: int = LINE) -> str:
    """Return a text on one line. What cannot be printed is escaped: control characters, line ends, marks that turn
    the direction of writing, lone surrogates. Of more than `most` characters the middle is left out.
    """
    whole = str(text)
    if len(whole) <= most:
        return _escaped(whole)
    left_out = f"...({len(whole) - most:,} characters)..."
    return _escaped(whole[: most - most // 3]) + left_out + _escaped(whole[len(whole) - most // 3 :])


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
