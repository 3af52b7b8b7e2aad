"""Model files: reading with one clear error, writing at once or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir

from rnn_lowering.errors import ModelFileError, UnsupportedError

_INLINE_LIMIT = 1_800_000_000
"""Bytes of tensors above which a model is written with external data: protobuf holds less than 2 GiB."""


def load_model(path: Path) -> ir.Model:
    """Read an ONNX file; external data is mapped when it is needed.

    Raises:
        ModelFileError: The file cannot be read, or is not an ONNX model.
        UnsupportedError: It holds what the intermediate form would lose.
    """
    try:
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise ModelFileError(f"cannot read '{path}': {error.strerror or error}") from error
    except Exception as error:  # protobuf, text and JSON parsers each have errors of their own
        raise ModelFileError(
            f"'{path}' is not an ONNX model: {error or type(error).__name__}", hint="is the file complete?"
        ) from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelFileError(f"'{path}' is not an ONNX model: no graph", hint="is the file complete?")
    check_complete(proto)
    try:
        model = ir.from_proto(proto)
    except Exception as error:
        raise ModelFileError(f"'{path}' is not a valid ONNX model: {error}") from error
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def check_complete(model: onnx.ModelProto) -> None:
    """Refuse what a round trip through the intermediate form would drop without a word.

    Raises:
        UnsupportedError: The model has sparse initializers or training information.
    """
    if model.training_info:
        raise UnsupportedError("the model holds training_info", hint="export it for inference")
    for graph in _graphs(model.graph):
        if graph.sparse_initializer:
            raise UnsupportedError(
                f"graph '{graph.name}' has sparse initializers", hint="make them dense before lowering"
            )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


@contextmanager
def temporary_beside(destination: Path) -> Iterator[Path]:
    """Yield a path in the folder of `destination`; what is written there replaces it when the block succeeds.

    Raises:
        ModelFileError: The folder does not exist or cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".rnn-lower-", dir=destination.parent) as folder:
            yield Path(folder) / destination.name
            for path in sorted(Path(folder).iterdir(), key=lambda p: p.name == destination.name):
                os.replace(path, destination.parent / path.name)
    except OSError as error:
        raise ModelFileError(f"cannot write '{destination}': {error.strerror or error}") from error


def copy_model(model: ir.Model, source: Path, path: Path, destination: Path) -> None:
    """Write an unchanged model: byte for byte, unless that would leave references to data in another folder."""
    external = any(isinstance(v.const_value, ir.ExternalTensor) for v in _initializers(model))
    if external and source.parent.resolve() != destination.parent.resolve():
        save_model(model, path, destination)
    else:
        shutil.copyfile(source, path)


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()


def save_model(model: ir.Model, path: Path, destination: Path) -> None:
    """Write a model; its tensors inline when they fit, else in one file beside it, named after `destination`."""
    total = sum(v.const_value.nbytes for v in _initializers(model) if v.const_value is not None)
    if total > _INLINE_LIMIT:
        ir.save(model, path, external_data=f"{destination.name}.data")
        return
    for value in _initializers(model):
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
    ir.save(model, path)
