"""Reductions that are composed of others, as functions: logarithms of sums, and norms, of windows too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
from onnx import parser

from rnn_lowering.decomposition.operands import (
    OLDEST_OPSET,
    Formula,
    Operand,
    Operands,
    function_of,
    holding,
    integers,
    of_onnx,
)
from rnn_lowering.types import Array

_OLDEST_MAX = 8
"""The first opset of Max and Min of unlike shapes."""

_AXES_ARE_INPUTS = 18
"""First opset of these operators with their axes as an input."""


def _log_sum_exp(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype, has_axes = operands[0].dtype, len(operands) > 1 and operands[1].dtype is not None
    if dtype is None or not dtype.is_floating_point():
        return None
    if opset < _AXES_ARE_INPUTS:
        return _log_sum_exp_17(node, opset, operands[0])
    if node.attributes.get_int("noop_with_empty_axes", 0):  # then no number is added
        return None
    name = "log_sum_exp" if node.attributes.get_int("keepdims", 1) else "log_sum_exp_without_axes"
    most = np.array(ir.DataType(dtype).max, dtype.numpy())
    return function_of(name, {"least": -most, "most": most}, "x, axes" if has_axes else "x")


def _log_sum_exp_17(node: ir.Node, opset: int, x: Operand) -> onnx.FunctionProto | None:
    axes = _axes_17(node, x)
    if opset < _OLDEST_MAX or x.dtype is None or axes is None:
        return None
    name = "log_sum_exp_17" if node.attributes.get_int("keepdims", 1) else "log_sum_exp_17_without_axes"
    most = np.array(x.dtype.max, x.dtype.numpy())
    made = function_of(name, {"given": integers(axes), "least": -most, "most": most, "axes": axes})
    return _at(opset, axes, made)


def _sum(name: str, node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Return the sum of what a function makes of each number, or what it makes of the sum."""
    if opset >= _AXES_ARE_INPUTS:
        return of_onnx(node, opset, operands)
    axes = _axes_17(node, operands[0])
    if axes is None:
        return None
    keeps = node.attributes.get_int("keepdims", 1)
    return _at(opset, axes, function_of(name, {"given": integers(axes), "keepdims": keeps}))


def _at(opset: int, axes: Sequence[int], proto: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return a function whose axes are an attribute before they are an input."""
    for each in proto.node if opset < OLDEST_OPSET else ():
        if "given" in each.input:
            each.input.pop()
            each.attribute.append(onnx.helper.make_attribute("axes", axes))
    return proto


def _log_softmax(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    if not OLDEST_OPSET <= opset < _AXES_ARE_INPUTS:
        return of_onnx(node, opset, operands)
    axis = node.attributes.get_int("axis", -1)
    return function_of("log_softmax_17", {"given": integers([axis]), "axes": [axis]})


def _axes_17(node: ir.Node, x: Operand) -> list[int] | None:
    """Return the axes of a reduction that has them as an attribute; None if they follow from an unknown rank."""
    if x.shape is None:
        axes = sorted({*node.attributes.get_ints("axes", ())})
        return axes if axes and (axes[0] >= 0) == (axes[-1] >= 0) else None
    return sorted({axis % len(x.shape) for axis in node.attributes.get_ints("axes", range(len(x.shape)))})


_WINDOWS = ("auto_pad", "kernel_shape", "pads", "strides")
_POWERS = "a = Abs (x) q = Pow (a, p)"
_OF_WINDOWS = f"{_POWERS} m = AveragePool <count_include_pad = 1> (q) s = Mul (m, count) y = Pow (s, root)"
_OF_ALL = f"{_POWERS} s = ReduceSum (q, axes) y = Pow (s, root)"


def _lp_pool(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The mean of the powers in each window, times their number."""
    dtype, given = operands[0].dtype, node.attributes
    others = given.get_int("ceil_mode", 0) or {*given.get_ints("dilations", ())} - {1}
    if opset < OLDEST_OPSET or dtype is None or others:
        return None
    count = np.array(math.prod(given.get_ints("kernel_shape", ())), dtype.numpy())
    proto = _of_powers(_OF_WINDOWS, opset, given.get_int("p", 2), dtype, count=count)
    windows = [ir.to_proto(given[name]) for name in _WINDOWS if name in given]
    next(each for each in proto.node if each.op_type == "AveragePool").attribute.extend(windows)
    return proto


def _global_lp_pool(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The sum of the powers along the axes of space."""
    (x,) = operands
    if opset < OLDEST_OPSET or x.dtype is None or x.shape is None:
        return None
    axes = integers([*range(2, len(x.shape))])
    return _of_powers(_OF_ALL, opset, node.attributes.get_int("p", 2), x.dtype, axes=axes)


def _of_powers(body: str, opset: int, power: int, dtype: ir.DataType, **others: Array) -> onnx.FunctionProto:
    """Return a function of x with constants for a power and its root, and others."""
    proto = parser.parse_function(f'<domain: "", opset_import: ["" : {opset}]> f (x) => (y) {{ {body} }}')
    numbers = {"p": np.array(power, dtype.numpy()), "root": np.array(1 / power, dtype.numpy()), **others}
    return holding(proto, numbers)


def _mean_variance(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Numbers less their mean, by the root of the mean of their squares and 1e-9; ONNX's own body subtracts squares
    that are almost equal."""
    dtype, axes = operands[0].dtype, list(node.attributes.get_ints("axes", (0, 2, 3)))
    if opset < OLDEST_OPSET or dtype is None or not dtype.is_floating_point():
        return None
    given = f"<axes = {axes}> ({{}})" if opset < _AXES_ARE_INPUTS else "({}, axes)"
    mean, variance = (f"ReduceMean {given.format(name)}" for name in "xq")
    body = f"m = {mean} c = Sub (x, m) q = Mul (c, c) v = {variance} r = Sqrt (v) d = Add (r, small) y = Div (c, d)"
    proto = parser.parse_function(f'<domain: "", opset_import: ["" : {opset}]> f (x) => (y) {{ {body} }}')
    return holding(proto, {"axes": integers(axes), "small": np.array(1e-9, dtype.numpy())})


REDUCTIONS: Mapping[str, Formula] = {
    "GlobalLpPool": _global_lp_pool,
    "LogSoftmax": _log_softmax,
    "LpPool": _lp_pool,
    "MeanVarianceNormalization": _mean_variance,
    "ReduceL1": partial(_sum, "l1_17"),
    "ReduceL2": partial(_sum, "l2_17"),
    "ReduceLogSum": partial(_sum, "log_sum_17"),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": partial(_sum, "sum_square_17"),
}
"""By operator."""
