"""The Python interface: `lower`, `lower_file`, `preview` and `inspect`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import given_progress
from rnn_lowering.compare.node_by_node import NodeRun
from rnn_lowering.compare.result import Verification
from rnn_lowering.compare.runner import Runner
from rnn_lowering.compare.verify import compare_stream, open_comparison
from rnn_lowering.compare.whole import ModelComparison
from rnn_lowering.errors import NotVerifiedError, OptionError, UnsupportedError, VerificationError, boundary
from rnn_lowering.files.atomic import Outputs, Place, replacing
from rnn_lowering.files.external_data import choose_data_file, data_files, load_data, save
from rnn_lowering.files.reading import (
    ModelSource,
    from_proto,
    load_model,
    parse_file,
    readable_again,
    refuse_external,
)
from rnn_lowering.files.scratch import writing
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.copying import clone
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.messages import as_proto
from rnn_lowering.model.preparation import read
from rnn_lowering.model.scopes import NodePlace, recurrent_nodes
from rnn_lowering.needs import without_onnxruntime
from rnn_lowering.nodes.node_spec import NodeSpec
from rnn_lowering.options import (
    Check,
    FileOptions,
    Files,
    Lowering,
    LoweringOptions,
    check_of,
    lowering_of,
    split_file_options,
)
from rnn_lowering.passes.lower import LoweringResult, LowerRecurrentPass
from rnn_lowering.passes.report import Preview, Report, count_operators
from rnn_lowering.report.file_report import FileReport, ModelFile
from rnn_lowering.report.writer import ReportWriter
from rnn_lowering.targets.names import FormName
from rnn_lowering.types import WRITING, ArrayLike, PathLike, Progress

M = TypeVar("M", onnx.ModelProto, ir.Model)


@overload
def lower(
    model: M,
    lowering: Lowering | FormName = "auto",
    *,
    full: Literal[False] = False,
    **options: Unpack[LoweringOptions],
) -> M: ...


@overload
def lower(
    model: M, lowering: Lowering | FormName = "auto", *, full: Literal[True], **options: Unpack[LoweringOptions]
) -> tuple[M, Report]: ...


@overload
def lower(
    model: PathLike,
    lowering: Lowering | FormName = "auto",
    *,
    full: Literal[False] = False,
    **options: Unpack[LoweringOptions],
) -> onnx.ModelProto: ...


@overload
def lower(
    model: PathLike,
    lowering: Lowering | FormName = "auto",
    *,
    full: Literal[True],
    **options: Unpack[LoweringOptions],
) -> tuple[onnx.ModelProto, Report]: ...


def lower(
    model: onnx.ModelProto | ir.Model | PathLike,
    lowering: Lowering | FormName = "auto",
    *,
    full: bool = False,
    **options: Unpack[LoweringOptions],
) -> onnx.ModelProto | ir.Model | tuple[onnx.ModelProto | ir.Model, Report]:
    """Replace the recurrent nodes of a model with primitive operators.

    Args:
        model: A ModelProto, which stays as it is; an onnx_ir Model, which is changed in place; or the path of a
            file, which is read with its data.
        lowering: Which nodes to lower and how, or a form: "auto", "scan", "loop", "unroll", "chunked" or "keep".
        full: Also return the report.
        options: The attributes of `Lowering` as keywords.

    Returns:
        A new ModelProto, also for a path, or the given onnx_ir Model; with `full` a pair: that model and the
        report. Without recurrent nodes the model equals the input.

    Raises:
        InvalidNodeError: A node breaks the specification of its operator.
        UnsupportedError: A valid node or model that these options cannot lower.
        OptionError: A form, target or dimension that does not exist.
        ModelFileError: The path is not an ONNX model, or its data cannot be read or has more than 1.8 GB.

    Examples:
        >>> new = rl.lower(model, target="tvm", dims={"seq": 16})
        >>> rl.inspect(new)
        []
        >>> type(rl.lower("model.onnx"))
        <class 'onnx.onnx_ml_pb2.ModelProto'>
    """
    lowers = LowerRecurrentPass(lowering_of(lowering, options, lower))
    full = argument_checks.flag("full", full)
    given = argument_checks.model_or_path("model", model)
    if isinstance(given, ir.Model):
        report = lowers(given).report
        return (given, report) if full else given
    with boundary():
        work = _in_memory(given)
        result = lowers.call(work, as_message=True)
        new = result.message or (deepcopy(given) if isinstance(given, onnx.ModelProto) else as_proto(work))
    return (new, result.report) if full else new


def _in_memory(model: onnx.ModelProto | Path) -> ir.Model:
    """Return a model with all its data, as an onnx_ir Model."""
    if isinstance(model, onnx.ModelProto):
        work = from_proto(model)
        refuse_external(work)
        return work
    with readable_again(model) as (file, pipe):
        work = parse_file(file, piped_from=pipe).new_model()
        load_data(work)
    return work


def lower_file(
    source: PathLike,
    destination: PathLike,
    lowering: Lowering | FormName = "auto",
    *,
    check: Check | None = None,
    keep_failed: PathLike | None = None,
    report: PathLike | None = None,
    external_data: str = "auto",
    trust_external_data: bool = False,
    require_verified: bool = False,
    overwrite: bool = False,
    calibrate: PathLike | Sequence[Mapping[str, ArrayLike]] | None = None,
    bits: str = "w8a8",
    progress: Progress | None = None,
    **options: Unpack[FileOptions],
) -> FileReport:
    """Lower the model in a file, compare both in onnxruntime, and write the result.

    A model and its data file are written together or not at all. An output cannot be a file of the input, a
    symbolic link, a folder, a FIFO or a device.

    Args:
        source: An ONNX file, which is never changed, or a pipe, which is read once.
        destination: The file to write.
        lowering: Which nodes to lower and how, or a form: "auto", "scan", "loop", "unroll", "chunked" or "keep".
        check: How to compare the models; `Check(runs=0)` for no comparison.
        keep_failed: A file for a model that fails the comparison.
        report: A file for the report, also if the comparison fails: data if its name ends in .json
            (docs/report.md), a page with plots if it ends in .html.
        external_data: "auto": tensors go to a file beside the model if the input has one, or if they are too large
            for one file; "always"; "never"; or the name of that file.
        trust_external_data: Read data files outside the model's folder.
        require_verified: Write nothing if no comparison is possible.
        overwrite: Replace existing files.
        calibrate: Quantize the stream, once it is compared, with ranges from whole sequences: inputs by name, a
            .npy file, a .npz file with an array for each input, or a folder of such files. See `quantize_stream`.
        bits: "w8a8", or "w8a16" for activations and states of 16 bits.
        progress: Called as progress(phase, done, total) after each tensor that goes to a data file, and after each
            run of the verification. The phases are words for the user.
        options: The attributes of `Lowering` and `Check` as keywords: `verify` is the number of runs, `test_shapes`
            are the shapes of random inputs, the others have the same names.

    Returns:
        What was lowered. `report.verification.status` is "verified", or "not verified" if nothing could be
        compared; without recurrent nodes it is None, and the destination is a copy of the source.

    Raises:
        ModelFileError: A file cannot be read or written, or exists.
        VerificationError: The outputs differ; `destination` is not written. The error also tells if
            `report` or `keep_failed` could not be written.
        NotVerifiedError: `require_verified` is given and no comparison was possible; nothing is written.
        UnsupportedError: As in `lower`; or an output is a file of the input, or two outputs are the same file.
        InvalidNodeError, OptionError: As in `lower`; an input or a shape for the comparison that the model does not
            have.

    Examples:
        >>> report = rl.lower_file("model.onnx", "lowered.onnx", to="loop", overwrite=True)
        >>> report.verification.status
        'verified'
    """
    for_lowering, for_check = split_file_options(options, lower_file)
    return FileLowering(
        source=argument_checks.path("source", source),
        destination=argument_checks.path("destination", destination),
        lowers=LowerRecurrentPass(lowering_of(lowering, for_lowering, lower_file)),
        check=check_of(check, for_check, lower_file),
        files=Files(
            keep_failed=argument_checks.optional(argument_checks.path)("keep_failed", keep_failed),
            report=argument_checks.optional(argument_checks.path)("report", report),
            external_data=external_data,
            trust_external_data=trust_external_data,
            require_verified=require_verified,
            overwrite=overwrite,
            calibrate=calibrate,  # type: ignore[arg-type]  # which converts it
            bits=bits,
        ),
        progress=given_progress(progress),
    ).run()


def preview(
    model: onnx.ModelProto | ir.Model | PathLike,
    lowering: Lowering | FormName = "auto",
    **options: Unpack[LoweringOptions],
) -> list[Preview]:
    """Return the form that each recurrent node would get, in the order of the model, without changing it.

    Args:
        model: The model, or the path of its file.
        lowering: Which nodes to lower and how, or a form.
        options: The attributes of `Lowering` as keywords.

    Raises:
        InvalidNodeError, UnsupportedError: A selected node that cannot be read.
        OptionError: An option has a value that does not exist.
        ModelFileError: The path is not an ONNX model.

    Examples:
        >>> [each.form for each in rl.preview(model, target="openvino")]
        ['loop', 'loop']
    """
    lowers = LowerRecurrentPass(lowering_of(lowering, options, preview))
    with boundary():
        given = argument_checks.model_or_path("model", model)
        work = clone(given) if isinstance(given, ir.Model) else _read(given)
        return lowers.preview(work)[0]


def inspect(model: onnx.ModelProto | ir.Model | PathLike) -> list[NodeSpec]:
    """Return the specification of each recurrent node, in the order of the model.

    Raises:
        InvalidNodeError, UnsupportedError: A node that cannot be read.
        ModelFileError: The path is not an ONNX model.

    Examples:
        >>> [spec.op_type for spec in rl.inspect("model.onnx")]
        ['LSTM', 'GRU']
    """
    with boundary(), onnx_checks.one_child():
        work = _read(argument_checks.model_or_path("model", model))
        if any(entry.function for entry in recurrent_nodes(work)):
            work = clone(work)
            inline_functions(work, lambda _: True, Lowering.max_nodes)
        return read(work, list(recurrent_nodes(work)))


def _read(model: onnx.ModelProto | ir.Model | Path) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    return from_proto(model) if isinstance(model, onnx.ModelProto) else load_model(model)


_NOT_KEPT = "the model is not written; --keep-failed FILE keeps it"

_ADVICE = (
    "if this difference is acceptable, raise the tolerance (--atol, --rtol); otherwise please report it "
    "with the original, the kept model and the file of --report FILE.json"
)

_WriteReport = Callable[[], AbstractContextManager[None]]
"""Writes the report to a temporary name; it gets its own when the context is left."""


@dataclass(frozen=True)
class FileLowering:
    """One run of `lower_file`: read, lower, write to temporary names, compare, report, then replace.

    The fields are the arguments of `lower_file`; `command` goes into the report.
    """

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
        if self.files.require_verified and not self.check.runs:
            raise OptionError("a verification is required, but the number of runs is 0", hint="give 1 or more")
        if self.files.calibrate is not None and self.lowers.lowering.stream is None:
            raise OptionError("only a stream can be calibrated", hint="add --stream AXIS=1")
        if self.files.calibrate is not None and (absent := without_onnxruntime("a calibration")):
            raise UnsupportedError(absent)
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
            with replacing(place, overwrite=outputs.overwrite) as written, ExitStack() as until_reported:
                self._write(result, file, written, place)
                after = ModelFile.of(written, written.parent.iterdir(), result.model)
                report = FileReport.of(result.report, before, after, self.command)
                comparison = cache(lambda: until_reported.enter_context(self._open(original, written, result)))
                write_report = partial(
                    writer.write,
                    report,
                    lambda places: self._node_runs(comparison, places),
                    overwrite=outputs.overwrite,
                )
                if result.modified and self.check.runs:
                    if absent := without_onnxruntime("a comparison"):
                        report.verification = Verification("not verified", reason=absent)
                    elif runner is not None:
                        report.verification = compare_stream(original, written, runner, **self._comparing)
                    else:
                        report.verification = comparison().result()
                    keep = partial(_keep, result.model, place_of_kept, outputs.overwrite)
                    self._refuse(report, report.verification, keep, write_report)
                if self.files.calibrate is not None:
                    self._quantize(report, written)
                last.enter_context(write_report())
        return report

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

    def _quantize(self, report: FileReport, written: Path) -> None:
        """Quantize the written stream in place, and say so in the report."""
        from rnn_lowering.streaming.quantization import quantize_stream

        if len(list(written.parent.iterdir())) > 1:
            raise UnsupportedError("a model with a data file cannot be quantized", hint="use --external-data never")
        quantized, report.quantization = quantize_stream(written, self.files.calibrate or (), bits=self.files.bits)
        onnx.save(quantized, written)
        model = ir.from_proto(quantized)
        report.lowered = ModelFile.of(written, (), model)
        report.operators_after = count_operators(model)
        newest = self.lowers.lowering.runtime.newest_opset
        if newest and report.lowered.opset > newest:
            raise UnsupportedError(
                f"{self.files.bits} needs opset {report.lowered.opset}, but {report.target} reads opsets up to "
                f"{newest}",
                hint="use w8a8",
            )

    @property
    def _comparing(self) -> dict[str, Any]:
        """The keywords of a comparison."""
        trust = self.files.trust_external_data
        return {"check": self.check, "trust_external_data": trust, "progress": self.progress}

    def _open(
        self, original: ModelSource, written: Path, result: LoweringResult
    ) -> AbstractContextManager[ModelComparison]:
        return open_comparison(original, written, prepared=result.prepared, **self._comparing)

    def _node_runs(
        self, comparison: Callable[[], ModelComparison], places: Collection[NodePlace]
    ) -> dict[NodePlace, NodeRun]:
        """Run nodes on their own, for a page."""
        if absent := without_onnxruntime("a plot"):
            raise UnsupportedError(absent)
        return comparison().nodes_one_by_one.runs(places)

    def _started_early(self) -> AbstractContextManager[Runner | None]:
        """Return the process that compares a stream: it imports onnxruntime while the stream is made. None if no
        stream is compared."""
        needed = self.check.runs and self.lowers.lowering.stream is not None and not without_onnxruntime("it")
        return Runner(self.check.timeout) if needed else nullcontext()

    def _refuse(
        self, report: FileReport, check: Verification, keep: Callable[[], str], write_report: _WriteReport
    ) -> None:
        """Raise if the models differ, or if a comparison is required and was not possible."""
        failed = check.status == "failed"
        if not failed and (check or not self.files.require_verified):
            return
        report.written = False
        facts = [_attempt(keep) if failed else "the model is not written", _attempt(partial(_finish, write_report))]
        hint = "; ".join(filter(None, [*facts, _ADVICE if failed else ""]))
        raise (VerificationError if failed else NotVerifiedError)(str(check), hint=hint, report=report)


def _keep(model: ir.Model, place: Place | None, overwrite: bool) -> str:
    """Write a model that failed the verification; return where it is, as text."""
    if place is None:
        return _NOT_KEPT
    with replacing(place, overwrite=overwrite) as written, writing(place.path):
        save(model, written, place.data)
    return f"it is kept as '{place.path}'"


def _finish(write_report: _WriteReport) -> str:
    """Write the report; return no message."""
    with write_report():
        return ""


def _attempt(write: Callable[[], str]) -> str:
    """Write a file about a failed verification; return an error as text: it must not hide the failure."""
    try:
        return write()
    except Exception as error:
        return str(error)
