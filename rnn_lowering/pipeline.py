"""Lower a file: read, lower, write to temporary names, compare, report, then replace."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import onnx_ir as ir

from rnn_lowering.compare.nodes.runs import NodeRun
from rnn_lowering.compare.result import Verification
from rnn_lowering.compare.runner.process import Runner
from rnn_lowering.compare.verify import compare_stream, open_comparison
from rnn_lowering.compare.whole import ModelComparison
from rnn_lowering.errors import NotVerifiedError, OptionError, VerificationError, boundary
from rnn_lowering.files.atomic import Place, replacing
from rnn_lowering.files.external_data import choose_data_file, data_files, save
from rnn_lowering.files.output_files import Outputs
from rnn_lowering.files.reading import ModelSource, parse_file, readable_again
from rnn_lowering.files.scratch import writing
from rnn_lowering.model.scopes import NodePlace
from rnn_lowering.options import Check, Files
from rnn_lowering.passes.lower import LoweringResult, LowerRecurrentPass
from rnn_lowering.report.file_report import FileReport, ModelFile
from rnn_lowering.report.writer import ReportWriter
from rnn_lowering.types import WRITING, Progress

_NOT_KEPT = "the model is not written; --keep-failed FILE (keep_failed=) keeps it"
_ADVICE = (
    "if this difference is acceptable, raise --atol or --rtol (tolerance=); otherwise please report it "
    "with the original, the kept model and the file of --report FILE.json"
)

_Tell = Callable[[], AbstractContextManager[None]]
"""Prepares the report; it is in its place when the context is left."""


@dataclass(frozen=True)
class FileLowering:
    """One run of `lower_file`: the fields are its arguments; `command` goes into the report."""

    source: Path
    destination: Path
    lowers: LowerRecurrentPass
    check: Check
    files: Files
    progress: Progress | None
    command: str = ""

    @property
    def outputs(self) -> Outputs:
        """The files that may be written, except a data file."""
        files = self.files
        return Outputs(self.destination, kept=files.keep_failed, report=files.report, overwrite=files.overwrite)

    def run(self) -> FileReport:
        """Lower the file; raise what `lower_file` documents."""
        self._check_options()
        with boundary(), ExitStack() as last:
            writer = ReportWriter(self.outputs.report)
            self.outputs.check([self.source])
            file, pipe = last.enter_context(readable_again(self.source))
            original = parse_file(file, trust_external_data=self.files.trust_external_data, piped_from=pipe)
            model = original.new_model()
            data = data_files(model)
            inputs = (self.source, *data)
            outputs = self._outputs_of(model, inputs)
            before = replace(ModelFile.of(file, data, model), name=self.source.name)
            runner = last.enter_context(self._started_early())
            result = self.lowers.call(model, keep=bool(self.check.runs or self.outputs.report))
            place, place_of_kept = outputs.placed(inputs)
            with replacing(place, overwrite=outputs.overwrite) as written, ExitStack() as until_told:
                self._write(result, file, written, place)
                after = ModelFile.of(written, written.parent.iterdir(), result.model)
                done = FileReport.of(result.report, before, after, self.command)
                both = cache(lambda: until_told.enter_context(self._comparison(original, written, result)))
                tell = partial(writer.write, done, partial(_run_nodes, both), overwrite=outputs.overwrite)
                if result.modified and self.check.runs:
                    done.verification = self._in_chunks(original, written, runner) if runner else both().result()
                    keep = partial(_keep, result.model, place_of_kept, outputs.overwrite)
                    self._refuse(done, done.verification, keep, tell)
                last.enter_context(tell())
        return done

    def _check_options(self) -> None:
        if self.files.require_verified and not self.check.runs:
            raise OptionError("a verification is required, but the number of runs is 0", hint="give 1 or more")

    def _outputs_of(self, model: ir.Model, inputs: Iterable[Path]) -> Outputs:
        """Return the outputs with the data file, checked against the files of the model."""
        data = choose_data_file(model, self.outputs.model.name, self.files.external_data)
        outputs = replace(self.outputs, data=data)
        outputs.check(inputs)
        outputs.check_endings()
        return outputs

    def _write(self, result: LoweringResult, file: Path, written: Path, place: Place) -> None:
        with writing(place.path):
            if not result.modified and self.files.external_data == "auto" and not data_files(result.model):
                shutil.copyfile(file, written)
            else:
                progress = None if self.progress is None else partial(self.progress, WRITING)
                save(result.model, written, place.data, progress)

    def _comparison(
        self, original: ModelSource, written: Path, result: LoweringResult
    ) -> AbstractContextManager[ModelComparison]:
        trust = self.files.trust_external_data
        return open_comparison(
            original,
            written,
            check=self.check,
            trust_external_data=trust,
            progress=self.progress,
            prepared=result.prepared,
        )

    def _started_early(self) -> AbstractContextManager[Runner | None]:
        """Return the process that compares a stream, which imports onnxruntime while the stream is made; None if
        nothing or no stream is compared."""
        certain = self.check.runs and self.lowers.lowering.stream is not None
        return Runner(self.check.timeout) if certain else nullcontext()

    def _in_chunks(self, original: ModelSource, written: Path, runner: Runner) -> Verification:
        trust, progress = self.files.trust_external_data, self.progress
        return compare_stream(
            original, written, runner, check=self.check, trust_external_data=trust, progress=progress
        )

    def _refuse(self, done: FileReport, found: Verification, keep: Callable[[], str], tell: _Tell) -> None:
        """Raise where the models differ, or a comparison is required and was not possible."""
        if found.status == "failed":
            facts = (_attempt(keep), _attempt(partial(_written, tell)), _ADVICE)
            raise VerificationError(str(found), hint=_joined(facts), report=done)
        if self.files.require_verified and not found:
            hint = _joined(("the model is not written", _attempt(partial(_written, tell))))
            raise NotVerifiedError(str(found), hint=hint, report=done)


def _run_nodes(both: Callable[[], ModelComparison], places: Collection[NodePlace]) -> dict[NodePlace, NodeRun]:
    return both().nodes_one_by_one.runs(places)


def _keep(model: ir.Model, place: Place | None, overwrite: bool) -> str:
    """Write a model that failed the verification; return where it is, as text."""
    if place is None:
        return _NOT_KEPT
    with replacing(place, overwrite=overwrite) as written, writing(place.path):
        save(model, written, place.data)
    return f"it is kept as '{place.path}'"


def _written(tell: _Tell) -> str:
    """Write the report; return no message."""
    with tell():
        return ""


def _joined(facts: Iterable[str]) -> str:
    return "; ".join(fact for fact in facts if fact)


def _attempt(write: Callable[[], str]) -> str:
    """Write a file about a failed verification; return an error as text, since it must not hide the failure."""
    try:
        return write()
    except Exception as error:
        return str(error)
