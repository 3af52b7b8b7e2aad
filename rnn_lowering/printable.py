"""Making text from a file or another program printable: one line, no control characters, limited length."""

from __future__ import annotations

NAME, LINE = 120, 800
"""The most characters that are shown of a name, and of a line."""


def printable(text: object, most: int = LINE) -> str:
    """Return text as one line. Control characters, line ends, marks that change the direction of writing and lone
    surrogates are escaped. If it has more than `most` characters, the middle is left out.
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
