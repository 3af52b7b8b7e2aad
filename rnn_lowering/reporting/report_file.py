"""The file that a report goes to: JSON or an HTML page, by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

from rnn_lowering.errors import ModelFileError, UnsupportedError
from rnn_lowering.files.atomic import temporary_beside
from rnn_lowering.passes.report import Report

KINDS = (".json", ".html")

Writer = Callable[[Path, Path, Report], None]
"""Takes the files of the original and of the lowered model, and what was done. Raises ModelFileError."""


def report_writer(path: str | os.PathLike[str] | None, models: Collection[Path]) -> Writer:
    """Return what writes a report to `path`, at once or not at all; with None, nothing is written.

    Args:
        path: A file whose name ends in .json or .html.
        models: Files that it must not replace.

    Raises:
        UnsupportedError: The name ends otherwise, or is that of a model.
        ModelFileError: Nothing can be written there.
        RnnLoweringError: The libraries that a page needs are missing.
    """
    if path is None:
        return lambda original, lowered, report: None
    file = Path(path)
    if file.suffix not in KINDS:
        raise UnsupportedError(f"report '{file}' ends in neither {' nor '.join(KINDS)}")
    if file.resolve() in {model.resolve() for model in models}:
        raise UnsupportedError(f"the report would replace the model '{file}'", hint="write it to another file")
    if not file.parent.is_dir():
        raise ModelFileError(f"cannot write '{file}': its folder does not exist")
    if file.is_dir():
        raise ModelFileError(f"cannot write '{file}': it is a folder")
    render = _page() if file.suffix == ".html" else _json

    def write(original: Path, lowered: Path, report: Report) -> None:
        text = render(original, lowered, report)
        with temporary_beside(file) as temporary:
            temporary.write_text(text, encoding="utf-8")

    return write


def _page() -> Callable[[Path, Path, Report], str]:
    from rnn_lowering.reporting.page import render  # its libraries are needed for a page only

    return render


def _json(original: Path, lowered: Path, report: Report) -> str:
    return report.to_json() + "\n"
