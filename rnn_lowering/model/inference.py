"""Types and shapes of a model's values: what follows from its inputs counts before what it declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from rnn_lowering.model.carried import VARIES, computed_values, inferred_values
from rnn_lowering.model.onnx_inference import is_anonymous
from rnn_lowering.model.scopes import Found


@contextmanager
def inferred_shapes(model: ir.Model, found: list[Found]) -> Iterator[None]:
    """Let the inputs of nodes have, for a while, the types and shapes that follow from the model's inputs.

    What a model declares of computed values may be wrong: it counts only where inference knows nothing.
    """
    before: list[tuple[ir.Value, ir.TypeProtocol | None, ir.Shape | None]] = []
    computed = set(computed_values(model))
    if any(value in computed for entry in found for value in entry.node.inputs):
        known = inferred_values(model)
        for value in (v for entry in found for v in entry.node.inputs):
            if value is not None and value in known:
                before.append((value, value.type, value.shape))
                value.type, value.shape = value.type or known[value].type, merged(known[value].shape, value.shape)
    try:
        yield
    finally:
        for value, value_type, shape in reversed(before):
            value.type, value.shape = value_type, shape


def merged(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return an inferred shape, with declared sizes where it has none and no name either."""
    if inferred is None:
        return declared
    comparable = declared is not None and len(declared) == len(inferred)
    others = declared if declared is not None and comparable else [ir.SymbolicDim(None)] * len(inferred)
    return ir.Shape([_size(i, d) for i, d in zip(inferred, others, strict=True)])


def _size(inferred: int | ir.SymbolicDim, declared: int | ir.SymbolicDim) -> int | ir.SymbolicDim | None:
    if is_anonymous(inferred):
        return None if is_anonymous(declared) else declared
    return None if isinstance(inferred, ir.SymbolicDim) and inferred.value == VARIES else inferred
