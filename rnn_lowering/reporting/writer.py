"""Writing a report to a file: JSON or an HTML page, by the ending of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.files.atomic import replacing
from rnn_lowering.files.reading import Parsed
from rnn_lowering.files.scratch import writing
from rnn_lowering.reporting.file_report import FileReport

KINDS = (".json", ".html")

Render = Callable[[Parsed, Path, FileReport], str]
"""Called with the original, the file of the lowered model and the report; returns the text of the file."""


class Writer(Protocol):
    """Writes a report about the models of two files to a temporary file, so that no later step can fail; it
    replaces the file when the block ends. An existing file is replaced only with `overwrite`."""

    def __call__(
        self, original: Parsed, lowered: Path, report: FileReport, *, overwrite: bool
    ) -> AbstractContextManager[None]: ...


def report_writer(file: Path | None) -> Writer:
    """Return a function that writes a report to `file`; with None it writes nothing.

    Raises:
        UnsupportedError: The name ends in neither .json nor .html.
        RnnLoweringError: The libraries that a page needs are missing.
    """
    if file is not None and file.suffix not in KINDS:
        raise UnsupportedError(f"report '{file}' ends in neither {' nor '.join(KINDS)}")
    render = _page() if file is not None and file.suffix == ".html" else _json

    @contextmanager
    def write(original: Parsed, lowered: Path, report: FileReport, *, overwrite: bool) -> Iterator[None]:
        if file is None:
            yield
            return
        text = render(original, lowered, report)
        with replacing(file, overwrite=overwrite) as temporary:
            with writing(file):
                temporary.write_text(text, encoding="utf-8")
            yield

    return write


def _page() -> Render:
    from rnn_lowering.reporting.page import render  # its libraries are needed for a page only

    return render


def _json(original: Parsed, lowered: Path, report: FileReport) -> str:
    return report.to_json() + "\n"
