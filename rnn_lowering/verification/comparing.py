"""Comparing two models, in memory or in files: `verify` for users, `comparing` for what lowers files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import onnx
import onnx_ir as ir
from typing_extensions import Unpack

from rnn_lowering import arguments
from rnn_lowering.boundary import boundary
from rnn_lowering.limits import limited
from rnn_lowering.model.native import one_child
from rnn_lowering.options import Check, CheckOptions, check_of
from rnn_lowering.progress import Progress, given_progress
from rnn_lowering.types import PathLike
from rnn_lowering.verification.given_inputs import checked
from rnn_lowering.verification.model_files import Given, as_file
from rnn_lowering.verification.result import Verification
from rnn_lowering.verification.runner import Runner
from rnn_lowering.verification.whole import ModelComparison


def verify(
    original: onnx.ModelProto | ir.Model | PathLike,
    lowered: onnx.ModelProto | ir.Model | PathLike,
    *,
    check: Check | None = None,
    trust_external_data: bool = False,
    progress: Progress | None = None,
    **options: Unpack[CheckOptions],
) -> Verification:
    """Run both models in onnxruntime and compare all outputs.

    Args:
        original, lowered: Models or paths. They run in a process of their own.
        check: How they are compared.
        trust_external_data: Read data files outside the folders of the models.
        progress: Called as progress(phase, done, total) when a phase begins and after each run.
        options: The attributes of `Check` as keywords.

    Returns:
        A result that is true only when something was compared, in every run, and agreed.

    Raises:
        UnsupportedError: Sizes are fixed at which neither model runs.
        OptionError: An option has a value that does not exist, or a given input or shape is not one of the models'.
        ModelFileError: A file cannot be read, or its data is missing or outside its folder.
    """
    check = check_of(check, options)
    trust = arguments.flag("trust_external_data", trust_external_data)
    progress = given_progress(progress)
    first, second = arguments.model_or_path("original", original), arguments.model_or_path("lowered", lowered)
    with boundary():
        return compared(first, second, check=check, trust_external_data=trust, progress=progress)


def compared(
    original: Given,
    lowered: Given,
    *,
    check: Check,
    trust_external_data: bool = False,
    progress: Progress | None = None,
) -> Verification:
    """Do what `verify` does, also with files that are parsed."""
    with comparing(
        original, lowered, check=check, trust_external_data=trust_external_data, progress=progress
    ) as both:
        return both.result()


@contextmanager
def comparing(
    original: Given,
    lowered: Given,
    *,
    check: Check,
    trust_external_data: bool = False,
    progress: Progress | None = None,
) -> Iterator[ModelComparison]:
    """Write two models to files and start the process in which they run; both end with the block.

    Raises:
        ModelFileError: A file cannot be read, or its data is missing or outside its folder.
    """
    with limited(check.max_bytes), one_child(), Runner(check.timeout) as runner, ExitStack() as pipes:
        first, second = (
            as_file(model, runner.folder / f"model{n}.onnx", trust_external_data, pipes)
            for n, model in enumerate((original, lowered))
        )
        check = checked(check, [first.proto.graph, second.proto.graph])
        yield ModelComparison(first, second, runner, check, progress)
