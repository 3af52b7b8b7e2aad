"""Models as files that onnxruntime reads, so that the process in which they run opens them itself."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from rnn_lowering.files.external_data import save
from rnn_lowering.files.locations import check_locations
from rnn_lowering.files.one_file import LARGE, move_out, text_format
from rnn_lowering.files.reading import Parsed, from_proto, parse_file, readable_again
from rnn_lowering.types import PathLike

Given = onnx.ModelProto | ir.Model | PathLike | Parsed


def as_file(model: Given, path: Path, trust: bool, pipes: ExitStack) -> Parsed:
    """Return a model in a file that onnxruntime reads, with its data where it may be: its own, or `path`, written
    here.

    Raises:
        ModelFileError: The file cannot be read, or its data is missing or where it may not be.
    """
    parsed = _as_file(model, path, trust, pipes)
    check_locations(parsed.proto, parsed.path, trust=parsed.trust)
    return parsed


def _as_file(model: Given, path: Path, trust: bool, pipes: ExitStack) -> Parsed:
    if isinstance(model, onnx.ModelProto) and _bytes_of(model) < LARGE:
        onnx.save(model, path)
        return Parsed(path, model)
    if isinstance(model, onnx.ModelProto | ir.Model):
        save(from_proto(model) if isinstance(model, onnx.ModelProto) else model, path, f"{path.name}.data")
        return parse_file(path)
    file = model.path if isinstance(model, Parsed) else Path(model)
    readable = file if text_format(file) else pipes.enter_context(readable_again(file.absolute()))[0]
    parsed = model if isinstance(model, Parsed) else parse_file(readable, trust_external_data=trust)
    if text_format(file):
        return _as_file(parsed.new_model(), path, trust, pipes)
    if not parsed.inside:
        return replace(parsed, path=readable)
    return _with_data_file(parsed, path)


def _with_data_file(parsed: Parsed, path: Path) -> Parsed:
    """Return a large model as a small file and a data file, which onnxruntime maps."""
    proto = onnx.ModelProto()
    proto.CopyFrom(parsed.proto)
    move_out(proto, parsed.path, path)
    return Parsed(path, proto)


def _bytes_of(model: onnx.ModelProto) -> int:
    """Count the bytes of the tensors by their shapes, since protobuf cannot of more than 2 GiB."""
    return sum(4 * math.prod(tensor.dims) for tensor in model.graph.initializer)
