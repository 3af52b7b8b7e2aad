"""Write a report: JSON or an HTML page, by the ending of the file name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from rnn_lowering.compare.verify import RunNodes
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.files.atomic import Place, replacing
from rnn_lowering.files.scratch import writing
from rnn_lowering.report.file_report import FileReport

_Graphs = Callable[[], tuple[ir.Graph, ir.Graph]]
"""Returns the main graphs of the original and of the result: a page draws them."""

_Render = Callable[[FileReport, RunNodes, _Graphs], str]
"""Returns the text of a report's file."""


class ReportWriter:
    """Writes reports to a file, as JSON or as an HTML page by the ending of its name; None: it writes nothing.

    Raises:
        UnsupportedError: The name ends in neither .json nor .html.
        RnnLoweringError: The libraries that a page needs are missing.
    """

    def __init__(self, file: Path | None) -> None:
        if file is not None and file.suffix not in (".json", ".html"):
            raise UnsupportedError(f"report '{file}' ends in neither .json nor .html")
        self._file = file
        self._render = _page() if file is not None and file.suffix == ".html" else _json

    @contextmanager
    def write(self, report: FileReport, run_nodes: RunNodes, graphs: _Graphs, *, overwrite: bool) -> Iterator[None]:
        """Write a report to a temporary file, so that no later step can fail; it replaces the file when the block
        ends, an existing one only with `overwrite`."""
        if self._file is None:
            yield
            return
        text = self._render(report, run_nodes, graphs)
        with replacing(Place(self._file), overwrite=overwrite) as temporary:
            with writing(self._file):
                temporary.write_text(text, encoding="utf-8")
            yield


def _page() -> _Render:
    from rnn_lowering.report.page import render  # its libraries are needed for a page only

    return render


def _json(report: FileReport, run_nodes: RunNodes, graphs: _Graphs) -> str:
    return report.to_json() + "\n"
