"""`verify` and `verify_stream`: compare two models, in memory or in files. The door of the folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering import argument_checks
from rnn_lowering.argument_checks import given_progress
from rnn_lowering.compare.feeds import take_feeds
from rnn_lowering.compare.judgement import distance
from rnn_lowering.compare.node_by_node import LOWERED_NODE, ORIGINAL_NODE, NodeRun, RunNodes
from rnn_lowering.compare.options import Check, CheckOptions, check_of
from rnn_lowering.compare.result import ACCEPTED_ONLY, NOT_ASKED_FOR, NOTHING_LOWERED, UNCHANGED, Verification
from rnn_lowering.compare.runs.runner import Runner
from rnn_lowering.compare.runs.sessions import Session, session_of_original
from rnn_lowering.compare.whole import ModelComparison
from rnn_lowering.errors import OptionError, UnsupportedError, boundary
from rnn_lowering.files.data_folders import check_locations
from rnn_lowering.files.external_data import save
from rnn_lowering.files.one_file import LARGE, move_out, text_format
from rnn_lowering.files.reading import ModelSource, parse_file, readable_again
from rnn_lowering.libraries import without_onnxruntime
from rnn_lowering.limits import limited
from rnn_lowering.model.from_message import from_proto
from rnn_lowering.model.growth import MOST_CALLED, called_nodes
from rnn_lowering.model.onnx_checks import one_child
from rnn_lowering.model.preparation import PreparedModel
from rnn_lowering.options import refuse_unknown
from rnn_lowering.targets.names import TargetName
from rnn_lowering.types import PathLike, Progress

if TYPE_CHECKING:  # most comparisons run in no target
    from rnn_lowering.targets.installed import Runtime

__all__ = [
    "ACCEPTED_ONLY",
    "LOWERED_NODE",
    "NOTHING_LOWERED",
    "ORIGINAL_NODE",
    "UNCHANGED",
    "ModelComparison",
    "NodeRun",
    "RunNodes",
    "Runner",
    "Verification",
    "compare_stream",
    "distance",
    "load_early",
    "open_comparison",
    "runtime_of",
    "verify",
    "verify_stream",
    "with_target",
]
"""What users call, what compares files, and what a report draws of a node."""


def verify(
    original: onnx.ModelProto | ir.Model | PathLike,
    lowered: onnx.ModelProto | ir.Model | PathLike,
    *,
    check: Check | None = None,
    trust_external_data: bool = False,
    progress: Progress | None = None,
    target: TargetName | None = None,
    **options: Unpack[CheckOptions],
) -> Verification:
    """Run both models in onnxruntime and compare all outputs.

    Args:
        original: A model or a path. It runs in a separate process.
        lowered: The other model, or its path.
        check: How they are compared.
        trust_external_data: Read data files outside the folders of the models.
        progress: Called as progress(phase, done, total) when a phase begins and after each run.
        target: Then run `lowered` in the runtime of this target too, and compare: see `Verification.in_target`.
        options: The attributes of `Check` as keywords.

    Returns:
        A result that is true only if something was compared and agreed in every run; "not verified" where
        onnxruntime is not installed, "not compared" without a run.

    Raises:
        UnsupportedError: Neither model runs at the fixed sizes; or the runtime of the target is not installed.
        OptionError: An option or its value does not exist, or the models do not have a given input or shape.
        ModelFileError: A file cannot be read, or its data is missing or outside its folder.

    Examples:
        >>> bool(rl.verify(model, rl.lower(model, "loop"), runs=1))
        True
    """
    refuse_unknown(options, Check, verify)
    check = check_of(check, options)
    runtime = runtime_of(check, target)
    trust = argument_checks.flag("trust_external_data", trust_external_data)
    progress = given_progress(progress)
    first = argument_checks.model_or_path("original", original)
    second = argument_checks.model_or_path("lowered", lowered)
    if not (check.runs or check.feeds):
        return NOT_ASKED_FOR
    if absent := without_onnxruntime("a comparison"):
        return Verification("not verified", reason=absent)
    with (
        boundary(),
        open_comparison(first, second, check=check, trust_external_data=trust, progress=progress) as both,
    ):
        return with_target(both.result(), lambda: both, runtime)


def verify_stream(
    original: onnx.ModelProto | ir.Model | PathLike,
    stepped: onnx.ModelProto | ir.Model | PathLike,
    *,
    check: Check | None = None,
    trust_external_data: bool = False,
    progress: Progress | None = None,
    target: TargetName | None = None,
    **options: Unpack[CheckOptions],
) -> Verification:
    """Run the original on whole sequences and a stream on their chunks, and compare all outputs of the original.

    Args:
        original: A model or its path.
        stepped: The stream that was made from it, or its path.
        check: How they are compared: `runs` is the number of sequences.
        trust_external_data: Read data files outside the folders of the models.
        progress: Called as progress(phase, done, total) when a phase begins and after each run.
        target: Then run the stream in the runtime of this target too, as `verify` does.
        options: The attributes of `Check` as keywords.

    Returns:
        A result that is true only if every sequence agreed with every chunk size; `method` names the sizes.

    Raises:
        ModelFileError: `stepped` is not a stream.
        OptionError: As `verify`.

    Examples:
        >>> bool(rl.verify_stream(model, rl.lower(model, stream="seq"), runs=1))
        True
    """
    refuse_unknown(options, Check, verify_stream)
    check = check_of(check, options)
    runtime = runtime_of(check, target)
    trust = argument_checks.flag("trust_external_data", trust_external_data)
    progress = given_progress(progress)
    models = argument_checks.model_or_path("original", original), argument_checks.model_or_path("stepped", stepped)
    if not (check.runs or check.feeds):
        return NOT_ASKED_FOR
    if absent := without_onnxruntime("a comparison"):
        return Verification("not verified", reason=absent)
    with boundary(), Runner(check.timeout) as runner:
        return compare_stream(
            *models, runner, check=check, trust_external_data=trust, progress=progress, runtime=runtime
        )


AnyModel = onnx.ModelProto | ir.Model | PathLike | ModelSource


@contextmanager
def open_comparison(
    original: AnyModel,
    lowered: AnyModel,
    *,
    check: Check,
    trust_external_data: bool = False,
    progress: Progress | None = None,
    prepared: PreparedModel | None = None,
    runner: Runner | None = None,
    early: Session | None = None,
) -> Iterator[ModelComparison]:
    """Open a comparison: the models in files, and the process that runs them, until the block ends.

    Args:
        prepared: The original just before its nodes were replaced, if known.
        runner: A process that is started already; the caller ends it.
        early: What `load_early` returned.

    Raises:
        ModelFileError: A file cannot be read, or its data is missing or outside its folder.
    """
    with (
        Runner(check.timeout) if runner is None else nullcontext(runner) as running,
        _both_files(original, lowered, running, check, trust_external_data) as both,
    ):
        check = take_feeds(check, [source.proto.graph for source in both])
        yield ModelComparison(*both, running, check, progress, prepared, early)


def load_early(original: ModelSource, runner: Runner) -> Session:
    """Have onnxruntime load the original of a comparison while the caller lowers it."""
    session = session_of_original(original, runner.folder, observed=True)
    runner.load(session)
    return session


def compare_stream(
    original: AnyModel,
    stepped: AnyModel,
    runner: Runner,
    *,
    check: Check,
    trust_external_data: bool = False,
    progress: Progress | None = None,
    runtime: Runtime | None = None,
) -> Verification:
    """Compare as `verify_stream` does, with a runner that is started already."""
    from rnn_lowering.compare.streams.chunk_by_chunk import StreamComparison
    from rnn_lowering.compare.streams.proofs import stream_proofs

    with _both_files(original, stepped, runner, check, trust_external_data) as both:
        comparison = StreamComparison(*both, runner, check, progress)
        result = comparison.result()
        if result:
            result = replace(result, proofs=stream_proofs(*both, comparison.plan))
        if not result or runtime is None:
            return result
        from rnn_lowering.compare.in_target import StreamInTarget

        return result.and_in(StreamInTarget(*both, runner, check, progress, runtime).result())


def runtime_of(check: Check, target: str | None) -> Runtime | None:
    """Return the runtime in which a result is to run; None if it is in none.

    Raises:
        UnsupportedError: It is not installed, or no driver runs models in it.
        OptionError: Options contradict each other.
    """
    if target is None and check.run_in_target:
        raise OptionError("no target is named", hint="name it: target=...")
    if target is None:
        if check.target_python is not None:
            raise OptionError("a Python is named for a target, but nothing runs there", hint="add --run-in-target")
        return None
    if absent := without_onnxruntime("a comparison in the target"):
        raise UnsupportedError(absent)
    from rnn_lowering.targets.installed import find

    return find(argument_checks.text("target", target), check.target_python)


def with_target(
    found: Verification, comparison: Callable[[], ModelComparison], runtime: Runtime | None
) -> Verification:
    """Return the result of a comparison with that in a runtime, unless the comparison failed."""
    if runtime is None or not (found or found.status == UNCHANGED):
        return found
    from rnn_lowering.compare.in_target import model_in_target

    return found.and_in(model_in_target(comparison(), runtime))


@contextmanager
def _both_files(
    original: AnyModel, other: AnyModel, runner: Runner, check: Check, trust: bool
) -> Iterator[tuple[ModelSource, ModelSource]]:
    with limited(check.max_bytes), one_child(), ExitStack() as pipes:
        first, second = (runner.folder / f"model{n}.onnx" for n in (0, 1))
        yield as_file(original, first, trust, pipes), as_file(other, second, trust, pipes)


def as_file(model: AnyModel, path: Path, trust: bool, pipes: ExitStack) -> ModelSource:
    """Return a model as a file that onnxruntime can read: its own file, or `path`, which is then written.

    Raises:
        ModelFileError: The file cannot be read, or its data is missing or outside its folder.
        UnsupportedError: Its calls of functions make too many nodes.
    """
    parsed = _as_file(model, path, trust, pipes)
    if (count := called_nodes(parsed.proto)) > MOST_CALLED:
        raise UnsupportedError(f"the calls of functions make {count:,} nodes, more than {MOST_CALLED:,}")
    if parsed.is_external:
        check_locations(parsed.proto, parsed.path, trust=parsed.trust)
    return parsed


def _as_file(model: AnyModel, path: Path, trust: bool, pipes: ExitStack) -> ModelSource:
    if isinstance(model, onnx.ModelProto) and _bytes_of(model) < LARGE:
        onnx.save(model, path)
        return ModelSource(path, model)
    if isinstance(model, onnx.ModelProto | ir.Model):
        save(from_proto(model) if isinstance(model, onnx.ModelProto) else model, path, f"{path.name}.data")
        return parse_file(path)
    file = model.path if isinstance(model, ModelSource) else Path(model)
    readable = file if text_format(file) else pipes.enter_context(readable_again(file.absolute()))[0]
    parsed = model if isinstance(model, ModelSource) else parse_file(readable, trust_external_data=trust)
    if text_format(file):
        return _as_file(parsed.new_model(), path, trust, pipes)
    if not parsed.inside:
        return replace(parsed, path=readable)
    proto = deepcopy(parsed.proto)
    move_out(proto, parsed.path, path)  # a data file, which onnxruntime maps
    return ModelSource(path, proto)


def _bytes_of(model: onnx.ModelProto) -> int:
    """Return the bytes of the tensors, from their shapes: protobuf cannot measure more than 2 GiB."""
    return sum(4 * math.prod(tensor.dims) for tensor in model.graph.initializer)
