"""The output files: checked first, then replaced atomically, a model together with its data file.

No output is an input, no two are the same file, and existing files are replaced only on request.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import time
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from rnn_lowering.errors import ModelFileError, OptionError, UnsupportedError
from rnn_lowering.files import one_file
from rnn_lowering.files.data_folders import external_entries, rename_data
from rnn_lowering.files.scratch import cannot_write, scratch_folder, uninterrupted, writing

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
        needed: The identities of the files that are read: these are not removed.
    """

    path: Path
    data: str | None = None
    needed: frozenset[object] = frozenset()

    def outdated(self) -> list[Path]:
        """Return the data files of the model that is at `path` now, which nothing else needs."""
        names = {f"{self.path.name}.data", *([_without_number(self.data)] if self.data else [])}
        files = [self.path.with_name(name) for name in _data_names(self.path) if _without_number(name) in names]
        return [file for file in files if not file.is_symlink() and not self.needed & {*identities(file)}]

    def unused(self, data: str) -> str:
        """Return a name for a data file that no file has: this one, or one with a number in it."""
        plain = Path(_without_number(data))
        while os.path.lexists(self.path.with_name(data)):
            data = f"{plain.stem}.{os.urandom(4).hex()}{plain.suffix}"
        return data


_LOCATION = b"location"
"""Each tensor in a data file has this key."""


def _data_names(path: Path) -> set[str]:
    """Return the names of a model file's data files in its folder; none if the file is not a model."""
    try:
        if one_file.parse(path) is not None or _LOCATION not in path.read_bytes():
            return set()
        model = onnx.load(path, load_external_data=False)
    except Exception:  # each parser has errors of its own
        return set()
    names = {posixpath.normpath(entry.value) for _, entry in external_entries(model)}
    return {name for name in names if Path(name).name == name and path.with_name(name).is_file()}


def _without_number(name: str) -> str:
    """Return the name of a data file without the number that makes it unique."""
    return re.sub(r"\.[0-9a-f]{8}(?=(\.[^.]*)?$)", "", name)


def _refuse_unwritable(path: Path, *, overwrite: bool) -> None:
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
        raise ModelFileError(f"'{path}' exists", hint="use --force to replace it")


def identities(path: Path) -> Iterator[object]:
    """Yield what identifies an existing file under all its names."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # no such file, or no file can have this name: writing will say so
        return
    yield status.st_dev, status.st_ino


_PATIENCE = 10.0
"""Seconds to wait for another process that replaces a file of the same folder; then both go on."""


@contextmanager
def replacing(place: Place, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path in a new folder beside the place. If the block succeeds, the file written there gets its place;
    otherwise it is removed.

    After each step the model is either the old one with its old data or the new one with its new data: the new
    data file gets an unused name, then the new model replaces the old one, then the old data file is removed.
    A lock on the folder keeps other processes out meanwhile; there is none on Windows, nor after waiting for 10 s.

    Args:
        place: The file to write, and the name of the data file that the block writes beside the yielded path.
        overwrite: Whether the file may be replaced.

    Raises:
        ModelFileError: A file cannot be written, or exists; nothing has changed.
    """
    path = place.path
    with scratch_folder(path) as folder:
        written = folder / path.name
        yield written
        with _locked(path.parent), uninterrupted():
            _refuse_unwritable(path, overwrite=overwrite)
            outdated = place.outdated() if overwrite else []
            if place.data is not None and (folder / place.data).exists():
                _replace_both(written, place, place.data, overwrite)
            else:
                with writing(path):
                    os.replace(written, path)
            for file in outdated:
                with suppress(OSError):
                    file.unlink()


def _replace_both(written: Path, place: Place, data: str, overwrite: bool) -> None:
    path, name = place.path, place.unused(data) if overwrite else data
    target = path.with_name(name)
    _refuse_unwritable(target, overwrite=False)
    with writing(target):
        if name != data:  # another process has taken the name meanwhile
            rename_data(written, data, name)
        os.replace(written.with_name(data), target)
    try:
        with writing(path):
            os.replace(written, path)
    except BaseException:
        if written.exists():
            target.unlink(missing_ok=True)
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that replace its files, if the system can (not on Windows)."""
    with ExitStack() as closing:
        with suppress(ImportError, OSError):
            import fcntl

            number = os.open(folder, os.O_RDONLY)
            closing.callback(os.close, number)
            until = time.monotonic() + _PATIENCE
            while time.monotonic() < until:
                with suppress(BlockingIOError):
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.01)
        yield


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
        needed = {key for path in inputs for key in identities(path)}
        uses: dict[object, str] = {}
        for use, path in self._files():
            if needed & {*identities(path)}:
                raise UnsupportedError(
                    f"'{path}' is the same file as an input and would be overwritten",
                    hint="write to another file or folder",
                )
            for key in (*identities(path), _name(path)):
                if uses.setdefault(key, use) != use:
                    raise UnsupportedError(
                        f"'{path}' is used for both {uses[key]} and {use}", hint="use a separate file for each"
                    )
        for _, path in self._files():
            _refuse_unwritable(path, overwrite=self.overwrite)

    def check_endings(self) -> None:
        """Refuse a model's name that no ONNX model has; one without an ending is fine, or with .onnx before it.

        Raises:
            OptionError: It ends as the names of another format do.
        """
        for path in filter(None, (self.model, self.kept)):
            if one_file.text_format(path) == "onnxtxt":
                raise OptionError(
                    f"'{path}': onnx's text format cannot store the bodies of Scan and Loop",
                    hint="end the name in .onnx, .json or .textproto",
                )
            if path.suffix and ".onnx" not in path.name.lower() and not one_file.known_format(path):
                raise OptionError(
                    f"'{path}': the result is an ONNX model, so its name cannot end in '{path.suffix}'",
                    hint="end the name in .onnx, then convert that file with the runtime's tool",
                )

    def placed(self, inputs: Iterable[Path]) -> tuple[Place, Place | None]:
        """Return the files of the lowered model and of a model that fails the verification.

        A data file is never overwritten, since the model that needs it is replaced later: if its name is used, the
        new data file gets another one.
        """
        needed = frozenset(key for path in inputs for key in identities(path))
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


def _name(path: Path) -> object:
    """Return what identifies a file that does not exist; on some disks names that differ only in case are one."""
    name = unicodedata.normalize("NFC", path.name).casefold()
    return next(identities(path.parent), str(path.parent)), name
