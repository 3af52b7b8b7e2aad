"""Where external data may be: in the folder of its model, and nowhere else unless it is trusted."""

from __future__ import annotations

import ntpath
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from rnn_lowering.errors import ModelFileError


@dataclass(frozen=True)
class DataFolders:
    """Where the data of a model may be.

    Attributes:
        named: The folder of the model, as it is named: locations are relative to it.
        trust: Accept data anywhere.
        roots: The folders, links followed, which data must be in: the model's as named, and that where the model
            itself is, if its name is a link. A cache may keep the files themselves in one folder and both names as
            links in another.
    """

    named: Path
    trust: bool
    roots: tuple[Path, ...]

    @classmethod
    def of(cls, model: Path, *, trust: bool = False) -> DataFolders:
        """Return those of a model file.

        Raises:
            ModelFileError: The links of its name are a circle.
        """
        try:
            roots = (model.parent.resolve(), model.resolve().parent)
        except (OSError, RuntimeError, ValueError) as error:
            raise ModelFileError(f"cannot read '{model}': {error}") from error
        return cls(model.parent, trust, roots)

    def find(self, location: str, tensor: str) -> Path:
        """Return the file that holds a tensor, links followed.

        Raises:
            ModelFileError: It is missing, no file, or outside the folders.
        """
        try:
            path = (self.named / location).resolve()
            exists = path.is_file()
        except (OSError, ValueError, RuntimeError):  # a name that no file can have, or links in a circle
            path, exists = self.named, False
        inside = any(path.is_relative_to(root) for root in self.roots)
        if not self.trust and (_leaves(location) or (exists and not inside)):
            raise ModelFileError(
                f"tensor '{tensor}' is in '{location}', outside the model's folder",
                hint="give --trust-external-data if that is meant",
            )
        if not exists:
            raise ModelFileError(
                f"the data file '{self.named / location}' of tensor '{tensor}' is missing",
                hint="put it beside the model",
            )
        return path


def _leaves(location: str) -> bool:
    """Whether a location is not relative to a folder, or leaves it, on any system."""
    return (
        PurePosixPath(location).is_absolute()
        or bool(PureWindowsPath(location).anchor)
        or posixpath.normpath(location).split("/")[0] == os.pardir
        or ntpath.normpath(location).split("\\")[0] == os.pardir
    )


def external_entries(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, onnx.StringStringEntryProto]]:
    """Yield every tensor that refers to a file with the entry that names it: of all scopes, also of attributes."""
    for function in model.functions:
        yield from _in_nodes(function.node)
    yield from _in_graph(model.graph)


def check_locations(path: Path, *, trust: bool) -> None:
    """Refuse a model file whose data is missing, or outside the folders where it may be.

    Raises:
        ModelFileError: It is so.
    """
    folders = DataFolders.of(path, trust=trust)
    for tensor, entry in external_entries(onnx.load(path, load_external_data=False)):
        folders.find(entry.value, tensor.name)


def from_the_root(model: onnx.ModelProto, path: Path, *, trust: bool) -> None:
    """Let the external tensors of a file's model name their files from the root on, links followed.

    Raises:
        ModelFileError: As `check_locations`.
    """
    folders = DataFolders.of(path, trust=trust)
    for tensor, entry in external_entries(model):
        file = folders.find(entry.value, tensor.name)
        entry.value = str(file.relative_to(file.anchor))


def _in_graph(graph: onnx.GraphProto) -> Iterator[tuple[onnx.TensorProto, onnx.StringStringEntryProto]]:
    for tensor in graph.initializer:
        yield from _of_tensor(tensor)
    for sparse in graph.sparse_initializer:
        yield from _of_tensor(sparse.values)
        yield from _of_tensor(sparse.indices)
    yield from _in_nodes(graph.node)


def _in_nodes(
    nodes: Iterator[onnx.NodeProto],
) -> Iterator[tuple[onnx.TensorProto, onnx.StringStringEntryProto]]:
    for node in nodes:
        for attribute in node.attribute:
            for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
                yield from _of_tensor(tensor)
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _in_graph(graph)


def _of_tensor(tensor: onnx.TensorProto) -> Iterator[tuple[onnx.TensorProto, onnx.StringStringEntryProto]]:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        yield from ((tensor, entry) for entry in tensor.external_data if entry.key == "location")


def data_names(path: Path) -> set[str]:
    """Return the names of the data files beside a model file; none where it is no model."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # each parser has errors of its own
        return set()
    names = {posixpath.normpath(entry.value) for _, entry in external_entries(model)}
    return {name for name in names if Path(name).name == name and path.with_name(name).is_file()}
