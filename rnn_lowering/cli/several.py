"""Several models in one call: each is lowered into a folder, or listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from rnn_lowering.cli.console import Table, print_line, print_table
from rnn_lowering.cli.listing import Listing, print_json
from rnn_lowering.compare.options import Check
from rnn_lowering.errors import OptionError, RnnLoweringError, counted, printable
from rnn_lowering.file_lowering import FileLowering
from rnn_lowering.files.options import Files
from rnn_lowering.files.reading import load_model
from rnn_lowering.files.scratch import writing
from rnn_lowering.options import Lowering
from rnn_lowering.report.file_report import FileReport
from rnn_lowering.types import Progress

Fail = Callable[[Path, RnnLoweringError], int]
"""Says why a model failed, and returns the exit code."""

_NOT_WRITTEN, _NOT_TRIED = "not written", "not tried"


def places(models: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Return where the result of each model goes.

    Raises:
        OptionError: Two results would have one name.
    """
    taken: dict[Path, Path] = {}
    for model in models:
        other = taken.setdefault(folder / model.name, model)
        if other is not model:
            raise OptionError(
                f"'{other}' and '{model}' would both be written to '{folder / model.name}'",
                hint="lower them into different folders",
            )
    return {model: place for place, model in taken.items()}


@dataclass
class Series:
    """A call for several models.

    Attributes:
        lowering, check, files: The options. A size, shape or value holds for the models that have it.
        fail: Says why a model failed.
        keep_going: Whether to go on after an error.
        code: The highest exit code so far.
        rows: Of each model its name and what was done, for the table at the end.
    """

    lowering: Lowering
    check: Check
    files: Files
    fail: Fail
    keep_going: bool = False
    code: int = 0
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def list(self, models: Sequence[Path], *, as_json: bool, quiet: bool) -> int:
        """Print what would be done to each model; return the exit code."""
        data = []
        for path in models:
            try:
                model = self._read(path)
                listing = Listing.of(path, model, self._fitting(model)[0])
            except RnnLoweringError as error:
                self.code = _worse(self.code, self.fail(path, error))
                data.append({"file": str(path), "error": str(error)})
                continue
            self.code = _worse(self.code, listing.code)
            data.append(listing.to_dict())
            for line in listing.lines() if not (as_json or quiet) else ():
                print_line(line)
        if as_json:
            print_json(data)
        return self.code

    def lower(self, places: dict[Path, Path], command: str, show: Progress | None) -> int:
        """Lower each model to its place; return the exit code."""
        for number, (source, destination) in enumerate(places.items(), 1):
            try:
                report = self._lower(source, destination, command, _named(show, source, number, len(places)))
            except RnnLoweringError as error:
                self.code = max(self.code, self.fail(source, error))
                self.rows.append((str(source), "", _NOT_WRITTEN))
                if not self.keep_going:
                    self.rows += [(str(path), "", _NOT_TRIED) for path in [*places][number:]]
                    break
            else:
                self.rows.append((str(source), _lowered(report), report.verification.status))
        return self.code

    def _lower(self, source: Path, destination: Path, command: str, show: Progress | None) -> FileReport:
        lowering, check = self._fitting(self._read(source))
        with writing(destination.parent):
            destination.parent.mkdir(parents=True, exist_ok=True)
        return FileLowering(
            source=source,
            destination=destination,
            lowering=lowering,
            check=check,
            files=self.files,
            progress=show,
            command=command,
        ).run()

    def _read(self, path: Path) -> ir.Model:
        return load_model(path, trust_external_data=self.files.trust_external_data)

    def _fitting(self, model: ir.Model) -> tuple[Lowering, Check]:
        """Return the options without sizes and values of what a model does not have."""
        inputs = {value.name for value in model.graph.inputs}
        dims = {str(dim) for value in model.graph.inputs for dim in value.shape or ()}
        lowering, check = self.lowering, self.check
        fitting = replace(
            lowering,
            dims={name: size for name, size in lowering.dims.items() if name in dims},
            input_shapes={name: shape for name, shape in lowering.input_shapes.items() if name in inputs},
            set_inputs={name: value for name, value in lowering.set_inputs.items() if name in inputs},
        )
        shapes = {name: shape for name, shape in (check.shapes or {}).items() if name in inputs}
        feeds = [{n: a for n, a in feed.items() if n in inputs} for feed in check.feeds or ()]
        return fitting, replace(check, shapes=shapes or None, feeds=[feed for feed in feeds if feed] or None)

    def print(self, folder: Path) -> None:
        """Print a row for each model, and where the results are."""
        table = Table(("model", "lowered", "result"), folds=("lowered",))
        for row in self.rows:
            table.add(*row, style="red" if row[2].startswith("not ") else "")
        print_table(table)
        if written := sum(result not in (_NOT_WRITTEN, _NOT_TRIED) for _, _, result in self.rows):
            print_line(f"{counted(written, 'file')} written to {printable(str(folder))}")


def _worse(one: int, other: int) -> int:
    """Return the exit code that counts of two listings: what cannot be lowered, then what would be."""
    return 1 if 1 in (one, other) else max(one, other)


def _lowered(report: FileReport) -> str:
    kinds = Counter(node.operator for node in report.nodes)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _named(show: Progress | None, source: Path, number: int, count: int) -> Progress | None:
    """Return a callback that says which of the models it is."""
    if show is None:
        return None
    return lambda phase, done, total: show(f"{number}/{count} {printable(source.name)}: {phase}", done, total)
