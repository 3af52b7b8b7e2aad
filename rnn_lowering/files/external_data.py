"""External data: the files that a model's tensors are read from and written to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import onnx
import onnx_ir as ir

from rnn_lowering.errors import ModelFileError, UnsupportedError, deepest_cause
from rnn_lowering.facts.operators import with_attributes
from rnn_lowering.files import one_file
from rnn_lowering.files.data_folders import SMALL, DataFolders, is_parameter
from rnn_lowering.files.one_file import TensorInside, text_format
from rnn_lowering.model.protobuf import to_message
from rnn_lowering.model.scopes import all_graphs
from rnn_lowering.types import in_memory

_INLINE_LIMIT = 1_800_000_000
"""Maximum bytes of tensors in one file; protobuf supports less than 2 GiB in all."""

_Written = Callable[[int, int], None]
"""Called with the number of written tensors and of all."""


def locate(model: ir.Model, folders: DataFolders) -> None:
    """Set the path of the file of every external tensor, in place; links are followed. External tensors in
    attributes are read, since attributes are always written inline.

    Args:
        model: The model.
        folders: Where the files may be.

    Raises:
        ModelFileError: A data file is missing or too short, or outside the folders.
    """
    graphs = [*all_graphs(model)]
    for value in (value for graph in graphs for value in graph.initializers.values()):
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = _located(value.const_value, folders)
    for node in (node for graph in graphs for node in with_attributes(graph)):
        for name, attribute in list(node.attributes.items()):
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, _read(attribute.value, folders))
            elif attribute.type == ir.AttributeType.TENSORS:
                node.attributes[name] = ir.AttrTensors(name, [_read(t, folders) for t in attribute.value])


def data_files(model: ir.Model) -> set[Path]:
    """Return the files beside its own that hold a located model's tensors."""
    tensors = (value.const_value for value in _initializers(model))
    external = (tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor))
    return {Path(tensor.path) for tensor in external if not isinstance(tensor, TensorInside)}


def load_data(model: ir.Model) -> None:
    """Read the tensors of a located model into memory, in place.

    Raises:
        ModelFileError: They are too large for one message.
    """
    total = sum(value.const_value.nbytes for value in _initializers(model) if value.const_value is not None)
    if total > _INLINE_LIMIT:
        raise ModelFileError(
            f"the model has {total / 1e9:.1f} GB of tensors, too many for a ModelProto",
            hint="use rl.lower_file, or give an onnx_ir Model",
        )
    for value in _initializers(model):
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = in_memory(value.const_value)


def choose_data_file(model: ir.Model, destination: str, policy: str) -> str | None:
    """Return the name of the file beside `destination` for the tensors, or None to keep them inline.

    Args:
        destination: The name of the file that the model is written to.
        policy: "auto": external where the input has external data or is too large for one file; "always";
            "never"; or a file name.

    Raises:
        UnsupportedError: "never" with too much data, or `policy` is a path instead of a file name.
    """
    total = sum(v.const_value.nbytes for v in _initializers(model) if v.const_value is not None)
    if policy == "never" or (policy == "auto" and total <= _INLINE_LIMIT and not data_files(model)):
        if total > _INLINE_LIMIT:
            raise UnsupportedError(
                f"{total / 2**30:.1f} GiB of tensors do not fit into one file", hint="use --external-data auto"
            )
        return None
    name = f"{destination}.data" if policy in ("auto", "always") else policy
    if not name or Path(name).name != name or "\0" in name or name == destination:
        raise UnsupportedError(
            f"cannot write external data to '{name}'", hint="give the name of a file in the output's folder"
        )
    return name


def save(model: ir.Model, path: Path, data_file: str | None, written: _Written | None = None) -> None:
    """Write a model, its tensors one after the other: they need not be in memory together.

    Args:
        model: The model.
        path: Its file.
        data_file: The name of the file beside it for the tensors; None: they are written into the model's file.
        written: Called with the number of written tensors and of all tensors.

    Raises:
        ModelFileError: The model cannot be serialized.
        OSError: A file cannot be written.
    """
    initializers = list(_initializers(model))
    tensors = [value.const_value for value in initializers]
    written = written or (lambda done, total: None)
    try:
        if data_file is not None:
            _write_data(model, path, data_file, written)
        elif not text_format(path) and one_file.write(model, initializers, path, written):
            return
        else:
            for value in initializers:
                if isinstance(value.const_value, ir.ExternalTensor):
                    value.const_value = in_memory(value.const_value)
        onnx.save(to_message(model), path)
    except ir.serde.SerdeError as error:
        raise ModelFileError(
            f"the model cannot be written: {' '.join(str(deepest_cause(error)).split())}"
        ) from error
    finally:
        for value, tensor in zip(initializers, tensors, strict=True):
            value.const_value = tensor


def _write_data(model: ir.Model, path: Path, data_file: str, written: _Written) -> None:
    """Write the large tensors of a model to a file beside `path`, and let the model refer to them."""

    def report(_: object, info: ir.external_data.CallbackInfo) -> None:
        written(info.index + 1, info.total)

    initializers = list(_initializers(model))
    outside = _outside(initializers)
    for n, value in enumerate(initializers):
        if n not in outside and isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = in_memory(value.const_value)
    if not outside:
        return
    stored = ir.external_data.convert_tensors_to_external(
        list(outside.values()), path.parent, data_file, callback=report
    )
    for n, tensor in zip(outside, stored, strict=True):
        initializers[n].const_value = tensor


def _outside(initializers: Sequence[ir.Value]) -> dict[int, ir.TensorProtocol]:
    """Return the tensors that go to a data file, by the position of their initializer: large ones without texts and
    parameters. Of parameters that do not all fit into the model, the smaller ones stay."""
    tensors = {n: v.const_value for n, v in enumerate(initializers) if v.const_value is not None}
    large = {n: t for n, t in tensors.items() if t.nbytes > SMALL and t.dtype != ir.DataType.STRING}
    parameters = {n: t.nbytes for n, t in large.items() if is_parameter(int(t.dtype), len(t.shape))}
    by_size = sorted(parameters, key=parameters.__getitem__)
    totals = accumulate(parameters[n] for n in by_size)
    inside = {n for n, total in zip(by_size, totals, strict=True) if total <= _INLINE_LIMIT}
    return {n: tensor for n, tensor in large.items() if n not in inside}


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in all_graphs(model):
        yield from graph.initializers.values()


_Tensor = TypeVar("_Tensor", bound=ir.TensorProtocol)


def _read(tensor: _Tensor, folders: DataFolders) -> _Tensor | ir.TensorProtocol:
    return in_memory(_located(tensor, folders)) if isinstance(tensor, ir.ExternalTensor) else tensor


def _located(tensor: ir.ExternalTensor, folders: DataFolders) -> ir.ExternalTensor:
    location = os.fspath(tensor.location)
    path = folders.find(location, tensor.name or "")
    size, length = path.stat().st_size, tensor.length or tensor.nbytes
    if size < (tensor.offset or 0) + length or length < tensor.nbytes:
        raise ModelFileError(
            f"the data file '{folders.named / location}' is too short for tensor '{tensor.name}'",
            hint="is the file complete?",
        )
    kind = TensorInside if folders.is_inside(location) else ir.ExternalTensor
    return kind(
        str(path),
        tensor.offset,
        tensor.nbytes,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )
