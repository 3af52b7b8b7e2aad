"""Why neither model runs: sizes that the lowered model fixes, and the original does not accept."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from rnn_lowering.compare.runs.runner import NotAcceptedError, SessionError
from rnn_lowering.errors import UnsupportedError
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.flags import set_dims


def wrong_sizes(
    error: SessionError,
    original: ModelSource,
    lowered: ModelSource,
    *,
    draws_integers: bool,
    lowered_runs: Callable[[], bool],
) -> UnsupportedError | None:
    """Return the error for sizes with which neither model runs; None if they are not why the original does not.

    Args:
        error: Why the original does not run.
        original: The original.
        lowered: The lowered model.
        draws_integers: Whether integers are drawn of which no bound is known.
        lowered_runs: Returns whether the lowered model runs on some of the inputs.
    """
    if error.crashed and (empty := _emptied(original.proto, lowered.proto)):
        return UnsupportedError(
            f"the original cannot run with {empty}, so the result has nothing to be compared with: {error}",
            hint="give a size of 1 or more",
        )
    if isinstance(error, NotAcceptedError) and _fixes_sizes(original.proto, lowered.proto) and not lowered_runs():
        return UnsupportedError(
            f"the result does not run at these sizes, and neither does the original: {error}",
            hint=_closed(original)
            or _still_open(lowered.proto)
            or (
                "give inputs that the model takes (--test-input), or other sizes; --verify 0 compares nothing"
                if draws_integers
                else "choose sizes that the model supports; its exporter may have fixed them"
            ),
        )
    return None


def _closed(original: ModelSource) -> str:
    from rnn_lowering.opening.lone_export import closed_axis
    from rnn_lowering.options import Lowering

    return closed_axis(original.model, Lowering.max_nodes)


def _still_open(lowered: onnx.ModelProto) -> str:
    """Return what to try where a lowered model has open sizes beside those that were fixed; "" if it has none."""
    sizes = set_dims(dim.dim_param for dim in _dims(lowered).values() if dim.dim_param)
    hint = f"open sizes may have to fit, with a number for each ?: {sizes}; or give --test-input"
    return hint if sizes else ""


def _fixes_sizes(original: onnx.ModelProto, lowered: onnx.ModelProto) -> bool:
    """Whether the lowered model fixes sizes of inputs that the original leaves open."""
    before, after = ({value.name: value.type for value in model.graph.input} for model in (original, lowered))
    return any(before[name] != kind for name, kind in after.items() if name in before)


def _emptied(original: onnx.ModelProto, lowered: onnx.ModelProto) -> str:
    """Return an axis of an input whose size became 0; "" if there is none."""
    is_open = {axis for axis, dim in _dims(original).items() if not dim.HasField("dim_value")}
    for (name, axis), dim in _dims(lowered).items():
        if (name, axis) in is_open and dim.HasField("dim_value") and not dim.dim_value:
            return f"size 0 of axis {axis} of input '{name}'"
    return ""


def _dims(model: onnx.ModelProto) -> dict[tuple[str, int], onnx.TensorShapeProto.Dimension]:
    return {(v.name, n): dim for v in model.graph.input for n, dim in enumerate(v.type.tensor_type.shape.dim)}
