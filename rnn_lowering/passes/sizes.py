"""The stage that gives inputs the sizes and values of the options."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from rnn_lowering.errors import OptionError, UnsupportedError
from rnn_lowering.model.fixed_inputs import at_sizes, input_arrays, record
from rnn_lowering.model.model_sizes import open_names
from rnn_lowering.model.onnx_checks import fault_of
from rnn_lowering.passes.hints import deciding_input
from rnn_lowering.passes.report import FOLDED, SetInput
from rnn_lowering.passes.stages import Edit, Work
from rnn_lowering.streaming.options import parse_stream
from rnn_lowering.types import SizeOrSizes


def fix_sizes(work: Work) -> Edit:
    """Fix the sizes and values that the options give inputs, and fold the constants that follow; return what
    records the values.

    Raises:
        OptionError: The model has no such input or dimension, or it is the time axis of the stream.
        UnsupportedError: The model cannot have these sizes.
    """
    lowering, report = work.lowering, work.report
    dims = {name: _one_size(name, size) for name, size in lowering.dims.items() if name not in work.exported}
    report.notes += work.sort()
    arrays, before = input_arrays(work.model, lowering.set_inputs), set(open_names(work.model))
    sized = at_sizes(work.model, dims, lowering.input_shapes, arrays)
    _check_time_is_open(work, before - set(open_names(sized.model)), dims)
    if sized.fault and not fault_of(work.model):
        hint = deciding_input(sized.model, lambda trial: not fault_of(trial)) or _frozen(work, dims)
        raise UnsupportedError(
            f"the model is not valid at these sizes: {sized.fault}",
            hint=hint or "give sizes that the model supports",
        )
    report.set_inputs += [SetInput.of(name, array) for name, array in arrays.items()]
    report.notes += [FOLDED] if sized.folded else []
    work.put(sized.model)
    work.inferred = True
    return lambda: record(work.model, arrays)


def _frozen(work: Work, dims: Mapping[str, int]) -> str:
    """Return which axis the exporter froze, or a size that fits beside the others; "" if none."""
    from rnn_lowering.opening.lone_export import closed_axis, fitting_size

    if closed := closed_axis(work.model, work.lowering.max_nodes):
        return closed
    fitting = fitting_size(work.model, work.lowering.max_nodes, dims) if work.lowering.stream is None else None
    if fitting is None:
        return ""
    return f"give sizes that the model supports, such as --set-dim {quote('{}={}'.format(*fitting))}"


def _one_size(name: str, size: SizeOrSizes) -> int:
    """Return the size of an axis that is not opened: it has one."""
    if not isinstance(size, int):
        raise OptionError(
            f"'{name}' gets {len(size)} sizes, and no axis of that name is opened",
            hint="give one size, or open the axis that has these sizes in several exports (--open-dim)",
        )
    return size


def _check_time_is_open(work: Work, fixed: set[str], dims: Mapping[str, int]) -> None:
    """Refuse a size of the axis that a stream names."""
    stream = work.lowering.stream
    for axis in fixed & parse_stream(stream).keys() if stream is not None else ():
        given = f"{axis}={dims.get(axis)}"
        raise OptionError(
            f"'{axis}' is the time axis of the stream, and another option fixes its size",
            hint=f"drop --set-dim {quote(given)}, since the stream says how many frames a call has"
            if axis in dims
            else "drop the shape or value that fixes it, and fix other sizes by name (--set-dim)",
        )
