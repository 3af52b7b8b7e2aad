"""Data files of a model: in which folders they may be, and how a tensor refers to them."""

from __future__ import annotations

import math
import ntpath
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from rnn_lowering.errors import ModelFileError
from rnn_lowering.model.protobuf import bodies_in, nodes_in


@dataclass(frozen=True)
class DataFolders:
    """The folders where the data of a model may be.

    Attributes:
        named: The folder in the model's path: locations of data are relative to it.
        trust: Accept data anywhere.
        roots: The resolved folders that data must be in: the folder in the model's path, and the folder of the file
            that the path links to. A cache may store the files in one folder and links to them in another.
        inside: The location that stands for the model's file itself, if any (see `one_file`).
        file: The model's file.
    """

    named: Path
    trust: bool
    roots: tuple[Path, ...]
    inside: str
    file: Path

    @classmethod
    def of(cls, model: Path, *, trust: bool = False, inside: str = "") -> DataFolders:
        """Return the folders for a model file.

        Raises:
            ModelFileError: Its path cannot be resolved: links in a circle.
        """
        try:
            roots = (model.parent.resolve(), model.resolve().parent)
        except (OSError, RuntimeError, ValueError) as error:
            raise ModelFileError(f"cannot read '{model}': {error}") from error
        return cls(model.parent, trust, roots, inside, model)

    def is_inside(self, location: str) -> bool:
        """Return whether a location stands for the model's file itself."""
        return bool(self.inside) and location == self.inside

    def find(self, location: str, tensor: str) -> Path:
        """Return the resolved path of the file of a tensor.

        Raises:
            ModelFileError: It is missing, not a file, or outside the folders.
        """
        if self.is_inside(location):
            return self.file
        try:
            path = (self.named / location).resolve()
            exists = path.is_file()
        except (OSError, ValueError, RuntimeError):  # a name that no file can have, or links in a circle
            path, exists = self.named, False
        inside = any(path.is_relative_to(root) for root in self.roots)
        if not self.trust and (_leaves(location) or (exists and not inside)):
            raise ModelFileError(
                f"tensor '{tensor}' is in '{location}', outside the model's folder",
                hint="use --trust-external-data if you trust the model",
            )
        if not exists:
            raise ModelFileError(
                f"the data file '{self.named / location}' of tensor '{tensor}' is missing",
                hint="put it next to the model",
            )
        return path


def _leaves(location: str) -> bool:
    """Return whether a location is absolute or leads out of its folder, on any operating system."""
    return (
        PurePosixPath(location).is_absolute()
        or bool(PureWindowsPath(location).anchor)
        or posixpath.normpath(location).split("/")[0] == os.pardir
        or ntpath.normpath(location).split("\\")[0] == os.pardir
    )


def external_entries(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, onnx.StringStringEntryProto]]:
    """Yield every external tensor of all scopes, also in attributes, and its entry with the location."""
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield from ((tensor, entry) for entry in tensor.external_data if entry.key == "location")


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    graphs = [model.graph]
    for whole in (*model.functions, model.graph):
        for node in (each for each in nodes_in(whole) if each.attribute):
            graphs += bodies_in(node)
            for attribute in node.attribute:
                yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
    for graph in graphs:
        yield from graph.initializer
        yield from (part for sparse in graph.sparse_initializer for part in (sparse.values, sparse.indices))


SMALL = 256
"""Tensors of at most this many bytes stay in the model, as do parameters (`is_parameter`) of any length."""

_OF_PARAMETERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def is_parameter(data_type: int, rank: int) -> bool:
    """Return whether a tensor may be sizes, axes, a shape or a count, which operators read when a model is loaded.

    Runtimes do not read them from a data file: onnxruntime refuses a model whose sizes of a Split are in one.

    Examples:
        >>> from rnn_lowering.files.one_file import is_parameter
        >>> is_parameter(onnx.TensorProto.INT64, 1), is_parameter(onnx.TensorProto.FLOAT, 1)
        (True, False)
    """
    return data_type in _OF_PARAMETERS and rank <= 1


def read_parameters(model: onnx.ModelProto, path: Path, *, trust: bool) -> None:
    """Read parameters and other small tensors of a file's model from its data files, in place.

    Raises:
        ModelFileError: As `check_locations`; or a data file is too short.
    """
    folders = DataFolders.of(path, trust=trust)
    for tensor, entry in external_entries(model):
        size = -(-ir.DataType(tensor.data_type).bitwidth * math.prod(tensor.dims) // 8)
        if size > SMALL and not is_parameter(tensor.data_type, len(tensor.dims)):
            continue
        entries = {each.key: each.value for each in tensor.external_data}
        with folders.find(entry.value, tensor.name).open("rb") as file:
            file.seek(int(entries.get("offset", 0)))
            data = file.read(size)
        if len(data) < size:
            raise ModelFileError(f"the data file '{entry.value}' is too short for tensor '{tensor.name}'")
        tensor.raw_data = data
        tensor.ClearField("data_location")
        del tensor.external_data[:]


ALIGNMENT = 64
"""Each tensor in a data file begins at a multiple of this many bytes."""


def refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Point a tensor to bytes of a file."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))


def check_locations(model: onnx.ModelProto, path: Path, *, trust: bool) -> None:
    """Check that the data files of the model of a file exist and are in the folders where they may be.

    Raises:
        ModelFileError: One is not.
    """
    folders = DataFolders.of(path, trust=trust)
    for tensor, entry in external_entries(model):
        folders.find(entry.value, tensor.name)


def from_the_root(model: onnx.ModelProto, path: Path, *, trust: bool) -> None:
    """Make the locations of external tensors of a file's model relative to the root of the file system, resolved.

    Raises:
        ModelFileError: As `check_locations`.
    """
    folders = DataFolders.of(path, trust=trust)
    for tensor, entry in external_entries(model):
        file = folders.find(entry.value, tensor.name)
        entry.value = str(file.relative_to(file.anchor))


def rename_data(path: Path, old: str, new: str) -> None:
    """Rename the data file in a model file."""
    model = onnx.load(path, load_external_data=False)
    for _, entry in external_entries(model):
        if entry.value == old:
            entry.value = new
    onnx.save(model, path)
