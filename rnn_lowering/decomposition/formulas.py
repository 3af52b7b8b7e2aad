"""Operators that ONNX defines by no others, as functions of basic operators.

https://onnx.ai/onnx/operators/ has what each computes. Sizes and constants that the formula needs must be known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper, parser

from rnn_lowering.types import Array

MOST_NUMBERS = 1 << 22
"""Maximum elements of a matrix of sines."""

OLDEST_OPSET = 13
"""The first opset of the operators in these formulas: Less of integers, Range, Constant of integers."""

AXES_ARE_INPUTS = 18
"""First opset of ReduceMax with its axes as an input, as ReduceLogSumExp has them then."""

OLDEST_LESS, OLDEST_MAX, OLDEST_WHERE = 7, 8, 9
"""The first opsets at which Less and Greater, Max and Min, and Where broadcast as they do today."""


@dataclass(frozen=True)
class Operand:
    """What is known of an input of a node.

    Attributes:
        dtype: Its element type; None if it is absent.
        shape: Its sizes, None for an unknown one; None for an unknown rank.
        numbers: Those of a small constant.
    """

    dtype: ir.DataType | None = None
    shape: tuple[int | None, ...] | None = None
    numbers: Array | None = None

    def type_proto(self) -> onnx.TypeProto:
        """Return the type as ONNX writes it."""
        return onnx.TypeProto() if self.dtype is None else helper.make_tensor_type_proto(self.dtype, self.shape)

    @property
    def integer(self) -> int | None:
        """The number of a constant with one."""
        return None if self.numbers is None or self.numbers.size != 1 else int(self.numbers.reshape(-1)[0])


Operands: TypeAlias = Sequence[Operand]
Formula: TypeAlias = Callable[[ir.Node, int, Operands], onnx.FunctionProto | None]


def _function(inputs: str, steps: str, constants: dict[str, Array] | None = None) -> onnx.FunctionProto:
    """Return a function with an output y, from the text of its nodes; constants have their names in it."""
    opset = f'"": {OLDEST_OPSET}'
    proto = parser.parse_function(f'<domain: "d", opset_import: [{opset}]> f ({inputs}) => (y) {{ {steps} }}')
    for name, array in (constants or {}).items():
        value = numpy_helper.from_array(array, name)
        proto.node.insert(0, helper.make_node("Constant", [], [name], value=value))
    return proto


def _reverse_sequence(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """y[t, n] = x[L[n] - 1 - t, n] for t < L[n], else x[t, n]: a Gather of the rows t * N + n."""
    x = operands[0]
    if opset < OLDEST_OPSET or x.shape is None:
        return None
    rank, swaps = len(x.shape), node.attributes.get_int("time_axis", 0) == 1
    swap = f"Transpose <perm = {[1, 0, *range(2, rank)]}>" if swaps else "Identity"
    flat = (
        "rest = Gather (sizes, others) flat = Concat <axis = 0> (all, rest)"
        if rank > 2
        else "flat = Identity (all)"
    )
    numbers = {"zero": 0, "one": 1, "two": 2, "all": [-1], "column": [-1, 1], "row": [1, -1]}
    numbers |= {"others": [*range(2, rank)]} if rank > 2 else {}
    return _function(
        "x, lengths",
        f"""
        steps = {swap} (x) sizes = Shape (steps) T = Gather (sizes, zero) N = Gather (sizes, one)
        {flat}
        times = Range (zero, T, one) t = Reshape (times, column)
        batch = Range (zero, N, one) n = Reshape (batch, row)
        wide = Cast <to = {int(ir.DataType.INT64)}> (lengths) L = Reshape (wide, row)
        early = Less (t, L) within = Cast <to = {int(ir.DataType.INT64)}> (early)
        last = Sub (L, one) twice = Mul (two, t) back = Sub (last, twice) move = Mul (within, back)
        from = Add (t, move) start = Mul (from, N) index = Add (start, n)
        rows = Reshape (steps, flat) turned = Gather (rows, index) y = {swap} (turned)
        """,
        {name: np.array(number, np.int64) for name, number in numbers.items()},
    )


def _dft(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The product of x [..., n, 1 or 2] with a matrix of cosines and sines, for a constant length."""
    x, given, axis_input = [*operands, *[Operand()] * 2][:3]
    inverse, onesided = (bool(node.attributes.get_int(name, 0)) for name in ("inverse", "onesided"))
    if opset < OLDEST_OPSET or x.shape is None or x.dtype != ir.DataType.FLOAT or (inverse and onesided):
        return None
    rank = len(x.shape)
    axis = (
        node.attributes.get_int("axis", 1) if opset < 20 else -2 if axis_input.dtype is None else axis_input.integer
    )
    if axis is None or (given.dtype is not None and given.integer is None):
        return None
    axis %= rank
    n, channels = x.shape[axis], x.shape[-1]
    length = n if given.integer is None else given.integer
    if n is None or length is None or channels not in (1, 2) or axis == rank - 1 or min(n, length) < 1:
        return None
    bins = length // 2 + 1 if onesided else length
    if 4 * n * bins > MOST_NUMBERS:
        return None
    wave = _wave(bins, min(n, length), length, 1 if inverse else -1) / (length if inverse else 1)
    matrix = np.zeros((n, channels, bins, 2))
    matrix[: wave.shape[1]] = _products(wave, channels).transpose(3, 1, 2, 0)[..., [0, 1]]
    order = [*(a for a in range(rank - 1) if a != axis), axis, rank - 1]
    kept = [0] * (rank - 2)
    return _function(
        "x, length, axis"[: (1, 9, 15)[len(operands) - 1]],
        f"""
        moved = Transpose <perm = {order}> (x) rows = Reshape (moved, flat) product = MatMul (rows, waves)
        split = Reshape (product, parts) y = Transpose <perm = {[order.index(a) for a in range(rank)]}> (split)
        """,
        {
            "flat": np.array([*kept, n * channels], np.int64),
            "waves": matrix.reshape(n * channels, bins * 2).astype(np.float32),
            "parts": np.array([*kept, bins, 2], np.int64),
        },
    )


def _wave(bins: int, count: int, length: int, sign: int) -> Array:
    """Return exp(sign * 2 pi i k t / length), complex [bins, count]."""
    turns = np.outer(np.arange(bins), np.arange(count)) % length
    return np.asarray(np.exp(sign * 2j * math.pi * turns / length))


def _products(wave: Array, channels: int) -> Array:
    """Return what the parts of x are multiplied with, [real or imaginary of y, channel, bin, time]."""
    of_real, of_imaginary = (wave.real, wave.imag), (-wave.imag, wave.real)
    return np.stack([np.stack([of_real[part], of_imaginary[part]][:channels]) for part in (0, 1)])


def _stft(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Conv of the signal [N, samples, 1 or 2] with the windowed waves of each bin as kernels."""
    signal, step, window, given = [*operands, *[Operand()] * 2][:4]
    onesided = bool(node.attributes.get_int("onesided", 1))
    if opset < OLDEST_OPSET or signal.shape is None or signal.dtype != ir.DataType.FLOAT or len(signal.shape) != 3:
        return None
    size = given.integer if window.numbers is None else window.numbers.size
    channels = signal.shape[2]
    unknown = (window.dtype is not None and window.numbers is None) or channels not in (1, 2)
    if (
        unknown
        or channels is None
        or step.integer is None
        or size is None
        or size < 1
        or given.integer not in (None, size)
    ):
        return None
    bins = size // 2 + 1 if onesided else size
    if 4 * size * bins > MOST_NUMBERS:
        return None
    kernels = _products(_wave(bins, size, size, -1), channels)
    kernels = kernels * (1 if window.numbers is None else window.numbers.astype(np.float64))
    return _function(
        ", ".join(("signal", "step", "window", "length")[: len(operands)]),
        f"""
        x = Transpose <perm = [0, 2, 1]> (signal) sums = Conv <strides = [{step.integer}]> (x, waves)
        parts = Reshape (sums, shape) y = Transpose <perm = [0, 3, 2, 1]> (parts)
        """,
        {
            "waves": kernels.transpose(0, 2, 1, 3).reshape(2 * bins, channels, size).astype(np.float32),
            "shape": np.array([0, 2, bins, -1], np.int64),
        },
    )


def _einsum(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """Two operands, each with every label once: Transpose and Reshape around a MatMul."""
    found = _labels(node)
    if opset < OLDEST_OPSET or found is None or any(each.shape is None for each in operands):
        return None
    a, b, out = found
    sizes: dict[str, int | None] = {}
    for label, size in [
        *zip(a, operands[0].shape or (), strict=False),
        *zip(b, operands[1].shape or (), strict=False),
    ]:
        if size == 0 or (size is not None and sizes.get(label) not in (None, size)):
            return None
        sizes[label] = size if sizes.get(label) is None else sizes[label]
    both = [label for label in a if label in b]
    batch, summed = [x for x in both if x in out], [x for x in both if x not in out]
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    if any(label not in out for label in (*rows, *columns)):
        return None
    perm_a, perm_b = (
        [a.index(x) for x in (*batch, *rows, *summed)],
        [b.index(x) for x in (*batch, *summed, *columns)],
    )
    end = [*batch, *rows, *columns]
    shapes: dict[str, Sequence[int] | None] = {}
    if batch or (len(summed), len(columns)) != (1, 1):  # else MatMul takes all rows of a
        shapes = {
            "left": _target_shape(sizes, batch, rows, summed),
            "right": _target_shape(sizes, batch, summed, columns),
            "whole": _target_shape(sizes, batch, *([label] for label in (*rows, *columns))),
        }
    if None in shapes.values():
        return None
    matrix_a, matrix_b, whole = (
        f"Reshape ({x}, {shape})" if shapes else f"Identity ({x})"
        for x, shape in (("first", "left"), ("second", "right"), ("product", "whole"))
    )
    return _function(
        "a, b",
        f"""
        first = Transpose <perm = {perm_a}> (a) matrix_a = {matrix_a}
        second = Transpose <perm = {perm_b}> (b) matrix_b = {matrix_b}
        product = MatMul (matrix_a, matrix_b) parts = {whole}
        y = Transpose <perm = {[end.index(x) for x in out]}> (parts)
        """,
        {name: np.array(shape, np.int64) for name, shape in shapes.items()},
    )


def _labels(node: ir.Node) -> tuple[str, str, str] | None:
    """Return the labels of two operands and of the result, if each has a label once."""
    equation = node.attributes.get_string("equation", "") or ""
    terms, arrow, out = equation.replace(" ", "").partition("->")
    parts = terms.split(",")
    if len(parts) != 2 or "." in equation or any(len(set(part)) != len(part) for part in parts):
        return None
    a, b = parts
    return a, b, out if arrow else "".join(sorted(set(a) ^ set(b)))


def _target_shape(sizes: dict[str, int | None], batch: Sequence[str], *axes: Sequence[str]) -> list[int] | None:
    """Return the numbers of a Reshape to the axes of the batch, which stay, and to products of axes; None if more
    than one of these is unknown."""
    factors = [[sizes[label] for label in labels] for labels in axes]
    products = [-1 if None in each else math.prod(n for n in each if n is not None) for each in factors]
    return None if products.count(-1) > 1 else [0] * len(batch) + products


def _less(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """a < b is b > a, of each type, and of NaN too; LessOrEqual and Not would make true of NaN."""
    return _function("a, b", "y = Greater (b, a)") if opset >= OLDEST_LESS else None


def _hard_sigmoid(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """max(0, min(1, alpha x + beta)); ONNX's own body needs opset 15."""
    dtype = operands[0].dtype
    if opset < OLDEST_MAX or dtype is None:
        return None
    numbers = {
        "alpha": node.attributes.get_float("alpha", 0.2),
        "beta": node.attributes.get_float("beta", 0.5),
        "zero": 0.0,
        "one": 1.0,
    }
    steps = "ax = Mul (x, alpha) line = Add (ax, beta) least = Max (line, zero) y = Min (least, one)"
    return _function("x", steps, {name: np.array(number, dtype.numpy()) for name, number in numbers.items()})


def _selu(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """gamma x from zero on, below it gamma (alpha exp(x) - alpha); ONNX's own body needs opset 15."""
    dtype = operands[0].dtype
    if opset < OLDEST_WHERE or dtype is None:
        return None
    numbers = {
        "alpha": node.attributes.get_float("alpha", 1.67326319217681884765625),
        "gamma": node.attributes.get_float("gamma", 1.05070102214813232421875),
        "zero": 0.0,
    }
    steps = """power = Exp (x) curve = Mul (power, alpha) low = Sub (curve, alpha) is_low = Less (x, zero)
        whole = Where (is_low, low, x) y = Mul (whole, gamma)"""
    return _function("x", steps, {name: np.array(number, dtype.numpy()) for name, number in numbers.items()})


def _celu(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)), which ONNX's own body computes for a positive alpha only."""
    dtype, alpha = operands[0].dtype, node.attributes.get_float("alpha", 1.0)
    if opset < OLDEST_MAX or dtype is None:
        return None
    steps = "part = Div (x, alpha) low = Elu (part) y = Mul (low, alpha)"
    if not alpha > 0:
        steps = """low = Min (x, zero) part = Div (low, alpha) power = Exp (part) less = Sub (power, one)
            curve = Mul (less, alpha) high = Max (x, zero) y = Add (high, curve)"""
    numbers = {"alpha": alpha} | ({} if alpha > 0 else {"zero": 0.0, "one": 1.0})
    return _function("x", steps, {name: np.array(number, dtype.numpy()) for name, number in numbers.items()})


def _softplus(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """log(1 + exp(-|x|)) + max(0, x); ONNX's own body is infinite for large x."""
    dtype = operands[0].dtype
    if opset < OLDEST_MAX or dtype is None:
        return None
    steps = """size = Abs (x) minus = Neg (size) power = Exp (minus) more = Add (power, one) curve = Log (more)
        high = Max (x, zero) y = Add (high, curve)"""
    return _function(
        "x", steps, {name: np.array(n, dtype.numpy()) for name, n in {"zero": 0.0, "one": 1.0}.items()}
    )


def _log_sum_exp(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """m + log(sum(exp(x - m))) with the largest number m; ONNX's own body is infinite for large x."""
    dtype, has_axes = operands[0].dtype, len(operands) > 1 and operands[1].dtype is not None
    if opset < AXES_ARE_INPUTS or dtype is None or not dtype.is_floating_point():
        return None
    if node.attributes.get_int("noop_with_empty_axes", 0):  # then no number is added
        return None
    keep, axes = bool(node.attributes.get_int("keepdims", 1)), ", axes" if has_axes else ""
    most = ir.DataType(dtype).max
    steps = f"""top = ReduceMax <keepdims = 1> (x{axes}) low = Max (top, least) m = Min (low, most)
        part = Sub (x, m) power = Exp (part) sum = ReduceSum <keepdims = 1> (power{axes}) log = Log (sum)
        whole = Add (m, log) y = {"Identity (whole)" if keep else f"ReduceMax <keepdims = 0> (whole{axes})"}"""
    numbers = {"least": -most, "most": most}
    return _function(f"x{axes}", steps, {name: np.array(number, dtype.numpy()) for name, number in numbers.items()})


def _gather(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The same along an axis that is not negative."""
    axis, shape = node.attributes.get_int("axis", 0), operands[0].shape
    if axis >= 0 or shape is None:
        return None
    return _function("x, indices", f"y = Gather <axis = {axis + len(shape)}> (x, indices)")


def _without_negative_axes(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The same with axes that are not negative: an attribute, or an input from opset 13 on."""
    numbers = operands[1].numbers if len(operands) > 1 else None
    axes = node.attributes.get_ints("axes", ()) if numbers is None else numbers.reshape(-1).tolist()
    if operands[0].shape is None or min(axes or (), default=0) >= 0:
        return None
    rank = len(operands[0].shape) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    given = sorted(axis % rank for axis in axes)
    if numbers is None:
        return _function("x", f"y = {node.op_type} <axes = {given}> (x)")
    return _function("x, axes", f"y = {node.op_type} (x, given)", {"given": np.array(given, np.int64)})


FORMULAS: dict[str, Formula] = {
    "Gather": _gather,
    "Squeeze": _without_negative_axes,
    "Unsqueeze": _without_negative_axes,
    "Celu": _celu,
    "HardSigmoid": _hard_sigmoid,
    "ReduceLogSumExp": _log_sum_exp,
    "Selu": _selu,
    "Softplus": _softplus,
    "Less": _less,
    "ReverseSequence": _reverse_sequence,
    "DFT": _dft,
    "STFT": _stft,
    "Einsum": _einsum,
}
"""By operator."""
