"""What may be written: no output is an input, no two are one file, and what exists is replaced only when asked."""

from __future__ import annotations

import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rnn_lowering.errors import ModelFileError, UnsupportedError
from rnn_lowering.files.locations import data_names
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
    """Where a model goes.

    Attributes:
        path: Its file.
        data: The name of its data file beside it, which no file has; None: it needs none.
        outdated: Data files that only the model needs that is at `path` now.
    """

    path: Path
    data: str | None
    outdated: tuple[Path, ...]


@dataclass(frozen=True)
class Outputs:
    """The files that a lowering may write.

    Attributes:
        model: The lowered model.
        data: The file beside `model` for its tensors; None: they are in the model.
        kept: Where a model that fails the verification goes; its tensors go to a file beside it if `data` is one.
        report: What was done.
        overwrite: Whether files that exist may be replaced.
    """

    model: Path
    data: str | None = None
    kept: Path | None = None
    report: Path | None = None
    overwrite: bool = False

    @property
    def kept_data(self) -> str | None:
        """The file beside `kept` for its tensors."""
        return f"{self.kept.name}.data" if self.kept and self.data else None

    def check(self, inputs: Iterable[Path]) -> None:
        """Refuse outputs that would cost the user a file. Nothing may be written before.

        Args:
            inputs: Every file that is read.

        Raises:
            UnsupportedError: An output is one of the inputs, or two outputs are one file.
            ModelFileError: An output cannot be written, is no file, or exists and is not to be replaced.
        """
        needed = {key for path in inputs for key in _inode(path)}
        taken: dict[object, str] = {}
        for use, path in self._files():
            if needed & {*_inode(path)}:
                raise UnsupportedError(
                    f"'{path}' is the same file as one of the input's and would be overwritten",
                    hint="write to another file or folder",
                )
            for key in (*_inode(path), _name(path)):
                if taken.setdefault(key, use) != use:
                    raise UnsupportedError(
                        f"'{path}' is to hold both {taken[key]} and {use}", hint="give each a file of its own"
                    )
        for _, path in self._files():
            refuse_unwritable(path, overwrite=self.overwrite)

    def placed(self, inputs: Iterable[Path]) -> tuple[Place, Place | None]:
        """Return where the lowered model goes, and a model that fails the verification.

        No data file is overwritten, since the model that needs it is replaced later: where its name is taken, the
        data gets a new one.
        """
        needed = {key for path in inputs for key in _inode(path)}
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


def _place(path: Path, data: str | None, needed: set[object]) -> Place:
    names = {f"{path.name}.data", *([data] if data else [])}
    ours = tuple(
        file
        for file in (path.with_name(name) for name in data_names(path))
        if _wanted(file.name) in names and not file.is_symlink() and not needed & {*_inode(file)}
    )
    while data is not None and os.path.lexists(path.with_name(data)):
        wanted = Path(_wanted(data))
        data = f"{wanted.stem}.{secrets.token_hex(4)}{wanted.suffix}"
    return Place(path, data, ours)


def _wanted(name: str) -> str:
    """The name that a data file was to have, before it was given a new one."""
    return re.sub(r"\.[0-9a-f]{8}(?=(\.[^.]*)?$)", "", name)


def refuse_unwritable(path: Path, *, overwrite: bool) -> None:
    """Refuse a path at which no file can be written, or which is not to be replaced; links are not followed.

    Raises:
        ModelFileError: It is so.
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
    """What identifies a file that exists, whatever its name."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # no such file, or no file can have this name: writing will say so
        return
    yield found.st_dev, found.st_ino


def _name(path: Path) -> object:
    """What identifies a file that does not exist; names that differ by case only are one file on some disks."""
    name = unicodedata.normalize("NFC", path.name).casefold()
    return next(_inode(path.parent), str(path.parent)), name
