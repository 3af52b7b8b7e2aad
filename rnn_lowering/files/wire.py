"""Protobuf's wire format: the fields of a serialized message, found without parsing what they hold."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

BYTES = 2
"""The wire type of messages, strings and bytes."""

Buffer = mmap.mmap | bytes


class Field(NamedTuple):
    """A field of a serialized message: where it begins, where its content begins, and where both end."""

    number: int
    wire_type: int
    start: int
    content: int
    end: int


def fields(data: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message between two positions.

    Raises:
        ValueError, IndexError: There is none.
    """
    while start < end:
        tag, content = _varint(data, start)
        wire_type = tag & 7
        if wire_type == 0:
            after = _varint(data, content)[1]
        elif wire_type == BYTES:
            length, content = _varint(data, content)
            after = content + length
        elif wire_type in (1, 5):
            after = content + (8 if wire_type == 1 else 4)
        else:
            raise ValueError("a wire type that no model has")
        if after > end:
            raise ValueError("a field that is longer than its message")
        yield Field(tag >> 3, wire_type, start, content, after)
        start = after


def head(number: int, size: int) -> bytes:
    """Return what precedes the content of a field that holds so many bytes."""
    written = bytearray()
    for value in (number << 3 | BYTES, size):
        while value > 127:
            written.append(value & 127 | 128)
            value >>= 7
        written.append(value)
    return bytes(written)


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
