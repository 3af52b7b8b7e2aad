"""Writes the file that a report goes to: JSON or an HTML page, by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.files.atomic import replacing
from rnn_lowering.files.scratch import writing
from rnn_lowering.reporting.file_report import FileReport

KINDS = (".json", ".html")

Render = Callable[[Path, Path, FileReport], str]
"""Called with the files of the original and of the lowered model, and what was done."""


class Writer(Protocol):
    """Writes a report on the models of two files. It is beside its place at once, so that nothing can go wrong
    later, and takes that place when the block ends; an existing file is replaced with `overwrite` only."""

    def __call__(
        self, original: Path, lowered: Path, report: FileReport, *, overwrite: bool
    ) -> AbstractContextManager[None]: ...


def report_writer(file: Path | None, *, trust: bool = False) -> Writer:
    """Return what writes a report to `file`; with None, nothing is written.

    Args:
        trust: Read data outside the folder of the original.

    Raises:
        UnsupportedError: The name ends in neither .json nor .html.
        RnnLoweringError: The libraries that a page needs are missing.
    """
    if file is not None and file.suffix not in KINDS:
        raise UnsupportedError(f"report '{file}' ends in neither {' nor '.join(KINDS)}")
    render = _page(trust) if file is not None and file.suffix == ".html" else _json

    @contextmanager
    def write(original: Path, lowered: Path, report: FileReport, *, overwrite: bool) -> Iterator[None]:
        if file is None:
            yield
            return
        text = render(original, lowered, report)
        with replacing(file, overwrite=overwrite) as temporary:
            with writing(file):
                temporary.write_text(text, encoding="utf-8")
            yield

    return write


def _page(trust: bool) -> Render:
    from rnn_lowering.reporting.page import render  # its libraries are needed for a page only

    return partial(render, trust=trust)


def _json(original: Path, lowered: Path, report: FileReport) -> str:
    return report.to_json() + "\n"
