"""Products as functions: those of integers as sums, and remainders."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from rnn_lowering.decomposition.operands import OLDEST_OPSET, Operands, function_of, integers, is_integer

_MATRIX, _SQUARE = 2, 2
"""The axes of an operand of MatMul that is no vector; an exponent."""


def integer_product(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A MatMul of integers as a sum of products."""
    ranks = [0 if each.shape is None else len(each.shape) for each in operands]
    if opset < OLDEST_OPSET or not is_integer(operands[0]) or min(ranks) < _MATRIX:
        return None
    axes = {"last": -1, "before": -3, "along": -2}
    return function_of("product_as_sum", {name: integers([axis]) for name, axis in axes.items()})


def integer_square(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Mul of integers by themselves."""
    is_square = node.inputs[0] is node.inputs[1] and is_integer(operands[0])
    return function_of("square", {}, "x, same") if opset >= OLDEST_OPSET and is_square else None


def integer_power(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Pow of integers whose exponent is 2."""
    is_square = operands[1].integer == _SQUARE and is_integer(operands[0])
    return function_of("square", {}, "x, two") if opset >= OLDEST_OPSET and is_square else None


def remainder(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Mod of integers with the sign of the divisor; of floats with that of the dividend."""
    dtype = operands[0].dtype
    if opset < OLDEST_OPSET or dtype is None or is_integer(operands[0]) == bool(node.attributes.get_int("fmod", 0)):
        return None
    if is_integer(operands[0]):
        return function_of("integer_remainder", {})
    return function_of("signed_remainder", {"zero": np.zeros((), dtype.numpy())})
