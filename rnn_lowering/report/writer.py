"""Write a report: JSON or an HTML page, by the ending of the file name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from rnn_lowering.compare.nodes.runs import RunNodes
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.files.atomic import Place, replacing
from rnn_lowering.files.scratch import writing
from rnn_lowering.report.file_report import FileReport

KINDS = (".json", ".html")

Render = Callable[[FileReport, RunNodes], str]
"""Returns the text of a report's file."""


class Writer(Protocol):
    """Writes a report to a temporary file, so that no later step can fail, and replaces the file when the block
    ends; one that exists only with `overwrite`."""

    def __call__(
        self, report: FileReport, run_nodes: RunNodes, *, overwrite: bool
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
    def write(report: FileReport, run_nodes: RunNodes, *, overwrite: bool) -> Iterator[None]:
        if file is None:
            yield
            return
        text = render(report, run_nodes)
        with replacing(Place(file), overwrite=overwrite) as temporary:
            with writing(file):
                temporary.write_text(text, encoding="utf-8")
            yield

    return write


def _page() -> Render:
    from rnn_lowering.report.page import render  # its libraries are needed for a page only

    return render


def _json(report: FileReport, run_nodes: RunNodes) -> str:
    return report.to_json() + "\n"
