"""Read and write a model in one file without loading its large tensors.

On reading, a large tensor becomes a reference into the file. On writing, its bytes are streamed to the place where
protobuf would put them: the file is the same, byte for byte.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import onnx
import onnx_ir as ir

from rnn_lowering.files.data_folders import ALIGNMENT, external_entries, is_parameter, refer
from rnn_lowering.model.protobuf import to_message

BYTES = 2
"""The wire type of messages, strings and bytes."""

Buffer = mmap.mmap | bytes


class Field(NamedTuple):
    """The position of a field in a serialized message: its start, the start of its content, and its end."""

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


def tag_and_length(number: int, size: int) -> bytes:
    """Return the tag and length that precede a field's content of `size` bytes."""
    written = bytearray()
    for value in (number << 3 | BYTES, size):
        while value > 127:
            written.append(value & 127 | 128)
            value >>= 7
        written.append(value)
    return bytes(written)


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


LARGE = 1 << 24
"""Smaller models are parsed and serialized whole."""

TENSOR_BYTES = 1 << 16
"""Smaller tensors stay in the message."""

SHARE = 4
"""A file is parsed whole if more than a quarter of its bytes are outside of large tensors."""

_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_AROUND = {"dims", "data_type", "name", "doc_string", "metadata_props", "data_location"}
"""The fields that a tensor may have besides its bytes."""

_INNER: dict[type, dict[int, type]] = {
    onnx.ModelProto: {
        onnx.ModelProto.GRAPH_FIELD_NUMBER: onnx.GraphProto,
        onnx.ModelProto.FUNCTIONS_FIELD_NUMBER: onnx.FunctionProto,
    },
    onnx.FunctionProto: {onnx.FunctionProto.NODE_FIELD_NUMBER: onnx.NodeProto},
    onnx.GraphProto: {
        onnx.GraphProto.NODE_FIELD_NUMBER: onnx.NodeProto,
        onnx.GraphProto.INITIALIZER_FIELD_NUMBER: onnx.TensorProto,
    },
    onnx.NodeProto: {onnx.NodeProto.ATTRIBUTE_FIELD_NUMBER: onnx.AttributeProto},
    onnx.AttributeProto: {
        onnx.AttributeProto.G_FIELD_NUMBER: onnx.GraphProto,
        onnx.AttributeProto.GRAPHS_FIELD_NUMBER: onnx.GraphProto,
    },
}
"""The fields that lead to the initializers of a model and of the bodies in it, and the messages that they hold."""

_Piece = bytes | ir.TensorProtocol
"""A part of a serialized message: bytes, or a tensor whose bytes go there."""


def known_format(path: Path) -> str | None:
    """Return the format of a model file by the ending of its name, as onnx names it; None for an unknown ending."""
    name: str | None = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
    return name


def text_format(path: Path) -> str:
    """Return the text format of a model file; "" for binary."""
    name = known_format(path)
    return "" if name in (None, "protobuf") else str(name)


class TensorInside(ir.ExternalTensor):
    """A tensor whose bytes are in the model file itself."""


def parse(path: Path) -> tuple[onnx.ModelProto, str] | None:
    """Parse a large file without its large tensors; return the model, and the random name of a file in which it
    says that they are. None: the file is small, parse it whole.

    Raises:
        OSError: The file cannot be read.
    """
    size = path.stat().st_size
    if size < LARGE:
        return None
    location = os.urandom(16).hex()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            pieces = _pieces(data, 0, size, onnx.ModelProto, _is_large, partial(_reference, data, location))
            if _bytes_of(pieces) * SHARE > size:
                return None
            proto = onnx.ModelProto.FromString(b"".join(piece for piece in pieces if isinstance(piece, bytes)))
        except Exception:  # not a model: parsing it whole tells why
            return None
    mixed = any(entry.value != location for _, entry in external_entries(proto))
    return None if mixed else (proto, location)


def _is_large(field: Field) -> bool:
    return field.end - field.start >= TENSOR_BYTES


def _pieces(
    data: Buffer,
    start: int,
    end: int,
    message: type,
    wanted: Callable[[Field], bool],
    changed: Callable[[Field], list[_Piece]],
) -> list[_Piece]:
    """Return a serialized message with changed initializers, in pieces.

    Raises:
        ValueError, IndexError: It is not a message.
    """
    pieces: list[_Piece] = []
    for field in fields(data, start, end):
        inner = _INNER[message].get(field.number)
        if inner is None or field.wire_type != BYTES or not wanted(field):
            pieces.append(data[field.start : field.end])
            continue
        if inner is onnx.TensorProto:
            content = changed(field)
        else:
            content = _pieces(data, field.content, field.end, inner, wanted, changed)
        pieces += [tag_and_length(field.number, _bytes_of(content)), *content]
    return pieces


def _bytes_of(pieces: Iterable[_Piece]) -> int:
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def _reference(data: Buffer, location: str, field: Field) -> list[_Piece]:
    """Return a serialized reference to a tensor in a file, or the tensor if it has more than bytes, or is a
    parameter."""
    tensor, raw = onnx.TensorProto(), None
    for inner in fields(data, field.content, field.end):
        if inner.number == _RAW_DATA and inner.wire_type == BYTES:
            raw = inner
        else:
            tensor.MergeFromString(data[inner.start : inner.end])
    if raw is None or not _is_plain(tensor, raw.end - raw.content):
        return [data[field.content : field.end]]
    refer(tensor, location, raw.content, raw.end - raw.content)
    return [tensor.SerializeToString()]


def _is_plain(tensor: onnx.TensorProto, size: int) -> bool:
    """Return whether a tensor is no parameter, and has nothing but its type, dims, name and `size` bytes."""
    if is_parameter(tensor.data_type, len(tensor.dims)):
        return False
    if not {field.name for field, _ in tensor.ListFields()} <= _AROUND or any(dim < 0 for dim in tensor.dims):
        return False
    if tensor.data_location != onnx.TensorProto.DEFAULT:
        return False
    try:
        bits: int = ir.DataType(tensor.data_type).bitwidth * math.prod(tensor.dims)
    except (ValueError, TypeError):  # it has no type, or one without a size
        return False
    return -(-bits // 8) == size


def move_out(proto: onnx.ModelProto, source: Path, path: Path) -> None:
    """Write a model of `parse` to `path`, and its large tensors from `source` to a data file beside that, to which
    the model then refers.

    Raises:
        OSError: A file cannot be read or written.
    """
    data = path.with_name(f"{path.name}.data")
    with source.open("rb") as file, data.open("wb") as out:
        for tensor, _ in external_entries(proto):
            inside = {entry.key: entry.value for entry in tensor.external_data}
            out.write(bytes(-out.tell() % ALIGNMENT))
            refer(tensor, data.name, out.tell(), int(inside["length"]))
            file.seek(int(inside["offset"]))
            _copy(file, out, int(inside["length"]))
    path.write_bytes(proto.SerializeToString())


def _copy(file: BinaryIO, out: BinaryIO, count: int) -> None:
    while count > 0:
        block = file.read(min(count, 1 << 20))
        if not block:
            raise OSError("it became shorter while it was read")
        out.write(block)
        count -= len(block)


def write(
    model: ir.Model, initializers: Iterable[ir.Value], path: Path, written: Callable[[int, int], None]
) -> bool:
    """Write a model into one file, its large tensors one after the other; return False, and write nothing, if few
    bytes are in large tensors.

    Args:
        model: The model, which stays as it is.
        initializers: Those of all its graphs, whose tensors may be anywhere.
        path: The file.
        written: Called with the number of written large tensors and of all.

    Raises:
        onnx_ir.serde.SerdeError: The model cannot be serialized.
        OSError: The file cannot be written.
    """
    location = os.urandom(16).hex()
    with _referring(initializers, location) as tensors:
        if sum(tensor.nbytes for tensor in tensors) < LARGE:
            return False
        data: bytes = to_message(model).SerializeToString()

    def refers(field: Field) -> bool:
        return data.find(location.encode(), field.start, field.end) >= 0

    def with_bytes(field: Field) -> list[_Piece]:
        proto = onnx.TensorProto.FromString(data[field.content : field.end])
        return _with_bytes(proto, tensors[int(proto.external_data[1].value)])

    done = 0
    with path.open("wb") as file:
        for piece in _pieces(data, 0, len(data), onnx.ModelProto, refers, with_bytes):
            if isinstance(piece, bytes):
                file.write(piece)
                continue
            start = file.tell()
            if isinstance(piece, ir.Tensor | ir.LazyTensor | ir.ExternalTensor):
                piece.tofile(file)
            else:
                file.write(piece.tobytes())
            if file.tell() - start != piece.nbytes:
                raise OSError(f"tensor '{piece.name}' could not be written")
            done += 1
            written(done, len(tensors))
    return True


@contextmanager
def _referring(initializers: Iterable[ir.Value], location: str) -> Iterator[list[ir.TensorProtocol]]:
    """Replace streamed tensors with references for the block, and yield them. A reference has the tensor's position
    in the list as its offset."""
    values = [value for value in initializers if _is_streamed(value.const_value)]
    before = [value.const_value for value in values]
    tensors = [tensor for tensor in before if tensor is not None]
    try:
        for n, (value, tensor) in enumerate(zip(values, tensors, strict=True)):
            value.const_value = ir.ExternalTensor(
                location,
                n,
                None,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=tensor.name or "",
                doc_string=tensor.doc_string,
                metadata_props=_metadata(tensor),
            )
        yield tensors
    finally:
        for value, tensor_before in zip(values, before, strict=True):
            value.const_value = tensor_before


def _metadata(tensor: ir.TensorProtocol) -> dict[str, str]:
    """Return the metadata of a tensor; onnx_ir does not read those of a message."""
    of_message = tensor.raw.metadata_props if isinstance(tensor, ir.serde.TensorProtoTensor) else ()
    return {**tensor.metadata_props, **{entry.key: entry.value for entry in of_message}}


def _is_streamed(tensor: ir.TensorProtocol | None) -> bool:
    """Return whether a tensor is in a file, or large and serialized as its bytes."""
    if isinstance(tensor, ir.ExternalTensor):
        return True
    if tensor is None or tensor.dtype == ir.DataType.STRING or int(tensor.nbytes) < TENSOR_BYTES:
        return False
    if not isinstance(tensor, ir.serde.TensorProtoTensor):
        return True
    whole: bool = len(tensor.raw.raw_data) == tensor.nbytes
    return whole


def _with_bytes(proto: onnx.TensorProto, tensor: ir.TensorProtocol) -> list[_Piece]:
    """Return a serialized tensor with bytes instead of its reference, its fields in the order of their numbers."""
    del proto.external_data[:]
    proto.ClearField("data_location")
    after = onnx.TensorProto()
    after.metadata_props.extend(proto.metadata_props)
    del proto.metadata_props[:]
    if proto.HasField("doc_string"):
        after.doc_string = proto.doc_string
        proto.ClearField("doc_string")
    return [proto.SerializeToString(), tag_and_length(_RAW_DATA, tensor.nbytes), tensor, after.SerializeToString()]
