"""ONNX's own inference of types and shapes."""

from __future__ import annotations

import logging

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes, in place, as far as ONNX can; what it cannot is no error."""
    logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
    before, logger.disabled = logger.disabled, True
    try:
        ShapeInferencePass(check_type=False, strict_mode=False)(model)
    finally:
        logger.disabled = before


def is_anonymous(dim: int | ir.SymbolicDim) -> bool:
    """Whether a dimension has neither a size nor a name that a model gave it."""
    return isinstance(dim, ir.SymbolicDim) and (dim.value is None or dim.value.startswith("unk__"))
