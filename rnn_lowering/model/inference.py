"""Types and shapes of a model's values: inferred ones take precedence over declared ones, which may be wrong."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from rnn_lowering.model.carried import VARIES, computed_values, inferred_values
from rnn_lowering.model.onnx_inference import is_anonymous
from rnn_lowering.model.scopes import Found
from rnn_lowering.spec.connections import Known, KnownValues


def known_inputs(model: ir.Model, found: Iterable[Found]) -> KnownValues:
    """Return the inferred types and shapes of those inputs of nodes that are computed.

    What a model declares about computed values may be wrong: it is used only where inference finds nothing.

    Raises:
        UnsupportedError: A node has an input that nothing defines.
    """
    computed = set(computed_values(model))
    wanted = [v for entry in found for v in entry.node.inputs if v is not None and v in computed]
    if not wanted:
        return {}
    inferred = inferred_values(model)
    return {
        value: Known(value.dtype or inferred[value].dtype, merged(inferred[value].shape, value.shape))
        for value in wanted
        if value in inferred
    }


def contradicts(inferred: ir.Shape | None, declared: ir.Shape | None) -> bool:
    """Whether a declared shape has another rank or another size than the inferred one."""
    if inferred is None or declared is None:
        return False
    if len(inferred) != len(declared):
        return True
    pairs = zip(inferred, declared, strict=True)
    return any(isinstance(i, int) and isinstance(d, int) and i != d for i, d in pairs)


def merged(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return an inferred shape; a dimension with neither size nor name is the declared one."""
    if inferred is None:
        return declared
    comparable = declared is not None and len(declared) == len(inferred)
    others = declared if declared is not None and comparable else [ir.SymbolicDim(None)] * len(inferred)
    denotations = (
        [declared.get_denotation(n) for n in range(len(others))] if declared is not None and comparable else None
    )
    return ir.Shape([_size(i, d) for i, d in zip(inferred, others, strict=True)], denotations)


def _size(inferred: int | ir.SymbolicDim, declared: int | ir.SymbolicDim) -> int | ir.SymbolicDim | None:
    if is_anonymous(inferred):
        return None if is_anonymous(declared) else declared
    return None if isinstance(inferred, ir.SymbolicDim) and inferred.value == VARIES else inferred
