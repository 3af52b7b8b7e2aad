"""The Python interface: lower a model, lower a file, look at a model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import overload

import onnx
import onnx_ir as ir

from rnn_lowering.errors import VerificationError
from rnn_lowering.files.atomic import temporary_beside
from rnn_lowering.files.external_data import choose_data_file, data_files, save
from rnn_lowering.files.reading import from_proto, load_model, refuse_external
from rnn_lowering.model.dimensions import fix_dimensions, fixed_dimensions
from rnn_lowering.model.inference import inferred_shapes
from rnn_lowering.model.prepare import clone, inline_functions
from rnn_lowering.model.scopes import recurrent_nodes
from rnn_lowering.passes.lower import LowerRecurrentPass
from rnn_lowering.passes.report import ModelFile, Report, count_operators
from rnn_lowering.progress import WRITING, Progress
from rnn_lowering.reporting.report_file import report_writer
from rnn_lowering.spec.node import RecurrentSpec
from rnn_lowering.types import Array
from rnn_lowering.verification.tolerance import Tolerance
from rnn_lowering.verification.whole import verify

PathLike = str | os.PathLike[str]
Dims = Mapping[str, int]
Shapes = Mapping[str, Sequence[int]]


@overload
def lower(
    model: onnx.ModelProto,
    to: str = "auto",
    *,
    target: str = "portable",
    only: Collection[str] = (),
    except_: Collection[str] = (),
    max_unroll: int = 512,
    compute: str = "native",
    dims: Dims | None = None,
    input_shapes: Shapes | None = None,
) -> onnx.ModelProto: ...


@overload
def lower(
    model: ir.Model,
    to: str = "auto",
    *,
    target: str = "portable",
    only: Collection[str] = (),
    except_: Collection[str] = (),
    max_unroll: int = 512,
    compute: str = "native",
    dims: Dims | None = None,
    input_shapes: Shapes | None = None,
) -> ir.Model: ...


def lower(
    model: onnx.ModelProto | ir.Model,
    to: str = "auto",
    *,
    target: str = "portable",
    only: Collection[str] = (),
    except_: Collection[str] = (),
    max_unroll: int = 512,
    compute: str = "native",
    dims: Dims | None = None,
    input_shapes: Shapes | None = None,
) -> onnx.ModelProto | ir.Model:
    """Replace the RNN, GRU and LSTM nodes of a model by primitive operators.

    Args:
        model: A ModelProto, which stays as it is, or an onnx_ir Model, which is changed in place.
        to: The form: "scan", "loop", "unroll" (straight-line, for a known sequence length), or "auto": for each
            node straight-line at length 1, else what the target prefers; portable: Scan where the opset has it,
            else Loop.
        target: The runtime that the result is for, as `rnn-lower --targets` lists them: which forms it takes, the
            preferred first, and how operators are spelt.
        only: Lower only nodes whose operator or name matches one of these (names as shell globs).
        except_: Leave nodes that match one of these.
        max_unroll: The most steps that "unroll" writes out.
        compute: "native" keeps each node's element type; "float32" casts at its edges, which is what onnxruntime's
            float16 kernels do, and lets a bfloat16 model run on its CPU.
        dims: Sizes to fix symbolic dimensions at, by name. Where T is then still unknown, what follows from the
            sizes is folded into constants.
        input_shapes: Shapes to fix inputs at, by input name.

    Returns:
        A new ModelProto, or the given onnx_ir Model. Without recurrent nodes it equals the input.

    Raises:
        InvalidNodeError: A node says what its operator page does not allow.
        UnsupportedError: A valid node or model that cannot be lowered so, or an unknown form or dimension.
    """
    lowering = LowerRecurrentPass(
        to, target=target, only=only, except_=except_, max_unroll=max_unroll, compute=compute
    )
    if isinstance(model, ir.Model):
        with fixed_dimensions(model, dims, input_shapes):
            lowering(model)
        return model
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(f"expected onnx.ModelProto or onnx_ir.Model, got {type(model).__name__}")
    read = from_proto(model)
    refuse_external(read)
    fix_dimensions(read, dims, input_shapes)
    if lowering(read).modified or dims or input_shapes:
        return ir.to_proto(read)
    unchanged = onnx.ModelProto()
    unchanged.CopyFrom(model)
    return unchanged


def lower_file(
    source: PathLike,
    destination: PathLike,
    to: str = "auto",
    *,
    target: str = "portable",
    only: Collection[str] = (),
    except_: Collection[str] = (),
    max_unroll: int = 512,
    compute: str = "native",
    dims: Dims | None = None,
    input_shapes: Shapes | None = None,
    verify: int = 3,
    tolerance: Tolerance | None = None,
    seed: int = 0,
    feeds: Sequence[Mapping[str, Array]] | None = None,
    test_shapes: Shapes | None = None,
    keep_failed: PathLike | None = None,
    report: PathLike | None = None,
    external_data: str = "auto",
    trust_external_data: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Lower the model in a file, compare both in onnxruntime, and write the result.

    Args:
        source: An ONNX file; it is never changed.
        destination: The file to write; an existing one is replaced, at once and only on success.
        to, target, only, except_, max_unroll, compute, dims, input_shapes: As in `lower`.
        verify: How many runs with random inputs are compared; 0 for none.
        tolerance: What counts as equal; None: by the type of each output.
        seed: Seed of the random inputs.
        feeds: Inputs to compare with instead of random ones, one run each; those that one does not name are random.
        test_shapes: Shapes of the random inputs, by name.
        keep_failed: Where a model that fails the comparison is written all the same.
        report: A file to write about all this, also when the comparison fails: data where its name ends in .json
            (docs/report.md), a page with plots where it ends in .html.
        external_data: "auto": tensors go to a file beside the model where the input has such a file or they are
            too large for one; "always"; "never"; or the name of that file.
        trust_external_data: Read data files outside the model's folder.
        progress: Called as progress(phase, done, total): after each written tensor, when they go to a file of their
            own, and after each run of the verification. The phases are words for the user.

    Returns:
        What was lowered. `report.verification["status"]` is "verified", or "not verified" where onnxruntime
        cannot run the original; without recurrent nodes the destination is a copy of the source.

    Raises:
        ModelFileError: A file cannot be read or written.
        VerificationError: The outputs differ; `destination` is not written. It says so too where `report` or
            `keep_failed` could not be written.
        InvalidNodeError, UnsupportedError: As in `lower`.
    """
    source, destination = Path(source), Path(destination)
    write_report = report_writer(report, (source, destination))
    lowering = LowerRecurrentPass(
        to, target=target, only=only, except_=except_, max_unroll=max_unroll, compute=compute
    )
    model = load_model(source, trust_external_data=trust_external_data)
    original = ModelFile.of(source, data_files(model))
    data_file = choose_data_file(model, destination, external_data, source)
    operators = count_operators(model)
    folded = fix_dimensions(model, dims, input_shapes)
    result = lowering.call(model)
    result.report.operators_before = operators
    if folded:
        result.report.notes.append("folded what follows from the fixed sizes")
    result.report.original = original
    changed = result.modified or bool(dims or input_shapes)
    with temporary_beside(destination) as written:
        if not changed and external_data == "auto" and not data_files(model):
            shutil.copyfile(source, written)
            result.report.lowered = ModelFile.of(written, ())
            write_report(source, written, result.report)
            return result.report
        save(model, written, data_file, progress and partial(progress, WRITING))
        result.report.lowered = ModelFile.of(written, written.parent.iterdir())
        if changed and verify:
            check = _verify(
                source,
                written,
                runs=verify,
                seed=seed,
                tolerance=tolerance,
                feeds=feeds,
                shapes=test_shapes,
                progress=progress,
            )
            result.report.verification = check.to_dict()
            if check.status == "failed":
                kept = f"it is kept as '{keep_failed}'" if keep_failed else "the model is not written"
                facts = (
                    _attempt(lambda: _keep(result.model, keep_failed, external_data), kept),
                    _attempt(lambda: write_report(source, written, result.report)),
                )
                hint = "; ".join(fact for fact in (*facts, "please report this model") if fact)
                raise VerificationError(str(check), hint=hint, report=result.report)
        write_report(source, written, result.report)
    return result.report


_verify = verify


def _attempt(write: Callable[[], None], success: str = "") -> str:
    """Write something about a failed verification, which an error must not hide: return it as text."""
    try:
        write()
    except Exception as error:
        return str(error)
    return success


def _keep(model: ir.Model, path: PathLike | None, external_data: str) -> None:
    if path is not None:
        with temporary_beside(Path(path)) as written:
            policy = external_data if external_data in ("auto", "always", "never") else "auto"
            save(model, written, choose_data_file(model, Path(path), policy))


def inspect(model: onnx.ModelProto | ir.Model | PathLike) -> list[RecurrentSpec]:
    """Return what every recurrent node of a model says, in the order of the model.

    Raises:
        InvalidNodeError, UnsupportedError: A node that cannot be read.
        ModelFileError: The path is not that of an ONNX model.
    """
    if isinstance(model, onnx.ModelProto):
        model = from_proto(model)
    elif not isinstance(model, ir.Model):
        model = load_model(Path(model))
    work = model
    if any(entry.function for entry in recurrent_nodes(model)):
        work = clone(model)
        inline_functions(work, lambda _: True)
    found = list(recurrent_nodes(work))
    with inferred_shapes(work, found):
        return [RecurrentSpec.parse(entry.node, entry.opset, entry.scope) for entry in found]
