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
from rnn_lowering.files.reading import Parsed, from_proto, parse_file, readable_again, text_format
from rnn_lowering.types import PathLike
from rnn_lowering.verification.split_file import LARGE, split_file

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
    if text_format(file):
        whole = model if isinstance(model, Parsed) else parse_file(file, trust_external_data=trust)
        return _as_file(whole.new_model(), path, trust, pipes)
    readable = pipes.enter_context(readable_again(file.absolute()))[0]
    small = split_file(readable, path)
    if small == readable and isinstance(model, Parsed):
        return replace(model, path=readable)
    return parse_file(small, trust_external_data=trust)


def _bytes_of(model: onnx.ModelProto) -> int:
    """Count the bytes of the tensors by their shapes, since protobuf cannot of more than 2 GiB."""
    return sum(4 * math.prod(tensor.dims) for tensor in model.graph.initializer)
