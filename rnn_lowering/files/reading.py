"""Read model files, with one clear error on failure."""

from __future__ import annotations

import shutil
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx
import onnx_ir as ir

from rnn_lowering.errors import ModelFileError
from rnn_lowering.files import external_data as external
from rnn_lowering.files import one_file
from rnn_lowering.files.data_folders import DataFolders, external_entries
from rnn_lowering.files.scratch import scratch_folder
from rnn_lowering.model.from_message import from_proto
from rnn_lowering.model.protobuf import nodes_in

_EXPORT = "export it to ONNX first"
_UNPACK = "unpack it, and name the model in it"

_FRAMEWORKS = {
    **dict.fromkeys((".pt", ".pth", ".pt2", ".ckpt"), "PyTorch"),
    **dict.fromkeys((".h5", ".keras"), "Keras"),
    **dict.fromkeys((".pb", ".tflite"), "TensorFlow"),
    ".pdmodel": "Paddle",
}
"""Whose models have a suffix."""

_BEGINNINGS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs.github.com/spec/", "a Git LFS pointer", "git lfs pull gets the model"),
    (0, b"PK\x03\x04", "a zip archive", _UNPACK),
    (0, b"\x1f\x8b", "a gzip archive", _UNPACK),
    (0, b"BZh", "a bzip2 archive", _UNPACK),
    (0, b"\xfd7zXZ", "an xz archive", _UNPACK),
    (0, b"7z\xbc\xaf", "a 7z archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x89HDF", "an HDF5 file, as Keras writes them", _EXPORT),
    *((0, bytes((128, protocol)), "a pickle, as PyTorch writes them", _EXPORT) for protocol in range(2, 6)),
    (0, b"GGUF", "a GGUF file", _EXPORT),
    (4, b"TFL3", "a model of TensorFlow Lite", _EXPORT),
    (4, b"ORTM", "a model in the format of onnxruntime (.ort)", "give the .onnx file that it was made from"),
    (8, b'{"', "weights without a graph (safetensors)", _EXPORT),
)
"""Where a file has which bytes, what it is then, and what to try."""


@dataclass(frozen=True)
class ModelSource:
    """A model file that was parsed, without its external data.

    Attributes:
        path: The file.
        proto: Its message, which stays as it is.
        trust: Whether data files outside the folder of the file are read.
        piped_from: The pipe that the file is a copy of, if it is one.
        inside: The location of tensors that are in the file itself and were not read (see `one_file`); "" where all
            were.
    """

    path: Path
    proto: onnx.ModelProto
    trust: bool = False
    piped_from: Path | None = None
    inside: str = ""

    def new_model(self) -> ir.Model:
        """Return a new model, which shares the numbers of the message; what is not in it is mapped when needed.

        Raises:
            ModelFileError: It is not an ONNX model, or its data cannot be read.
            UnsupportedError: It has something that onnx_ir does not keep (see `from_proto`).
        """
        model = from_proto(self.proto, f"'{self.piped_from or self.path}'")
        external.locate(model, DataFolders.of(self.path, trust=self.trust, inside=self.inside))
        return model

    @cached_property
    def model(self) -> ir.Model:
        """One such model, which all callers share: they do not change it."""
        return self.new_model()

    @cached_property
    def is_external(self) -> bool:
        """Whether any of its tensors is in a data file."""
        return next(external_entries(self.proto), None) is not None

    @cached_property
    def operators(self) -> frozenset[str]:
        """The operators of its graphs and functions."""
        return frozenset(
            node.op_type for graph in (self.proto.graph, *self.proto.functions) for node in nodes_in(graph)
        )


def load_model(path: Path, *, trust_external_data: bool = False) -> ir.Model:
    """Read an ONNX file; external data is mapped into memory when it is needed.

    Args:
        path: The file.
        trust_external_data: Accept data files outside the model's folder.

    Raises:
        ModelFileError: The file or its data cannot be read, or it is not an ONNX model.
        UnsupportedError: It has something that onnx_ir does not keep (see `from_proto`).
    """
    return parse_file(path, trust_external_data=trust_external_data).new_model()


def parse_file(path: Path, *, trust_external_data: bool = False, piped_from: Path | None = None) -> ModelSource:
    """Parse an ONNX file; the large tensors of a large one are not read but referred to.

    Args:
        path: The file.
        trust_external_data: Accept data files outside the model's folder.
        piped_from: The pipe that `path` is a copy of, if it is one.

    Raises:
        ModelFileError: The file cannot be read, or it is not an ONNX model.
    """
    named = piped_from or path
    try:
        _refuse_device(path)
        if not one_file.text_format(path) and (large := one_file.parse(path)) is not None:
            return ModelSource(path, large[0], trust_external_data, piped_from, inside=large[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # onnx finds its own text format experimental
            proto = onnx.load(path, load_external_data=False)
    except ModelFileError:
        raise
    except OSError as error:
        raise _cannot_read(named, error) from error
    except Exception as error:  # protobuf, text and JSON parsers each have errors of their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _no_model(path, named, reason) from error
    if not proto.ByteSize():
        raise ModelFileError(f"'{named}' is empty", hint="download or export it again")
    if not proto.HasField("graph"):
        raise _no_model(path, named, "no graph")
    if piped_from and (entry := next(external_entries(proto), None)):
        raise ModelFileError(
            f"'{named}' refers to data in '{entry[1].value}', but a model from a pipe has no folder",
            hint="give the path of the file",
        )
    return ModelSource(path, proto, trust_external_data, piped_from)


def _no_model(path: Path, named: Path, reason: str) -> ModelFileError:
    """Return the error of a file that is no ONNX model, for a reason: what it is, if its first bytes or its name
    tell."""
    what, hint = _what_it_is(path)
    if framework := _FRAMEWORKS.get(named.suffix):
        what, hint = f"a model of {framework}", _EXPORT
    if what:
        return ModelFileError(f"'{named}' is {what}, not an ONNX model", hint=hint)
    return ModelFileError(f"'{named}' is not an ONNX model: {reason}", hint="is the file complete?")


def _what_it_is(path: Path) -> tuple[str, str]:
    """Return what a file is, by its first bytes, and what to try; empty where they do not tell."""
    try:
        with path.open("rb") as file:
            start = file.read(300)
    except (OSError, ValueError):
        return "", ""
    for at, content, what, hint in _BEGINNINGS:
        if start[at:].startswith(content):
            return what, hint
    try:
        line = start[:150].decode("ascii").strip().partition("\n")[0]
    except UnicodeDecodeError:
        return "", ""
    if one_file.text_format(path) or not line.isprintable():
        return "", ""
    return f"text that begins with '{line[:60]}'", "download or export it again, or name text of ONNX *.onnxtxt"


@contextmanager
def readable_again(path: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yield a file that can be read again, by other processes too, and the pipe that it is a copy of, if any.

    A copy is removed after the block.

    Raises:
        ModelFileError: It cannot be read.
    """
    try:
        mode = path.stat().st_mode
        folders = {*path.absolute().parents}
        special = {Path("/dev"), Path("/proc")} & folders and Path("/dev/shm") not in folders
        real = path.resolve() if special else path
        piped = stat.S_ISFIFO(mode) or (stat.S_ISREG(mode) and not real.exists())  # deleted since it was opened
    except (OSError, ValueError, RuntimeError):
        real, piped = path, False  # reading will raise the error
    if not piped:
        yield real, None
        return
    with scratch_folder() as folder:
        copy = folder / path.name
        try:
            pipe = path.open("rb")
        except OSError as error:
            raise _cannot_read(path, error) from error
        with pipe, copy.open("wb") as copied:
            shutil.copyfileobj(pipe, copied)
        yield copy, path


def _refuse_device(path: Path) -> None:
    """Refuse devices: reading one may not end."""
    if stat.S_ISCHR(mode := path.stat().st_mode) or stat.S_ISBLK(mode):
        raise OSError("it is a device")


def _cannot_read(path: Path, error: Exception) -> ModelFileError:
    hint = "name the files in it: FOLDER/*.onnx" if isinstance(error, IsADirectoryError) else ""
    return ModelFileError(f"cannot read '{path}': {getattr(error, 'strerror', None) or error}", hint=hint)
