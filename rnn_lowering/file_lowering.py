"""One run of `lower_file`: read, lower, write to temporary names, compare, report, then replace."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from rnn_lowering.compare.options import Check
from rnn_lowering.compare.verify import (
    ACCEPTED_ONLY,
    NOTHING_LOWERED,
    UNCHANGED,
    ModelComparison,
    NodeRun,
    Runner,
    Verification,
    compare_stream,
    load_early,
    open_comparison,
    runtime_of,
    with_target,
)
from rnn_lowering.errors import (
    NotVerifiedError,
    OptionError,
    RnnLoweringError,
    UnfinishedWarning,
    UnsupportedError,
    VerificationError,
    boundary,
    page_named,
    warn,
)
from rnn_lowering.files.atomic import Outputs, Place, replacing
from rnn_lowering.files.external_data import choose_data_file, data_files, save
from rnn_lowering.files.one_file import LARGE, text_format
from rnn_lowering.files.options import Files
from rnn_lowering.files.reading import ModelSource, parse_file, readable_again
from rnn_lowering.files.scratch import writing
from rnn_lowering.flags import set_input
from rnn_lowering.libraries import without_onnxruntime
from rnn_lowering.model.scopes import NodePlace
from rnn_lowering.options import Lowering
from rnn_lowering.passes.lower import LoweringResult, lower_model
from rnn_lowering.passes.report import ASSUMED, count_operators
from rnn_lowering.passes.stages import NO_STREAM
from rnn_lowering.report.file_report import FileReport, ModelFile, ReportWriter
from rnn_lowering.streaming.options import parse_stream
from rnn_lowering.types import LOWERING, READING, WRITING, Array, Progress, counter

if TYPE_CHECKING:
    from rnn_lowering.compare.runs.sessions import Session
    from rnn_lowering.targets.installed import Runtime

_NOT_KEPT = "the model is not written; --keep-failed FILE keeps it"

_REPORT = "please report it with the original, the kept model and {report}"
_ADVICE = "if this difference is acceptable, accept it (--atol {atol}); otherwise " + _REPORT
_INTEGERS = "do they follow from numbers that are equal? --test-input NAME=FILE.npy gives others; or " + _REPORT
_SIZES = "are these sizes too small for the model? --test-shape NAME:D0,... gives others; otherwise " + _REPORT

_OTHERS_REPLACED = (
    "{}; other nodes were replaced, so nodes alone prove nothing (give inputs that it takes: --test-input, "
    "--test-shape; or replace none: --keep-rest)"
)

_OPSETS = {"w8a16": 21}
"""First opset whose QuantizeLinear has these bits; others need none newer than a lowered model has."""

_MANY_NODES = 10_000
"""Of a result with more nodes, the command says how long the comparison takes."""

_TIMES = 3
"""About how many times as long as making such a result its comparison takes, by few readings, of 1.5 to 4."""

_WriteReport = Callable[[], AbstractContextManager[None]]
"""Writes the report to a temporary name; it gets its own when the context is left."""


@dataclass(frozen=True)
class _ReadSource:
    """What was read.

    Attributes:
        file: The file.
        model: The model, which is lowered.
        exports: The original and its other exports, as the comparison sees them.
        files: The source and its data files.
        before: What the report says of it.
    """

    file: Path
    model: ir.Model
    exports: Sequence[ModelSource]
    files: tuple[Path, ...]
    before: ModelFile

    @property
    def original(self) -> ModelSource:
        return self.exports[0]

    @property
    def is_small(self) -> bool:
        """Whether the model and all its tensors are in memory, and few."""
        return len(self.files) == 1 and self.original.proto.ByteSize() < LARGE and not self.original.inside


@dataclass(frozen=True)
class FileLowering:
    """The fields are the arguments of `lower_file`; `command` goes into the report."""

    source: Path
    destination: Path
    lowering: Lowering
    check: Check
    files: Files
    progress: Progress | None
    command: str = ""

    @property
    def outputs(self) -> Outputs:
        """The files that may be written, except a data file."""
        files = self.files
        return Outputs(self.destination, kept=files.keep_failed, report=files.report, overwrite=files.overwrite)

    @cached_property
    def _runtime(self) -> Runtime | None:
        """The runtime in which the result is to run; None if it is in none."""
        return runtime_of(self.check, self.lowering.target if self.check.run_in_target else None)

    def run(self) -> FileReport:
        """Lower the file; raise what `lower_file` documents."""
        report = self._run()
        if unfinished := report.unfinished:
            warn(unfinished, UnfinishedWarning)
        return report

    def _run(self) -> FileReport:
        began = monotonic()
        if (self.files.require_verified or self.files.require_proven) and not self.check.runs:
            raise OptionError("a verification is required, but the number of runs is 0", hint="give 1 or more")
        with boundary(), ExitStack() as last:
            self._check_calibration()
            _ = self._runtime  # which is looked for before anything is read
            writer = ReportWriter(self.outputs.report)
            self.outputs.check([self.source])
            source = self._read(*last.enter_context(readable_again(self.source)))
            outputs = self._outputs_of(source.model, source.files)
            runner = last.enter_context(self._started_early())
            early = self._loaded_early(source, runner)
            result = self._lowered(source)
            place, place_of_kept = outputs.placed(source.files)
            with replacing(place, overwrite=outputs.overwrite) as written, ExitStack() as until_reported:
                self._write(result, source.file, written, place)
                sequences = self._sequences(written)
                report = self._report(result, source.before, written)
                comparison = cache(
                    lambda: until_reported.enter_context(
                        self._open(source.original, written, result, runner=runner, early=early)
                    )
                )
                node_runs = partial(_node_runs, comparison)
                write_report = partial(
                    writer.write,
                    report,
                    node_runs,
                    lambda: (source.original.model.graph, result.model.graph),
                    overwrite=outputs.overwrite,
                )
                if self.check.runs and result.modified and not without_onnxruntime("it"):
                    _warn_of_a_long_comparison(report, monotonic() - began)
                report.verification = self._verification(report, source, result, written, runner, comparison)
                if comparison.cache_info().currsize and (places := comparison().contradicted):
                    report.notes.append(_open_outputs(result, places))
                    self._write(result, source.file, written, place)
                    report.lowered = ModelFile.of(written, written.parent.iterdir(), result.model)
                if report.verification and self.lowering.open_dims:
                    report.verification = self._beside(report, source.exports, written)
                if not result.modified or self.check.runs:
                    keep = partial(_keep, result.model, place_of_kept, outputs.overwrite)
                    self._refuse(report, report.verification, keep, write_report)
                if sequences:
                    self._quantize(report, written, sequences)
                last.enter_context(write_report())
        return report

    def _read(self, file: Path, piped_from: Path | None) -> _ReadSource:
        """Read the model and its other exports; `file` is the source, or a copy of what came by a pipe."""
        read, trust = counter(self.progress, READING, 1), self.files.trust_external_data
        original = parse_file(file, trust_external_data=trust, piped_from=piped_from)
        model, exports = original.new_model(), [original]
        if self.lowering.open_dims:
            from rnn_lowering.opening.open_dims import exports_of

            exports = exports_of(original, self.lowering, trust_external_data=trust)
        data = data_files(model)
        before = replace(ModelFile.of(file, data, model), name=self.source.name)
        read()
        return _ReadSource(file, model, exports, (self.source, *data), before)

    def _lowered(self, source: _ReadSource) -> LoweringResult:
        lowered, keep = counter(self.progress, LOWERING, 1), bool(self.check.runs or self.outputs.report)
        read_again, whole = source.original.new_model, source.is_small
        result = lower_model(source.model, self.lowering, read_again=read_again, keep=keep, as_message=whole)
        lowered()
        return result

    def _report(self, result: LoweringResult, before: ModelFile, written: Path) -> FileReport:
        return FileReport.of(
            result.report,
            before,
            ModelFile.of(written, written.parent.iterdir(), result.model),
            source=self.source,
            destination=self.destination,
            command=self.command,
            report_file=self.outputs.report,
        )

    def _verification(
        self,
        report: FileReport,
        source: _ReadSource,
        result: LoweringResult,
        written: Path,
        runner: Runner | None,
        comparison: Callable[[], ModelComparison],
    ) -> Verification:
        """Return the result of a comparison with the original, or why there is none."""
        if not result.modified:
            check = with_target(Verification(UNCHANGED, reason=NOTHING_LOWERED), comparison, self._runtime)
        elif not self.check.runs:
            return report.verification
        elif self.lowering.stream is None or runner is None:
            check = _compared(comparison, others_replaced=bool(report.replaced))
            check = with_target(check, comparison, self._runtime)
        else:
            comparing = {**self._comparing, "runtime": self._runtime}
            check = compare_stream(source.original, written, runner, **comparing)
        return self._told_of_closed(check, source.original) if self.check.runs else check

    def _told_of_closed(self, check: Verification, original: ModelSource) -> Verification:
        """Return the result of a comparison with the axes that the original declares open, though it runs at one
        size only."""
        if (check and check.whole and ACCEPTED_ONLY not in check.reason) or check.status == "failed":
            return check
        from rnn_lowering.opening.lone_export import closed_axis

        with suppress(RnnLoweringError):
            if closed := closed_axis(original.model, self.lowering.max_nodes):
                return check.with_advice(closed)
        return check

    def _beside(self, report: FileReport, exports: Sequence[ModelSource], written: Path) -> Verification:
        """Compare the result with the other exports at their sizes too; say what was assumed."""
        from rnn_lowering.opening.open_dims import sizes_of

        others = []
        for export in exports[1:]:
            model = export if export.path.name else export.proto
            if self.lowering.stream is not None:
                with Runner(self.check.timeout) as runner:
                    others.append(compare_stream(model, written, runner, **self._comparing))
            else:
                with open_comparison(model, written, **self._comparing) as comparison:
                    others.append(comparison.result())
        check = report.verification.beside(others, sizes_of(exports, self.lowering.open_dims))
        assumed = "; ".join(note for note in report.notes if note.startswith(ASSUMED))
        return check.with_advice(assumed) if check and assumed else check

    def _check_calibration(self) -> None:
        """Refuse, before any work, a calibration that cannot succeed."""
        files, lowering = self.files, self.lowering
        if files.calibrate is None:
            return
        if lowering.stream is None:
            raise OptionError(
                "only a stream can be calibrated", hint="add --stream AXIS=1 (AXIS: the time dimension)"
            )
        if self.check.run_in_target:
            raise OptionError(
                "a quantized stream is not run in its target: it differs from the original by its rounding",
                hint="drop --run-in-target or --calibrate",
            )
        if absent := without_onnxruntime("a calibration"):
            raise UnsupportedError(absent)
        from rnn_lowering.streaming.integers.quantization import refuse_open_frames, sequence_files

        refuse_open_frames(set(parse_stream(lowering.stream).values()))
        if isinstance(files.calibrate, Path):
            sequence_files(files.calibrate)
        needed, newest = _OPSETS.get(files.bits, 0), lowering.runtime.newest_opset
        if newest and needed > newest:
            raise UnsupportedError(
                f"{files.bits} needs opset {needed}, but {lowering.target} reads opsets up to {newest}",
                hint="use w8a8",
            )

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
            elif result.message is not None and place.data is None and not text_format(written):
                written.write_bytes(result.message.SerializeToString())
            else:
                progress = None if self.progress is None else partial(self.progress, WRITING)
                save(result.model, written, place.data, progress)

    def _sequences(self, written: Path) -> list[dict[str, Array]]:
        """Return the sequences to calibrate with, which fit the written stream; none without a calibration."""
        if self.files.calibrate is None:
            return []
        from rnn_lowering.streaming.integers.quantization import fitting_sequences

        if len(list(written.parent.iterdir())) > 1:
            raise UnsupportedError("a model with a data file cannot be quantized", hint="use --external-data never")
        return fitting_sequences(written, self.files.calibrate)

    def _quantize(self, report: FileReport, written: Path, sequences: list[dict[str, Array]]) -> None:
        """Quantize the written stream in place, and say so in the report."""
        from rnn_lowering.streaming.integers.quantization import quantize

        files, target = self.files, self.lowering.target
        quantized, report.quantization = quantize(
            written, sequences, files.bits, target, files.overwrite, forced_by="--force"
        )
        onnx.save(quantized, written)
        model = ir.from_proto(quantized)
        report.lowered = ModelFile.of(written, (), model)
        report.operators_after = count_operators(model)

    @property
    def _comparing(self) -> dict[str, Any]:
        """The keywords of a comparison."""
        trust = self.files.trust_external_data
        return {"check": self.check, "trust_external_data": trust, "progress": self.progress}

    def _open(
        self, original: ModelSource, written: Path, result: LoweringResult, **started: Any
    ) -> AbstractContextManager[ModelComparison]:
        return open_comparison(original, written, prepared=result.prepared, **started, **self._comparing)

    def _started_early(self) -> AbstractContextManager[Runner | None]:
        """Return the process that runs the models: it imports onnxruntime while one is lowered. None if no models
        are compared."""
        needed = self.check.runs and not without_onnxruntime("it")
        return Runner(self.check.timeout) if needed else nullcontext()

    def _loaded_early(self, source: _ReadSource, runner: Runner | None) -> Session | None:
        """Return the session of a small original, which is loaded while it is lowered; None if none is."""
        original = source.original
        is_plain = source.is_small and not original.proto.functions and not text_format(original.path)
        if runner is not None and self.lowering.stream is None and is_plain:
            with suppress(Exception):  # a model that cannot be read is the lowering's to refuse
                return load_early(original, runner)
        return None

    def _unproven(self, check: Verification) -> str:
        """Return which node of a verified model should be proven and is not; "" if there is none."""
        if not (check and self.files.require_proven):
            return ""
        if not check.proofs:
            return "not proven: no node was compared on its own"
        return next((f"{proof.node} is not proven: {proof.reason}" for proof in check.proofs if not proof), "")

    def _refuse(
        self, report: FileReport, check: Verification, keep: Callable[[], str], write_report: _WriteReport
    ) -> None:
        """Raise if the models differ, or if a comparison is required and was not possible."""
        failed, unproven = check.status == "failed", self._unproven(check)
        required = self.files.require_verified or self.files.require_proven or self.check.run_in_target
        if not failed and not unproven and (check.status in ("verified", UNCHANGED) or not required):
            return
        report.written = False
        facts = [] if failed else ["the model is not written"]
        if failed:
            with _told(facts):
                report.kept = keep()
                facts.append(f"it is kept as '{self.files.keep_failed}'" if report.kept else _NOT_KEPT)
        named = "the file of --report FILE.json"
        with _told(facts):
            with write_report():
                pass
            named = f"'{self.files.report}'" if self.files.report else named
        there = check.in_target
        hint = "; ".join([*facts, _advice(check, report, named)] if failed else facts)
        error = (VerificationError if failed else NotVerifiedError)(
            unproven or str(check), hint=hint, report=report
        )
        error.page = error.page if there is None else "verification.md#run-it-in-its-target"
        raise error


def _warn_of_a_long_comparison(report: FileReport, seconds: float) -> None:
    """Say how long the comparison of a large result takes, judged by the seconds that it took to make it."""
    count = sum(report.operators_after.values())
    if count > _MANY_NODES:
        warn(
            f"the result has {count:,} nodes, so its comparison takes about {_TIMES * seconds:.0f} s, more for "
            "large inputs; --verify 1 compares fewer inputs, and --verify 0 none"
        )


def _open_outputs(result: LoweringResult, places: Collection[tuple[str, int]]) -> str:
    """Open the sizes of outputs in place; return a note."""
    result.message = None  # which declares what it did
    for value in result.model.graph.outputs:
        if value.shape is not None:
            kept = (None if (value.name, axis) in places else dim for axis, dim in enumerate(value.shape))
            value.shape = ir.Shape(list(kept))
    named = ", ".join(f"axis {axis} of '{name}'" for name, axis in sorted(places))
    return f"opened declared sizes of outputs that the runs contradict: {named}"


def _advice(check: Verification, report: FileReport, named: str) -> str:
    """Return what to do about a comparison that failed: what may help if the target does not run the result, the
    tolerance that accepts what it found if outputs were compared and only numbers differ. `named` is the report."""
    there = check.in_target
    if there is not None and not there.runs:
        return _way_out(report)
    wrong = [output for output in (check if there is None else there).outputs if not output.passed]
    if wrong and all(math.isfinite(output.max_abs) and "tolerance" in output.reason for output in wrong):
        return _ADVICE.format(atol=f"{2 * max(output.max_abs for output in wrong):.0e}", report=named)
    if there is None or not wrong:
        return _REPORT.format(report=named)
    advice = _INTEGERS if all(math.isfinite(output.max_abs) for output in wrong) else _SIZES
    return advice.format(report=named)


def _way_out(report: FileReport) -> str:
    """Return what may help if the target does not run the result."""
    shapes = [port.shape or () for port in report.lowered.inputs]
    names = dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str))
    sizes = " ".join(map(NO_STREAM.option, names))
    switches = [port.name for port in report.lowered.inputs if port.is_switch and "If" in report.operators_after]
    ways = [f"fixed sizes may help, with a number for each ?: {sizes}"] if sizes else []
    if switches:
        ways.append(f"an input that decides a branch may be a constant: {' '.join(map(set_input, switches))}")
    return "; ".join([*ways, f"{page_named('runtimes.md')} says under {report.target} what it lacks"])


def _compared(comparison: Callable[[], ModelComparison], *, others_replaced: bool) -> Verification:
    """Return the result of a comparison, or that there can be none: of nodes alone if others were replaced."""
    if absent := without_onnxruntime("a comparison"):
        return Verification("not verified", reason=absent)
    check = comparison().result()
    return (
        Verification("not verified", reason=_OTHERS_REPLACED.format(check.reason))
        if others_replaced and check and not check.whole
        else check
    )


def _node_runs(
    comparison: Callable[[], ModelComparison], places: Collection[NodePlace]
) -> dict[NodePlace, NodeRun]:
    """Run nodes on their own, for a page."""
    if absent := without_onnxruntime("a plot"):
        raise UnsupportedError(absent)
    return comparison().nodes_one_by_one.runs(places)


def _keep(model: ir.Model, place: Place | None, overwrite: bool) -> str:
    """Write a model that failed the verification; return the name of its file, "" if none is wanted."""
    if place is None:
        return ""
    with replacing(place, overwrite=overwrite) as written, writing(place.path):
        save(model, written, place.data)
    return place.path.name


@contextmanager
def _told(facts: list[str]) -> Iterator[None]:
    """Add an error of the block to the facts about a failed verification, which it must not hide."""
    try:
        yield
    except Exception as error:
        facts.append(str(error))
