"""External data: where a model's tensors lie, and where they go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx_ir as ir

from rnn_lowering.errors import ModelFileError, UnsupportedError

INLINE_LIMIT = 1_800_000_000
"""Bytes of tensors that fit into one file with certainty: protobuf holds less than 2 GiB."""

_SMALL = 256
"""Tensors of so few bytes stay in the model: shapes and Split sizes that runtimes want to see."""

Written = Callable[[int, int], None]


def locate(model: ir.Model, folder: Path, *, trust: bool = False) -> None:
    """Let every external tensor know the file that holds it, in place; symbolic links are followed.

    Args:
        folder: The model's folder.
        trust: Accept locations outside `folder`.

    Raises:
        ModelFileError: A data file is missing or too short, or lies outside the folder.
    """
    for value in _initializers(model):
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = _located(value.const_value, folder, trust)
    for graph in _graphs(model):
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                tensor = attribute.value if attribute.type == ir.AttributeType.TENSOR else None
                if isinstance(tensor, ir.ExternalTensor):  # a node's own tensor can only be written inline
                    node.attributes[name] = ir.AttrTensor(name, _inline(_located(tensor, folder, trust)))


def data_files(model: ir.Model) -> set[Path]:
    """Return the files that hold a located model's external tensors."""
    tensors = (value.const_value for value in _initializers(model))
    return {Path(tensor.path) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}


def choose_data_file(model: ir.Model, destination: Path, policy: str, source: Path | None = None) -> str | None:
    """Return the name of the file beside `destination` for the tensors, or None to keep them inline.

    Args:
        policy: "auto": external where the input has external data or is too large for one file; "always";
            "never"; or a file name.
        source: The input's file, which is not to be overwritten; nor are its data files.

    Raises:
        UnsupportedError: "never" with too much data, a name with a folder, or a file that the input needs.
    """
    needed = {path.resolve() for path in (*data_files(model), *([source] if source else []))}
    _refuse_overwriting(destination, needed)
    total = sum(v.const_value.nbytes for v in _initializers(model) if v.const_value is not None)
    if policy == "never" or (policy == "auto" and total <= INLINE_LIMIT and not data_files(model)):
        if total > INLINE_LIMIT:
            raise UnsupportedError(
                f"{total / 2**30:.1f} GiB of tensors do not fit into one file", hint="use --external-data auto"
            )
        return None
    name = f"{destination.name}.data" if policy in ("auto", "always") else policy
    if Path(name).name != name or "\0" in name or name == destination.name:
        raise UnsupportedError(
            f"external data cannot go to '{name}'", hint="give a file name for the folder of the output"
        )
    _refuse_overwriting(destination.parent / name, needed)
    return name


def _refuse_overwriting(target: Path, needed: set[Path]) -> None:
    try:
        overwrites = target.resolve() in needed or any(
            target.exists() and path.exists() and target.samefile(path) for path in needed
        )
    except (OSError, ValueError, RuntimeError):  # no file can have this name: writing will say so
        overwrites = False
    if overwrites:
        raise UnsupportedError(
            f"'{target}' is the same file as one of the input's and would be overwritten",
            hint="write to another file or folder",
        )


def save(model: ir.Model, path: Path, data_file: str | None, written: Written | None = None) -> None:
    """Write a model to `path` and its tensors into it, or beside it into `data_file`; tensors are streamed.

    Args:
        written: Called with the number of written tensors and of all.

    Raises:
        ModelFileError: It holds what the format cannot.
        OSError: A file cannot be written.
    """

    def report(_: object, info: ir.external_data.CallbackInfo) -> None:
        if written is not None:
            written(info.index + 1, info.total)

    if data_file is None:
        for value in _initializers(model):
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _inline(value.const_value)
    try:
        ir.save(model, path, external_data=data_file, size_threshold_bytes=_SMALL, callback=report)
    except ir.serde.SerdeError as error:
        raise ModelFileError(
            f"the model cannot be written: {' '.join(str(error.__cause__ or error).split())}"
        ) from error


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in _graphs(model):
        yield from graph.initializers.values()


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        yield from (graph, *graph.subgraphs())


def _inline(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def _located(tensor: ir.ExternalTensor, folder: Path, trust: bool) -> ir.ExternalTensor:
    location = os.fspath(tensor.location)
    leaves = (
        PurePosixPath(location).is_absolute()
        or PureWindowsPath(location).is_absolute()
        or os.path.normpath(location).split(os.sep)[0] == os.pardir
    )
    if leaves and not trust:
        raise ModelFileError(
            f"tensor '{tensor.name}' lies in '{location}', outside the model's folder",
            hint="give --trust-external-data if that is meant",
        )
    try:
        path = (folder / location).resolve()
        size = path.stat().st_size if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # a name that no file can have, or links in a circle
        size = None
    if size is None:
        raise ModelFileError(
            f"the data file '{folder / location}' of tensor '{tensor.name}' is missing",
            hint="put it beside the model",
        )
    needed = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
    if size < needed or (tensor.length or tensor.nbytes) < tensor.nbytes:
        raise ModelFileError(
            f"the data file '{folder / location}' is too short for tensor '{tensor.name}'",
            hint="is the file complete?",
        )
    return ir.ExternalTensor(
        str(path), tensor.offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=tensor.name or ""
    )
