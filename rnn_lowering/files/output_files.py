"""Check the output files: no input, no two the same, existing ones replaced only on request."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rnn_lowering.errors import OptionError, UnsupportedError
from rnn_lowering.files import one_file
from rnn_lowering.files.atomic import Place, identities, refuse_unwritable


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
            refuse_unwritable(path, overwrite=self.overwrite)

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
