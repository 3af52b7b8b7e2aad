"""Which files may be written: no output is an input, outputs differ, existing files are replaced on request
only."""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from rnn_lowering.errors import ModelFileError, OptionError, UnsupportedError
from rnn_lowering.files import one_file
from rnn_lowering.files.locations import external_entries
from rnn_lowering.files.scratch import cannot_write

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Place:
    """The files of a model to write.

    Attributes:
        path: The model's file.
        data: The unused name of its data file beside it; None if it has none.
        needed: What identifies the files that are read: they stay.
    """

    path: Path
    data: str | None = None
    needed: frozenset[object] = frozenset()

    def outdated(self) -> list[Path]:
        """Return the data files of the model that is at `path` now, which nothing else needs."""
        names = {f"{self.path.name}.data", *([_wanted(self.data)] if self.data else [])}
        files = [self.path.with_name(name) for name in _data_names(self.path) if _wanted(name) in names]
        return [file for file in files if not file.is_symlink() and not self.needed & {*_inode(file)}]

    def unused(self, data: str) -> str:
        """Return a name for a data file that no file has: this one, or one with a number in it."""
        wanted = Path(_wanted(data))
        while os.path.lexists(self.path.with_name(data)):
            data = f"{wanted.stem}.{secrets.token_hex(4)}{wanted.suffix}"
        return data


@dataclass(frozen=True)
class Outputs:
    """The files that a lowering may write.

    Attributes:
        model: The file of the lowered model.
        data: The name of the file beside `model` for its tensors; None: they are in the model.
        kept: The file for a model that fails the verification; with `data` it has a data file too.
        report: The file of the report.
        overwrite: Whether existing files may be replaced.
    """

    model: Path
    data: str | None = None
    kept: Path | None = None
    report: Path | None = None
    overwrite: bool = False

    @property
    def kept_data(self) -> str | None:
        """The name of the file beside `kept` for its tensors."""
        return f"{self.kept.name}.data" if self.kept and self.data else None

    def check(self, inputs: Iterable[Path]) -> None:
        """Check, before anything is written, that no output would destroy a file.

        Args:
            inputs: All files that are read.

        Raises:
            UnsupportedError: An output is one of the inputs, or two outputs are the same file.
            ModelFileError: An output cannot be written, is not a regular file, or exists without `overwrite`.
        """
        needed = {key for path in inputs for key in _inode(path)}
        uses: dict[object, str] = {}
        for use, path in self._files():
            if needed & {*_inode(path)}:
                raise UnsupportedError(
                    f"'{path}' is the same file as one of the input's and would be overwritten",
                    hint="write to another file or folder",
                )
            for key in (*_inode(path), _name(path)):
                if uses.setdefault(key, use) != use:
                    raise UnsupportedError(
                        f"'{path}' is to hold both {uses[key]} and {use}", hint="give each a file of its own"
                    )
        for _, path in self._files():
            refuse_unwritable(path, overwrite=self.overwrite)

    def check_endings(self) -> None:
        """Refuse a model's name that no ONNX model has; one without an ending is fine, or with .onnx before it.

        Raises:
            OptionError: It ends as the names of another format do.
        """
        for path in filter(None, (self.model, self.kept)):
            if one_file.text_format(path) == "onnxtxt":
                raise OptionError(
                    f"'{path}': onnx's text format cannot hold the bodies of Scan and Loop",
                    hint="end the name in .onnx, .json or .textproto",
                )
            if path.suffix and ".onnx" not in path.name.lower() and not one_file.known_format(path):
                raise OptionError(
                    f"'{path}': the result is an ONNX model, which '{path.suffix}' does not name",
                    hint="end the name in .onnx, then convert that file with the tool of the runtime",
                )

    def placed(self, inputs: Iterable[Path]) -> tuple[Place, Place | None]:
        """Return the files of the lowered model and of a model that fails the verification.

        A data file is never overwritten, since the model that needs it is replaced later: if its name is used, the
        new data file gets another one.
        """
        needed = frozenset(key for path in inputs for key in _inode(path))
        model = _place(self.model, self.data, needed)
        return model, _place(self.kept, self.kept_data, needed) if self.kept else None

    def _files(self) -> Iterator[tuple[str, Path]]:
        yield "the lowered model", self.model
        if self.data is not None:
            yield "its tensors", self.model.with_name(self.data)
        if self.kept is not None:
            yield "a model that fails the verification", self.kept
            if self.kept_data is not None:
                yield "the tensors of a model that fails the verification", self.kept.with_name(self.kept_data)
        if self.report is not None:
            yield "the report", self.report


def _place(path: Path, data: str | None, needed: frozenset[object]) -> Place:
    place = Place(path, needed=needed)
    return place if data is None else replace(place, data=place.unused(data))


def _data_names(path: Path) -> set[str]:
    """Return the names of a model file's data files in its folder; none if the file is not a model."""
    try:
        if one_file.parse(path) is not None:
            return set()
        model = onnx.load(path, load_external_data=False)
    except Exception:  # each parser has errors of its own
        return set()
    names = {posixpath.normpath(entry.value) for _, entry in external_entries(model)}
    return {name for name in names if Path(name).name == name and path.with_name(name).is_file()}


def _wanted(name: str) -> str:
    """Return the name of a data file without the number that makes it unique."""
    return re.sub(r"\.[0-9a-f]{8}(?=(\.[^.]*)?$)", "", name)


def refuse_unwritable(path: Path, *, overwrite: bool) -> None:
    """Check that a file can be written at a path, without following links.

    Raises:
        ModelFileError: It cannot, or a file exists without `overwrite`.
    """
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ModelFileError(f"cannot write '{path}': its folder does not exist") from None
        kind = 0
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ModelFileError(f"cannot write '{path}': its folder is read-only")
    if kind not in (0, stat.S_IFREG):
        raise ModelFileError(f"cannot write '{path}': it is {_KINDS.get(kind, 'no file')}", hint="name a file")
    if kind and not overwrite:
        raise ModelFileError(f"'{path}' exists", hint="give --force (in Python overwrite=True) to replace it")


def _inode(path: Path) -> Iterator[object]:
    """Yield what identifies an existing file under all its names."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # no such file, or no file can have this name: writing will say so
        return
    yield found.st_dev, found.st_ino


def _name(path: Path) -> object:
    """Return what identifies a file that does not exist; on some disks names that differ only in case are one."""
    name = unicodedata.normalize("NFC", path.name).casefold()
    return next(_inode(path.parent), str(path.parent)), name
