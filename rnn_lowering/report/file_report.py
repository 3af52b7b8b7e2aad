"""The lowering and verification of a file, as data; its file is JSON or an HTML page, by the ending of its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from rnn_lowering.compare.result import NOT_ASKED_FOR, UNCHANGED, Verification
from rnn_lowering.errors import OptionError
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.files.atomic import Place, replacing
from rnn_lowering.files.scratch import writing
from rnn_lowering.passes.report import ASSUMED, Report
from rnn_lowering.report.use import Port, next_steps

if TYPE_CHECKING:  # they import what runs models
    from rnn_lowering.compare.verify import RunNodes
    from rnn_lowering.streaming.integers.quantization import Quantization


def _texts(ports: Sequence[Port]) -> str:
    return ", ".join(map(str, ports)) or "none"


@dataclass(frozen=True)
class ModelFile:
    """A model file.

    Attributes:
        name: Its name without the folder.
        bytes: Its size, files of external data included.
        data: The names of its files of external data.
        opset: The version of the default operator set.
        inputs: Its inputs without those that have a default.
        outputs: Its outputs.
    """

    name: str
    bytes: int
    data: tuple[str, ...]
    opset: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @classmethod
    def of(cls, path: Path, data: Iterable[Path], model: ir.Model) -> ModelFile:
        files = {path, *data}
        size, beside = sum(file.stat().st_size for file in files), sorted(file.name for file in files - {path})
        inputs = tuple(Port.of(v) for v in model.graph.inputs if not v.is_initializer())
        outputs = tuple(Port.of(v) for v in model.graph.outputs)
        return cls(path.name, size, tuple(beside), default_opset(model.opset_imports), inputs, outputs)


@dataclass(kw_only=True, repr=False)
class FileReport(Report):
    """The result of lowering a file.

    Attributes:
        original, lowered: The model files.
        source, destination: Where they are.
        command: The command line; empty if Python called `lower_file`.
        verification: The result of the comparison; its status is "not compared" if none was requested.
        quantization: How far the quantized stream is from the float one; None if it was not quantized.
        written: Whether the lowered model is written: not if the comparison failed, or was required and impossible.
        kept: The name of the file that has a model that failed the comparison; empty if there is none.
        report_file: The file that has the report itself; None if there is none.

    Examples:
        >>> report = rl.lower_file("model.onnx", "lowered.onnx", verify=0, overwrite=True)
        >>> print(report)
        lowered 1 LSTM node: scan
        lowered 1 GRU node: scan
        not compared with the original: no run was asked for
        written to lowered.onnx
        for a runtime without Scan: to="unroll", dims={"seq": ?}, or name it with target
        run it: onnxruntime.InferenceSession('lowered.onnx').run(None, {'X': X})
    """

    original: ModelFile
    lowered: ModelFile
    source: Path
    destination: Path
    command: str = ""
    verification: Verification = NOT_ASKED_FOR
    quantization: Quantization | None = None
    written: bool = True
    kept: str = ""
    report_file: Path | None = None

    @property
    def unfinished(self) -> str:
        """What to know of a model that is written although a limit ended the comparison; "" of others."""
        check = self.verification
        if check is None or not check.over_limit:
            return ""
        return f"{self.lowered.name} is written, but {check}; with --require-verified it would not be"

    @property
    def interface_changed(self) -> bool:
        """Whether the inputs or outputs of the written model differ from those of the original."""
        before, after = self.original, self.lowered
        return (before.inputs, before.outputs) != (after.inputs, after.outputs)

    @classmethod
    def of(cls, report: Report, original: ModelFile, lowered: ModelFile, **more: Any) -> FileReport:
        """Return the report of the pass with its files."""
        return cls(**vars(report), original=original, lowered=lowered, **more)

    def __repr__(self) -> str:
        return f"<FileReport: {'; '.join(self._done())}>"

    def lines(self) -> Iterator[str]:
        yield from self._done()
        if self.written and self.lowered_any:
            yield from next_steps(self)

    def _done(self) -> Iterator[str]:
        """Yield what was done, without how the result is run."""
        if not self.lowered_any:
            now = f"the inputs are now {_texts(self.lowered.inputs)}" if self.interface_changed else "unchanged"
            yield f"{self.source}: nothing to lower; {now}"
        check = self.verification
        yield from (line for line in super().lines() if not (line.startswith(ASSUMED) and line in check.reason))
        if check.status == UNCHANGED and check.in_target is not None:
            check = check.in_target
        changed = self.lowered_any or self.interface_changed or check is not self.verification
        if check.status != UNCHANGED and changed:
            yield str(check)
        if self.quantization is not None:
            yield str(self.quantization)
        if self.written:
            files = [self.destination, *map(self.destination.with_name, self.lowered.data)]
            yield f"written to {' and '.join(map(str, files))}"
        if self.report_file is not None:
            yield f"report: {self.report_file}"

    def to_dict(self) -> dict[str, Any]:
        files = {"before": asdict(self.original), "after": asdict(self.lowered)}
        quantization = None if self.quantization is None else asdict(self.quantization)
        return super().to_dict() | {
            "command": self.command,
            "files": files,
            "written": self.written,
            "kept": self.kept,
            "verification": self.verification.to_dict(),
            "quantization": quantization,
        }


Graphs = Callable[[], tuple[ir.Graph, ir.Graph]]
"""Returns the main graphs of the original and of the result: a page draws them."""

_Render: TypeAlias = "Callable[[FileReport, RunNodes, Graphs], str]"
"""Returns the text of a report's file."""


class ReportWriter:
    """Writes reports to a file, as JSON or as an HTML page by the ending of its name; None: it writes nothing.

    Raises:
        OptionError: The name ends in neither .json nor .html.
        RnnLoweringError: The libraries that a page needs are missing.
    """

    def __init__(self, file: Path | None) -> None:
        if file is not None and file.suffix not in (".json", ".html"):
            raise OptionError(f"report '{file}' ends in neither .json nor .html")
        self._file = file
        self._render = _page() if file is not None and file.suffix == ".html" else _json

    @contextmanager
    def write(self, report: FileReport, run_nodes: RunNodes, graphs: Graphs, *, overwrite: bool) -> Iterator[None]:
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


def _json(report: FileReport, run_nodes: RunNodes, graphs: Graphs) -> str:
    return report.to_json() + "\n"
