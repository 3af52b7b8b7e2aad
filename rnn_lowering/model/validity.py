"""Whether ONNX accepts a result as it accepts the original."""

from __future__ import annotations

import onnx_ir as ir

from rnn_lowering.errors import UnsupportedError
from rnn_lowering.model.dimensions import infer_anew
from rnn_lowering.model.onnx_inference import problem_of

STALE = "declared shapes that contradict what follows from the inputs are replaced"


def ensure_valid(result: ir.Model, original: ir.Model) -> list[str]:
    """Check a result by ONNX's checker and strict inference; return notes on what was mended.

    Where they refuse it, what it declares of computed values is inferred anew, in place: an exporter may have
    traced other sizes, which ONNX does not notice where it cannot infer what a recurrent node gives.

    Args:
        result: The model.
        original: The model that it was made from.

    Raises:
        UnsupportedError: It is not valid, and the original is.
    """
    if not problem_of(result):
        return []
    infer_anew(result, {})
    problem = problem_of(result)
    if problem and (not problem_of(original) or _checker_refuses_only(result, original)):
        raise UnsupportedError(
            f"the result is not valid: {problem}",
            hint="this is a fault of rnn-lowering unless the model's declared shapes are wrong: please report it",
        )
    return [] if problem else [STALE]


def _checker_refuses_only(result: ir.Model, original: ir.Model) -> bool:
    """Whether the checker accepts the original, of which it does not see all that functions hold."""
    return bool(problem_of(result, infer=False)) and not problem_of(original, infer=False)
