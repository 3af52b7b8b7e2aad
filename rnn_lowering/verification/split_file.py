"""A model with large tensors inside, as a small file and a data file, without reading it into memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import onnx

LARGE = 1 << 24
"""Files of fewer bytes are left as they are."""

_TENSOR = 1 << 16
"""Tensors of fewer bytes stay in the model."""

_ALIGNMENT = 64
_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_BYTES = 2
"""The wire type of messages, strings and bytes."""


class _Field(NamedTuple):
    """A field of a serialized message: where it begins, where its content begins, and where both end."""

    number: int
    wire_type: int
    start: int
    content: int
    end: int


def split_file(source: Path, path: Path) -> Path:
    """Return `source` or, where it is large, `path`, to which it is written with its large tensors in a data file.

    What is no model, or has external data already, is left to who reads it.
    """
    if source.stat().st_size < LARGE:
        return source
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as model:
        data = path.with_name(f"{path.name}.data")
        try:
            with data.open("wb") as out:
                path.write_bytes(_split_model(model, file, out, data.name))
        except (ValueError, IndexError):
            return source
    return path


def _split_model(model: mmap.mmap, file: BinaryIO, out: BinaryIO, location: str) -> bytes:
    fields = list(_fields(model, 0, len(model)))
    graphs = [field for field in fields if field.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].wire_type != _BYTES:
        raise ValueError("not a model with one graph")
    parts = []
    for field in _fields(model, graphs[0].content, graphs[0].end):
        small = field.end - field.start < _TENSOR
        if small or field.number != _INITIALIZER or field.wire_type != _BYTES:
            parts.append(_without_references(model[field.start : field.end]))
        else:
            tensor = _split_tensor(model, field, file, out, location)
            parts.append(_message(_INITIALIZER, tensor.SerializeToString()))
    rest = [_without_references(model[f.start : f.end]) for f in fields if f.number != _GRAPH]
    return b"".join((*rest, _message(_GRAPH, b"".join(parts))))


def _without_references(part: bytes) -> bytes:
    """Return a part that refers to no data file: those are relative to the folder of the source.

    Raises:
        ValueError: It may.
    """
    if b"location" in part:  # the key of every reference
        raise ValueError("it has external data already")
    return part


def _split_tensor(
    model: mmap.mmap, whole: _Field, file: BinaryIO, out: BinaryIO, location: str
) -> onnx.TensorProto:
    tensor, raw = onnx.TensorProto(), None
    for field in _fields(model, whole.content, whole.end):
        if field.number == _RAW_DATA and field.wire_type == _BYTES:
            raw = field
        else:
            tensor.MergeFromString(model[field.start : field.end])
    if tensor.external_data:
        raise ValueError("it has external data already")
    if raw is not None:
        out.write(bytes(-out.tell() % _ALIGNMENT))
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entries = {"location": location, "offset": out.tell(), "length": raw.end - raw.content}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        _copy(file, raw, out)
    return tensor


def _copy(file: BinaryIO, raw: _Field, out: BinaryIO) -> None:
    file.seek(raw.content)
    left = raw.end - raw.content
    while left > 0:
        block = file.read(min(left, 1 << 20))
        if not block:
            raise ValueError("it ended")
        out.write(block)
        left -= len(block)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[_Field]:
    """Yield the fields of a message.

    Raises:
        ValueError, IndexError: It is none.
    """
    while start < end:
        tag, content = _varint(data, start)
        wire_type = tag & 7
        if wire_type == 0:
            after = _varint(data, content)[1]
        elif wire_type == _BYTES:
            length, content = _varint(data, content)
            after = content + length
        elif wire_type in (1, 5):
            after = content + (8 if wire_type == 1 else 4)
        else:
            raise ValueError("a wire type that no model has")
        if after > end:
            raise ValueError("a field that is longer than its message")
        yield _Field(tag >> 3, wire_type, start, content, after)
        start = after


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
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


def _message(number: int, content: bytes) -> bytes:
    """Return a field that holds a message."""
    head = bytearray()
    for value in (number << 3 | _BYTES, len(content)):
        while value > 127:
            head.append(value & 127 | 128)
            value >>= 7
        head.append(value)
    return bytes(head) + content
