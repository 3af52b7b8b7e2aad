"""Equal, Abs, Neg and Trilu as functions: by comparisons that a runtime computes right, and by a mask."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.decomposition.operands import OLDEST_OPSET, Operands, function_of

_MOST_NUMBERS = 1 << 20
"""Maximum numbers of a mask."""


def equal(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Neither less nor greater, nor NaN; of booleans, not different."""
    dtype = operands[0].dtype
    if opset < OLDEST_OPSET or dtype is None:
        return None
    return function_of("equal_booleans" if dtype == ir.DataType.BOOL else "equal", {})


def absolute(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The larger one of an integer and its negative."""
    return _of_integers("absolute", opset, operands)


def negative(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A difference from 0: of integers."""
    return _of_integers("negative", opset, operands)


def _of_integers(name: str, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    if opset < OLDEST_OPSET or dtype is None or not (dtype.is_integer() and dtype.is_signed()):
        return None
    return function_of(name, {"zero": np.zeros((), dtype.numpy())})


def trilu(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A choice by a constant mask: rows, columns and the diagonal are known."""
    data, diagonal = operands[0], operands[1].numbers if len(operands) > 1 else np.zeros((), np.int64)
    rows, columns = (None, None) if data.shape is None else data.shape[-2:]
    if opset < OLDEST_OPSET or data.dtype is None or diagonal is None or rows is None or columns is None:
        return None
    if rows * columns > _MOST_NUMBERS:
        return None
    keep = np.triu if node.attributes.get_int("upper", 1) else np.tril
    mask = keep(np.ones((rows, columns), bool), int(diagonal.item()))
    return function_of(
        "trilu" if len(operands) > 1 else "triangle", {"mask": mask, "zero": np.zeros((), data.dtype.numpy())}
    )
