"""The Python interface: lower a model, lower a file, look at a model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar, overload

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering import types
from rnn_lowering.errors import boundary
from rnn_lowering.files.reading import from_proto, load_model, refuse_external
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.copying import clone
from rnn_lowering.model.inlining import inline_functions
from rnn_lowering.model.preparation import read
from rnn_lowering.model.scopes import recurrent_nodes
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
from rnn_lowering.passes.lower import LowerRecurrentPass
from rnn_lowering.passes.report import Preview, Report
from rnn_lowering.pipeline import FileLowering
from rnn_lowering.report.file_report import FileReport
from rnn_lowering.spec.node_spec import NodeSpec
from rnn_lowering.types import PathLike, Progress, given_progress

M = TypeVar("M", onnx.ModelProto, ir.Model)


@overload
def lower(
    model: M, lowering: Lowering | str = "auto", *, full: Literal[False] = False, **options: Unpack[LoweringOptions]
) -> M: ...


@overload
def lower(
    model: M, lowering: Lowering | str = "auto", *, full: Literal[True], **options: Unpack[LoweringOptions]
) -> tuple[M, Report]: ...


def lower(
    model: M, lowering: Lowering | str = "auto", *, full: bool = False, **options: Unpack[LoweringOptions]
) -> M | tuple[M, Report]:
    """Replace the recurrent nodes of a model with primitive operators.

    Args:
        model: A ModelProto, which stays as it is, or an onnx_ir Model, which is changed in place.
        lowering: Which nodes to lower and how, or a form: "auto", "scan", "loop", "unroll", "chunked" or "keep".
        full: Also return the report.
        options: The attributes of `Lowering` as keywords.

    Returns:
        A new ModelProto, or the given onnx_ir Model; with `full` a pair: that model and the report. Without
        recurrent nodes the model equals the input.

    Raises:
        InvalidNodeError: A node breaks the specification of its operator.
        UnsupportedError: A valid node or model that these options cannot lower.
        OptionError: A form, target or dimension that does not exist.

    Examples:
        >>> new = rl.lower(model, target="tvm", dims={"seq": 16})
        >>> rl.inspect(new)
        []
    """
    lowers = LowerRecurrentPass(lowering_of(lowering, options, lower))
    full = types.flag("full", full)
    types.model("model", model)
    if isinstance(model, ir.Model):
        report = lowers(model).report
        return (model, report) if full else model
    with boundary():
        read = from_proto(model)
        refuse_external(read)
        result = lowers.call(read, as_message=True)
        new = result.message or _copy(model)
    return (new, result.report) if full else new


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def lower_file(
    source: PathLike,
    destination: PathLike,
    lowering: Lowering | str = "auto",
    *,
    check: Check | None = None,
    keep_failed: PathLike | None = None,
    report: PathLike | None = None,
    external_data: str = "auto",
    trust_external_data: bool = False,
    require_verified: bool = False,
    overwrite: bool = False,
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
        source=types.path("source", source),
        destination=types.path("destination", destination),
        lowers=LowerRecurrentPass(lowering_of(lowering, for_lowering, lower_file)),
        check=check_of(check, for_check, lower_file),
        files=Files(
            keep_failed=types.optional(types.path)("keep_failed", keep_failed),
            report=types.optional(types.path)("report", report),
            external_data=external_data,
            trust_external_data=trust_external_data,
            require_verified=require_verified,
            overwrite=overwrite,
        ),
        progress=given_progress(progress),
    ).run()


def preview(
    model: onnx.ModelProto | ir.Model | PathLike,
    lowering: Lowering | str = "auto",
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
        given = types.model_or_path("model", model)
        read = clone(given) if isinstance(given, ir.Model) else _read(given)
        return lowers.preview(read)[0]


def _read(model: onnx.ModelProto | ir.Model | Path) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    return from_proto(model) if isinstance(model, onnx.ModelProto) else load_model(model)


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
        read_model = work = _read(types.model_or_path("model", model))
        if any(entry.function for entry in recurrent_nodes(read_model)):
            work = clone(read_model)
            inline_functions(work, lambda _: True, Lowering.max_nodes)
        return read(work, list(recurrent_nodes(work)))
