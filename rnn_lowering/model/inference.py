"""Types and shapes that ONNX infers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from rnn_lowering.model.prepare import clone
from rnn_lowering.model.scopes import Found, recurrent_nodes


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes, in place, as far as ONNX can; what it cannot is no error."""
    logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
    before, logger.disabled = logger.disabled, True
    try:
        ShapeInferencePass(check_type=False, strict_mode=False)(model)
    finally:
        logger.disabled = before


@contextmanager
def inferred_shapes(model: ir.Model, found: list[Found]) -> Iterator[None]:
    """Let the inputs of nodes have, for a while, the types and shapes that ONNX infers from the graph's inputs.

    What a model declares of inner values may be wrong: it counts only where inference knows nothing.
    """
    before: list[tuple[ir.Value, ir.TypeProtocol | None, ir.Shape | None]] = []
    if any(not _declares_all(entry.node) for entry in found):
        bare = clone(model)
        for graph in bare.graphs():
            for output in (v for node in graph for v in node.outputs):
                output.shape = None
        infer_shapes(bare)
        for entry, twin in zip(recurrent_nodes(model), recurrent_nodes(bare), strict=True):
            for value, known in zip(entry.node.inputs, twin.node.inputs, strict=True):
                if value is not None and known is not None and value.producer() is not None:
                    before.append((value, value.type, value.shape))
                    value.type, value.shape = value.type or known.type, _merged(known.shape, value.shape)
    try:
        yield
    finally:
        for value, value_type, shape in reversed(before):
            value.type, value.shape = value_type, shape


def _declares_all(node: ir.Node) -> bool:
    """Whether no input of a node is computed, so that inference could add nothing."""
    return all(v is None or v.producer() is None for v in node.inputs)


def _merged(inferred: ir.Shape | None, declared: ir.Shape | None) -> ir.Shape | None:
    """Return an inferred shape, with declared sizes where it has none and no name either."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return inferred or declared
    return ir.Shape([d if _is_anonymous(i) else i for i, d in zip(inferred, declared, strict=True)])


def _is_anonymous(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and (dim.value is None or dim.value.startswith("unk__"))
