"""When an operator can be written as a function of basic operators, and with which numbers: see `functions`.

Sizes and constants that a function needs must be known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import parser

from rnn_lowering.decomposition.arithmetic import (
    absolute,
    as_boolean,
    chosen,
    equal,
    hardmax,
    integer_power,
    integer_product,
    integer_square,
    negative,
    place_of_largest,
    remainder,
    repeated,
    sign,
    trilu,
)
from rnn_lowering.decomposition.cuts import (
    col2im,
    gather,
    pad,
    reverse_sequence,
    scatter_elements,
    scatter_nd,
    tile,
)
from rnn_lowering.decomposition.einsum import einsum
from rnn_lowering.decomposition.operands import (
    OLDEST_OPSET,
    Formula,
    Operand,
    Operands,
    function_of,
    integers,
    of_onnx,
)
from rnn_lowering.decomposition.reductions import REDUCTIONS
from rnn_lowering.types import Array

_MOST_NUMBERS = 1 << 22
"""Maximum elements of a matrix of sines."""

_DFT_AXIS_AS_INPUT = 20
"""The first opset whose DFT has its axis as an input."""

OLDEST_LESS, OLDEST_MAX, OLDEST_WHERE = 7, 8, 9
"""The first opsets at which Less and Greater, Max and Min, and Where broadcast as they do today."""


def _dft(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    x, given, axis_input = [*operands, *[Operand()] * 2][:3]
    inverse, onesided = (bool(node.attributes.get_int(name, 0)) for name in ("inverse", "onesided"))
    if opset < OLDEST_OPSET or x.shape is None or x.dtype != ir.DataType.FLOAT or (inverse and onesided):
        return None
    last = len(x.shape) - 1
    axis = axis_input.integer if axis_input.dtype is not None else -2
    axis = node.attributes.get_int("axis", 1) if opset < _DFT_AXIS_AS_INPUT else axis
    if axis is None or (given.dtype is not None and given.integer is None):
        return None
    axis %= last + 1
    n, channels = x.shape[axis], x.shape[-1]
    length = n if given.integer is None else given.integer
    if n is None or length is None or channels not in (1, 2) or axis == last or min(n, length) < 1:
        return None
    bins = length // 2 + 1 if onesided else length
    if 4 * n * bins > _MOST_NUMBERS:
        return None
    wave = _wave(bins, min(n, length), length, 1 if inverse else -1) / (length if inverse else 1)
    order, kept = [*(a for a in range(last) if a != axis), axis, last], [0] * (last - 1)
    numbers: dict[str, Array | Sequence[int] | int] = {
        "flat": integers([*kept, n * channels]),
        "waves": _matrix(wave, n, channels),
        "parts": integers([*kept, bins, 2]),
        "order": order,
        "back": [order.index(a) for a in range(last + 1)],
    }
    return function_of("dft", numbers, ", ".join(("x", "length", "axis")[: len(operands)]))


def _matrix(wave: Array, count: int, channels: int) -> Array:
    """Return what so many elements of x are multiplied with, those behind the wave with 0:
    float32 [time and channel, bin and real or imaginary part of y]."""
    matrix = np.zeros((count, channels, len(wave), 2))
    matrix[: wave.shape[1]] = _products(wave, channels).transpose(3, 1, 2, 0)
    return matrix.reshape(count * channels, -1).astype(np.float32)


def _wave(bins: int, count: int, length: int, sign: int) -> Array:
    """Return exp(sign * 2 pi i k t / length), complex [bins, count]."""
    turns = np.outer(np.arange(bins), np.arange(count)) % length
    return np.asarray(np.exp(sign * 2j * math.pi * turns / length))


def _products(wave: Array, channels: int) -> Array:
    """Return what the parts of x are multiplied with, [real or imaginary of y, channel, bin, time]."""
    of_real, of_imaginary = (wave.real, wave.imag), (-wave.imag, wave.real)
    return np.stack([np.stack([of_real[part], of_imaginary[part]][:channels]) for part in (0, 1)])


def _stft(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    signal, step, window, given = [*operands, *[Operand()] * 2][:4]
    onesided = bool(node.attributes.get_int("onesided", 1))
    if opset < OLDEST_OPSET or signal.shape is None or signal.dtype != ir.DataType.FLOAT or len(signal.shape) != 3:
        return None
    size = given.integer if window.numbers is None else window.numbers.size
    channels = signal.shape[2]
    if (window.dtype is not None and window.numbers is None) or channels is None or channels not in (1, 2):
        return None
    if step.integer is None or size is None or size < 1 or given.integer not in (None, size):
        return None
    bins = size // 2 + 1 if onesided else size
    if 4 * size * bins > _MOST_NUMBERS:
        return None
    kernels = _products(_wave(bins, size, size, -1), channels)
    kernels = kernels * (1 if window.numbers is None else window.numbers.astype(np.float64))
    return function_of(
        "stft",
        {
            "waves": kernels.transpose(0, 2, 1, 3).reshape(2 * bins, channels, size).astype(np.float32),
            "shape": integers([0, 2, bins, -1]),
            "strides": [step.integer],
        },
        ", ".join(("signal", "step", "window", "length")[: len(operands)]),
    )


def _less(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    return function_of("less", {}) if opset >= OLDEST_LESS else None


def _of_floats(name: str, dtype: ir.DataType, **numbers: float) -> onnx.FunctionProto:
    """Return a function with constants of an element type."""
    return function_of(name, {constant: np.array(number, dtype.numpy()) for constant, number in numbers.items()})


def _hard_sigmoid(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    if opset < OLDEST_MAX or dtype is None:
        return None
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    return _of_floats("hard_sigmoid", dtype, alpha=alpha, beta=beta, zero=0.0, one=1.0)


def _selu(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    if opset < OLDEST_WHERE or dtype is None:
        return None
    alpha = node.attributes.get_float("alpha", 1.67326319217681884765625)
    gamma = node.attributes.get_float("gamma", 1.05070102214813232421875)
    return _of_floats("selu", dtype, alpha=alpha, gamma=gamma, zero=0.0)


def _celu(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype, alpha = operands[0].dtype, node.attributes.get_float("alpha", 1.0)
    if opset < OLDEST_MAX or dtype is None:
        return None
    if alpha > 0:
        return _of_floats("celu", dtype, alpha=alpha)
    return _of_floats("celu_of_any_alpha", dtype, alpha=alpha, zero=0.0, one=1.0)


def _shrink(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    if opset < OLDEST_WHERE or dtype is None or not dtype.is_floating_point():
        return None
    lambd, bias = node.attributes.get_float("lambd", 0.5), node.attributes.get_float("bias", 0.0)
    return _of_floats("shrink", dtype, lambd=lambd, below=-lambd, bias=bias, zero=0.0)


def _softplus(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    return None if opset < OLDEST_MAX or dtype is None else _of_floats("softplus", dtype, zero=0.0, one=1.0)


def _compress(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The rows whose condition is true; without an axis, of the numbers in a row."""
    flat = {"flat": integers([-1])}
    if opset < OLDEST_OPSET:
        return None
    if "axis" not in node.attributes:
        return function_of("compress_numbers", flat)
    return function_of("compress", flat | {"axis": node.attributes.get_int("axis", 0)})


def _is_nan(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    return None if opset < OLDEST_OPSET or dtype is None else _of_floats("is_nan", dtype, zero=0.0)


def _is_inf(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    dtype = operands[0].dtype
    positive, negative = (node.attributes.get_int(f"detect_{sign}", 1) for sign in ("positive", "negative"))
    if opset < OLDEST_OPSET or dtype is None or not (positive or negative):
        return None
    name = "is_inf" if positive and negative else "is_equal"
    return _of_floats(name, dtype, number=math.inf if positive else -math.inf)


def _without_negative_axes(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """The axes are an attribute, or an input from opset 13 on."""
    numbers = operands[1].numbers if len(operands) > 1 else None
    axes = node.attributes.get_ints("axes", ()) if numbers is None else numbers.reshape(-1).tolist()
    if operands[0].shape is None or min(axes or (), default=0) >= 0:
        return None
    rank = len(operands[0].shape) + (len(axes) if node.op_type == "Unsqueeze" else 0)
    given, name = sorted(axis % rank for axis in axes), node.op_type.lower()
    if numbers is None:
        return function_of(f"{name}_11", {"given": given})
    return function_of(name, {"given": integers(given)})


_EXACT = 1 << 24
"""A sum of products of integers below it is exact in float32, in any order."""

_BYTE, _PART = 255, 16
"""The largest difference of two numbers of 8 bits, and of its parts: 16ths, and what is left."""

_WHOLE = "c = Conv (x, w) r = Round (c) y = Cast <to = 6> (r)"
_IN_PARTS = """k = Constant <value = float {16}> () n = Constant <value = int32 {16}> ()
    q = Div (w, k) high = Floor (q) m = Mul (high, k) low = Sub (w, m)
    c = Conv (x, high) d = Conv (x, low) e = Round (c) f = Round (d) i = Cast <to = 6> (e) j = Cast <to = 6> (f)
    p = Mul (i, n) y = Add (p, j)"""


def _conv_integer(node: ir.Node, opset: int, operands: Operands) -> onnx.FunctionProto | None:
    """A Conv of the same integers in floats, or of each part of the weights if its sums might be rounded."""
    weights = operands[1]
    if opset < OLDEST_OPSET or weights.shape is None or None in weights.shape:
        return None
    products = math.prod(size or 0 for size in weights.shape[1:])
    if products * _BYTE * _PART >= _EXACT:
        return None
    body, count = _WHOLE if products * _BYTE**2 < _EXACT else _IN_PARTS, len(operands)
    has_zeros = [n < count and operands[n].dtype is not None for n in (2, 3)]
    x, w = _centred("x", [-1], has_zeros[0]), _centred("w", [-1] + [1] * (len(weights.shape) - 1), has_zeros[1])
    names = ", ".join(("x_in", "w_in", "x_zero", "w_zero")[:count])
    text = f'<domain: "", opset_import: ["" : {opset}]> f ({names}) => (y) {{ {x} {w} {body} }}'
    proto = parser.parse_function(text)
    for each in proto.node:
        each.attribute.extend(ir.to_proto(node).attribute if each.op_type == "Conv" else ())
    return proto


def _centred(name: str, shape: Sequence[int], has_zero: bool) -> str:
    """Return what makes floats of integers, less their zero point, which is broadcast from a shape."""
    if not has_zero:
        return f"{name} = Cast <to = 1> ({name}_in)"
    sizes = f"int64[{len(shape)}] {{{', '.join(map(str, shape))}}}"
    floats = f"{name}_f = Cast <to = 1> ({name}_in) {name}_g = Cast <to = 1> ({name}_zero)"
    zero = f"{name}_s = Constant <value = {sizes}> () {name}_z = Reshape ({name}_g, {name}_s)"
    return f"{floats} {zero} {name} = Sub ({name}_f, {name}_z)"


FORMULAS: dict[str, Formula] = {
    "Col2Im": col2im,
    "ConvInteger": _conv_integer,
    "Gather": gather,
    "Squeeze": _without_negative_axes,
    "Unsqueeze": _without_negative_axes,
    "Celu": _celu,
    "HardSigmoid": _hard_sigmoid,
    "Selu": _selu,
    "Shrink": _shrink,
    "Softplus": _softplus,
    "Less": _less,
    "ReverseSequence": reverse_sequence,
    "ScatterElements": scatter_elements,
    "Tile": tile,
    "Pad": pad,
    "Cast": as_boolean,
    "DFT": _dft,
    "STFT": _stft,
    "Einsum": einsum,
    "MatMul": integer_product,
    "Mul": integer_square,
    "Pow": integer_power,
    "Compress": _compress,
    "Mod": remainder,
    "Abs": absolute,
    **dict.fromkeys(("ArgMax", "ArgMin"), place_of_largest),
    "Hardmax": hardmax,
    "Equal": equal,
    "Greater": repeated,
    "GreaterOrEqual": repeated,
    "LessOrEqual": repeated,
    "Neg": negative,
    "Sign": sign,
    "Trilu": trilu,
    "Where": chosen,
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "ScatterND": scatter_nd,
    **REDUCTIONS,
}
"""By operator."""


# The body of the function that ONNX defines an operator by, or the one of `formulas`, as a function of a model.


DOMAIN = "rnn_lowering.bodies"
"""The domain of the functions; they are inlined at once."""


def body_of(node: ir.Node, opset: int, operands: Operands) -> ir.Function | None:
    """Return a function of basic operators that computes a node; None if there is none.

    Args:
        node: A node of ONNX's default domain.
        opset: The version of the operators in the body.
        operands: What is known of the inputs.
    """
    formula = FORMULAS.get(node.op_type)
    proto = of_onnx(node, opset, operands) if formula is None else formula(node, opset, operands)
    if proto is not None and node.op_type == "Attention":
        proto = _with_masked_scores(proto, node, operands)
    if proto is None:
        return None
    proto.domain, proto.name = DOMAIN, node.op_type
    computed = {name for each in proto.node for name in each.output}
    for name in proto.output:  # the body of Attention computes none that the node lacks
        if name not in computed:
            proto.node.append(onnx.helper.make_node("Identity", [proto.input[0]], [name]))
    del proto.opset_import[:]
    proto.opset_import.append(onnx.helper.make_opsetid("", opset))
    return ir.serde.deserialize_function(proto)


_MASK, _LENGTHS, _SCORES = 3, 6, 3
"""Inputs of Attention: its mask, and the lengths of keys; and the output that has the scores."""

_MASKED = 2
"""The `qk_matmul_output_mode` of scores behind their mask."""

_LATER_KEYS = "BoolMaskTri"
"""The value of the body that tells which keys are later than their query."""


def _with_masked_scores(proto: onnx.FunctionProto, node: ir.Node, operands: Operands) -> onnx.FunctionProto | None:
    """Return an Attention that returns the scores that onnxruntime does; None if it cannot be written so.

    Where a boolean mask, a causal mask or lengths mask a score, onnxruntime returns the lowest number of its type.
    ONNX's body returns minus infinity, as both do where a mask of floats is minus infinity.
    """
    given = [each.dtype for each in operands] + [None] * (_LENGTHS + 1)
    dtype, mask, causal = given[0], given[_MASK], node.attributes.get_int("is_causal", 0)
    if node.attributes.get_int("qk_matmul_output_mode", 0) != _MASKED or dtype is None:
        return proto
    if not (causal or given[_LENGTHS] is not None or mask == ir.DataType.BOOL):
        return proto
    scores, ours = proto.output[_SCORES], "scores_of_body"
    for each in proto.node:
        each.output[:] = [ours if name == scores else name for name in each.output]
        each.input[:] = [ours if name == scores else name for name in each.input]
    computed = {name for each in proto.node for name in each.output}
    if ours not in computed:  # nothing reads the scores
        return proto
    least = onnx.numpy_helper.from_array(np.array(dtype.min, dtype.numpy()), "least")
    proto.node.append(onnx.helper.make_node("Constant", [], ["least_score"], value=least))
    if mask in (None, ir.DataType.BOOL):
        proto.node.append(onnx.helper.make_node("Max", [ours, "least_score"], [scores]))
    elif _LATER_KEYS in computed and given[_LENGTHS] is None:
        proto.node.append(onnx.helper.make_node("Where", [_LATER_KEYS, "least_score", ours], [scores]))
    else:
        return None
    return proto


def call_of(node: ir.Node, opset: int, function: str) -> ir.Node:
    """Return a call of the function in the place of a node; attributes that the node omits have ONNX's defaults."""
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    defaults = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
    given = {name: ir.serde.deserialize_attribute(a) for name, a in defaults.items()} | dict(node.attributes)
    return ir.Node(DOMAIN, function, node.inputs, given.values(), num_outputs=len(node.outputs), name=node.name)
