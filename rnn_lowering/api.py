"""The Python interface: `lower`, `lower_file`, `preview` and `inspect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, overload

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import given_progress
from rnn_lowering.compare.options import Check, CheckOptions, Tolerance, check_of, runs_of_check
from rnn_lowering.errors import boundary
from rnn_lowering.files.options import Files
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.copying import clone, inline_functions, refuse_many_calls
from rnn_lowering.model.from_message import from_proto, refuse_external
from rnn_lowering.model.preparation import read
from rnn_lowering.model.protobuf import as_proto
from rnn_lowering.model.scopes import recurrent_nodes
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.options import Lowering, LoweringOptions, lowering_of, shows
from rnn_lowering.passes.lower import LowerRecurrentPass, lower_model
from rnn_lowering.passes.report import Report
from rnn_lowering.targets.names import FormName
from rnn_lowering.types import Array, ArrayLike, PathLike, Progress, Shapes

if TYPE_CHECKING:  # a lowering in memory compares nothing
    from rnn_lowering.passes.preview import Preview
    from rnn_lowering.report.file_report import FileReport

M = TypeVar("M", onnx.ModelProto, ir.Model)

_COMMON = ("target", "to", "dims", "input_shapes", "stream", "native")
"""The options that signatures show."""


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


@shows(*_COMMON)
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
        report. If there is nothing to do, the model equals the input.

    Raises:
        InvalidNodeError: A node breaks the specification of its operator.
        UnsupportedError: A valid node or model that these options cannot lower.
        OptionError: A form, target, option or dimension that does not exist.
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
        read_again = partial(_in_memory, given)
        work = read_again()
        result = lower_model(work, lowers.lowering, read_again=read_again, as_message=True)
        new = result.message or (deepcopy(given) if isinstance(given, onnx.ModelProto) else as_proto(work))
    return (new, result.report) if full else new


def _in_memory(model: onnx.ModelProto | Path) -> ir.Model:
    """Return a model with all its data, as an onnx_ir Model."""
    if isinstance(model, onnx.ModelProto):
        work = from_proto(model)
        refuse_external(work)
        return work
    from rnn_lowering.files.external_data import load_data
    from rnn_lowering.files.reading import parse_file, readable_again

    with readable_again(model) as (file, pipe):
        work = parse_file(file, piped_from=pipe).new_model()
        load_data(work)
    return work


@shows(*_COMMON)
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
    require_proven: bool = False,
    overwrite: bool = False,
    calibrate: PathLike | Sequence[Mapping[str, ArrayLike]] | None = None,
    bits: str = "w8a8",
    progress: Progress | None = None,
    verify: int | None = None,
    seed: int | None = None,
    tolerance: Tolerance | None = None,
    feeds: Sequence[Mapping[str, Array]] | None = None,
    test_shapes: Shapes | None = None,
    verify_timeout: float | None = None,
    run_in_target: bool | None = None,
    target_python: PathLike | None = None,
    **options: Unpack[LoweringOptions],
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
        require_proven: Write nothing unless each lowered node is proven for every input.
        overwrite: Replace existing files; also write a quantized stream with an output below 10 dB.
        calibrate: Quantize the stream, once it is compared, with ranges from whole sequences: inputs by name, a
            .npy file, a .npz file with an array for each input, or a folder of such files. See `quantize_stream`.
        bits: "w8a8", or "w8a16" for activations and states of 16 bits.
        progress: Called as progress(phase, done, total) after each tensor that goes to a data file, and after each
            run of the verification. The phases are words for the user.
        verify: The number of runs of `check`; 0 or False for no comparison.
        test_shapes: The shapes of random inputs of `check`.
        verify_timeout: The time limit of `check`.
        run_in_target: After the comparison, run the result in the runtime of its target too, and compare.
        target_python: As in `check`.
        seed: As in `check`.
        tolerance: As in `check`.
        feeds: As in `check`.
        options: The attributes of `Lowering` as keywords; `max_bytes` holds for the comparison too.

    Returns:
        What was lowered. `report.verification.status` is "verified", or "not verified" if nothing could be
        compared; without recurrent nodes it is "unchanged", and the destination is a copy of the source. Without a
        comparison it is "not compared".

    Raises:
        ModelFileError: A file cannot be read or written, or exists.
        VerificationError: The outputs differ, or the target does not run the result; `destination` is not written.
            The error also tells if `report` or `keep_failed` could not be written.
        NotVerifiedError: `require_verified` or `run_in_target` is given and no comparison was possible, or
            `require_proven` and a node is not proven; nothing is written.
        UnsupportedError: As in `lower`; or an output is a file of the input, or two outputs are the same file.
        InvalidNodeError, OptionError: As in `lower`; an input or a shape for the comparison that the model does not
            have.

    Examples:
        >>> report = rl.lower_file("model.onnx", "lowered.onnx", to="loop", overwrite=True)
        >>> report.verification.status
        'verified'
    """
    from rnn_lowering.file_lowering import FileLowering

    for_check: CheckOptions = {
        "runs": 0 if verify is False else argument_checks.optional(runs_of_check)("verify", verify),
        "seed": seed,
        "tolerance": tolerance,
        "feeds": feeds,
        "shapes": test_shapes,
        "timeout": verify_timeout,
        "run_in_target": run_in_target,
        "target_python": target_python,
        "max_bytes": options.get("max_bytes"),
    }
    return FileLowering(
        source=argument_checks.path("source", source),
        destination=argument_checks.path("destination", destination),
        lowering=lowering_of(lowering, options, lower_file),
        check=check_of(check, for_check),
        files=Files(
            keep_failed=argument_checks.optional(argument_checks.path)("keep_failed", keep_failed),
            report=argument_checks.optional(argument_checks.path)("report", report),
            external_data=external_data,
            trust_external_data=trust_external_data,
            require_verified=require_verified,
            require_proven=require_proven,
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
        OptionError: An option that does not exist, or has a value that does not exist.
        ModelFileError: The path is not an ONNX model.

    Examples:
        >>> [each.form for each in rl.preview(model, target="openvino")]
        ['loop', 'loop']
    """
    lowers = LowerRecurrentPass(lowering_of(lowering, options, preview))
    with boundary():
        return lowers.preview(_read(argument_checks.model_or_path("model", model)))[0]


def inspect(model: onnx.ModelProto | ir.Model | PathLike) -> list[NodeSpec]:
    """Return the specification of each recurrent node, in the order of the model.

    A specification has `node` (name, operator and scope), `op_type`, `version`, `direction`, `dtype`, the sizes
    `seq_length`, `batch_size`, `input_size` and `hidden_size` (None if unknown), the connected `inputs` and
    `outputs` by their names in the operator specification, `constants`, and `warnings`; of RNN, GRU and LSTM also
    their attributes, such as `activations`, `clip` and `layout`.

    Raises:
        InvalidNodeError, UnsupportedError: A node that cannot be read.
        ModelFileError: The path is not an ONNX model.

    Examples:
        >>> [spec.op_type for spec in rl.inspect("model.onnx")]
        ['LSTM', 'GRU']
    """
    with boundary(), onnx_checks.one_child():
        work = _read(argument_checks.model_or_path("model", model))
        refuse_many_calls(work, Lowering.max_nodes)
        if any(entry.function for entry in recurrent_nodes(work)):
            work = clone(work)
            inline_functions(work, lambda _: True, Lowering.max_nodes)
        return read(work, list(recurrent_nodes(work)))


def _read(model: onnx.ModelProto | ir.Model | Path) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return from_proto(model)
    from rnn_lowering.files.reading import load_model

    return load_model(model)
