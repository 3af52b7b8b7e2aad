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

_OF_FRAMEWORKS = (".pt", ".pth", ".pt2", ".ckpt", ".safetensors", ".h5", ".keras", ".pb", ".tflite", ".pdmodel")
"""Suffixes of the models of PyTorch, Keras, TensorFlow and Paddle."""


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
        of_framework = named.suffix in _OF_FRAMEWORKS
        if not of_framework and (not_binary := _what_it_is(path, named)):
            raise not_binary from error
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = "export it to ONNX first" if of_framework else "is the file complete?"
        raise ModelFileError(f"'{named}' is not an ONNX model: {reason}", hint=hint) from error
    if not proto.ByteSize():
        raise ModelFileError(f"'{named}' is empty", hint="download or export it again")
    if piped_from and (entry := next(external_entries(proto), None)):
        raise ModelFileError(
            f"'{named}' refers to data in '{entry[1].value}', but a model from a pipe has no folder",
            hint="give the path of the file",
        )
    return ModelSource(path, proto, trust_external_data, piped_from)


_LFS = b"version https://git-lfs.github.com/spec/"


def _what_it_is(path: Path, named: Path) -> ModelFileError | None:
    """Return the error of a file that is a Git LFS pointer or other text; None if it is neither."""
    if one_file.text_format(path):
        return None
    try:
        with path.open("rb") as file:
            start = file.read(200)
    except (OSError, ValueError):
        return None
    if start.startswith(_LFS):
        return ModelFileError(f"'{named}' is a Git LFS pointer, not the model", hint="git lfs pull gets the model")
    try:
        line = start[:150].decode("ascii").strip().partition("\n")[0]
    except UnicodeDecodeError:
        return None
    if not line.isprintable():
        return None
    reason = f"'{named}' is text, not an ONNX model: it begins with '{line[:60]}'"
    return ModelFileError(reason, hint="download or export it again, or name text of ONNX *.onnxtxt")


@contextmanager
def readable_again(path: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yield a file that can be read again, by other processes too, and the pipe that it is a copy of, if any.

    A copy is removed after the block.

    Raises:
        ModelFileError: It cannot be read.
    """
    try:
        mode = path.stat().st_mode
        special = {Path("/dev"), Path("/proc")} & {*path.absolute().parents}
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
