"""Nets as exporters write them for one size T: each number is a constant. `NETS` has a builder for each trap.

A builder returns the net for a size, so the net at another size is the truth there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

Builder = Callable[[int], onnx.ModelProto]

NETS: dict[str, Builder] = {}
"""Nets whose numbers follow a size; each is opened, or refused, but never wrong."""

MUST_OPEN: set[str] = set()
"""Those that must be opened."""

_RANDOM = np.random.default_rng(7)
W66 = _RANDOM.normal(size=(6, 6)).astype(np.float32)
CONV = _RANDOM.normal(size=(6, 6, 3)).astype(np.float32)
LSTM = {
    "W": _RANDOM.normal(size=(1, 16, 6)).astype(np.float32),
    "R": _RANDOM.normal(size=(1, 16, 4)).astype(np.float32),
}
TABLE = _RANDOM.normal(size=(600, 6)).astype(np.float32)


def made(inputs: str, outputs: str, nodes: str, opset: int = 17, /, **constants: Any) -> onnx.ModelProto:
    """Return a model from texts and constants."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    model = parser.parse_model(text)
    for name, number in constants.items():
        array = np.asarray(number)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        model.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
    return model


def frozen(function: Builder) -> Builder:
    """Add a builder."""
    NETS[function.__name__] = function
    return function


def opened(function: Builder) -> Builder:
    """Add a builder of a net that must be opened."""
    MUST_OPEN.add(function.__name__)
    return frozen(function)


def _x(T: int, out: str = "", batch: int = 2) -> tuple[str, str]:
    return f"float[{batch},{T},6] X", f"float[{out or f'{batch},{T},6'}] Y"


def _i(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


# The attack on what one file was guessed from


@opened
def lengths_of_t(T: int) -> onnx.ModelProto:
    nodes = "Y, h = LSTM <hidden_size = 4> (X, W, R, , n)"
    return made(f"float[{T},2,6] X", f"float[{T},1,2,4] Y", nodes, **LSTM, n=np.full(2, T, np.int32))


@opened
def pool_over_t(T: int) -> onnx.ModelProto:
    nodes = f"t = Transpose <perm = [0,2,1]> (X) Y = AveragePool <kernel_shape = [{T}], strides = [{T}]> (t)"
    return made(*_x(T, "2,6,1"), nodes)


@opened
def max_pool_over_t(T: int) -> onnx.ModelProto:
    nodes = f"t = Transpose <perm = [0,2,1]> (X) Y = MaxPool <kernel_shape = [{T}]> (t)"
    return made(*_x(T, "2,6,1"), nodes)


@opened
def last_row_by_scatter(T: int) -> onnx.ModelProto:
    index = np.array([[b, T - 1] for b in range(2)], np.int64)
    return made(*_x(T), "Y = ScatterND (X, index, u)", index=index, u=np.ones((2, 6), np.float32))


@opened
def dft_length(T: int) -> onnx.ModelProto:
    nodes = "u = Unsqueeze (X, a) Y = DFT <axis = 1> (u, n)"
    return made(f"float[2,{T}] X", f"float[2,{T},2] Y", nodes, a=_i(2), n=np.int64(T))


@opened
def output_shape_of_conv_transpose(T: int) -> onnx.ModelProto:
    nodes = f"Y = ConvTranspose <strides = [2], output_shape = [{2 * T}]> (X, w)"
    return made(f"float[2,6,{T}] X", f"float[2,6,{2 * T}] Y", nodes, w=CONV)


@opened
def t_times_positions(T: int) -> onnx.ModelProto:
    nodes = "n = ReduceSum <keepdims = 0> (X) m = Cast <to = 1> (k) Y = Add (n, m)"
    return made(*_x(T, "4"), nodes, k=T * np.arange(4))


@opened
def lower_triangle(T: int) -> onnx.ModelProto:
    scores = "t = Transpose <perm = [0,2,1]> (X) s = MatMul (X, t)"
    nodes = f"{scores} m = Where (k, s, low) p = Softmax (m) Y = MatMul (p, X)"
    return made(*_x(T), nodes, k=np.tril(np.ones((T, T), bool)), low=np.float32(-1e9))


@opened
def lower_triangle_of_floats(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = MatMul (k, X)", k=np.tril(np.ones((T, T), np.float32)))


@opened
def inverse_before_a_product(T: int) -> onnx.ModelProto:
    nodes = "s = ReduceSum (X, a) Y = Mul (s, k)"
    return made(*_x(T, "2,1,6"), nodes, a=_i(1), k=np.float32(1 / T))


@opened
def size_less_a_count(T: int) -> onnx.ModelProto:
    nodes = "z = Equal (X, o) c = Cast <to = 7> (z) n = ReduceSum <keepdims = 0> (c, a) Y = Sub (t, n)"
    return made(f"float[2,{T}] X", "int64[2] Y", nodes, o=np.float32(0), a=_i(1), t=np.int64(T))


@opened
def is_the_last(T: int) -> onnx.ModelProto:
    nodes = "e = Equal (p, k) c = Cast <to = 1> (e) u = Unsqueeze (c, a) Y = Mul (X, u)"
    return made(*_x(T), nodes, p=np.arange(T), k=np.int64(T - 1), a=_i(0, 2))


@opened
def batch_and_time_swapped(T: int) -> onnx.ModelProto:
    nodes = "r = Reshape (X, s) Y = MatMul (r, w)"
    return made(f"float[1,{T},6] X", f"float[{T},1,6] Y", nodes, s=_i(T, 1, 6), w=W66)


@opened
def negative_positions(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Add (X, k)", k=-np.arange(T, dtype=np.float32)[:, None])


@opened
def two_windows_of_lengths(T: int) -> onnx.ModelProto:
    nodes = "a, b = Split <axis = 1> (X, s) Y = Concat <axis = 1> (b, a)"
    return made(*_x(T), nodes, s=_i(2, T - 2))


# Numbers of nodes


@opened
def heads(T: int) -> onnx.ModelProto:
    turned = "Transpose <perm = [0,2,1,3]>"
    nodes = f"r = Reshape (X, s) t = {turned} (r) u = {turned} (t) Y = Reshape (u, v)"
    return made(*_x(T), nodes, s=_i(2, T, 2, 3), v=_i(2, T, 6))


@opened
def merged_rows(T: int) -> onnx.ModelProto:
    nodes = "r = Reshape (X, s) m = MatMul (r, w) Y = Reshape (m, v)"
    return made(*_x(T), nodes, s=_i(2 * T, 6), w=W66, v=_i(2, T, 6))


@opened
def square_scores(T: int) -> onnx.ModelProto:
    nodes = (
        "t = Transpose <perm = [0,2,1]> (X) m = MatMul (X, t) r = Reshape (m, s) q = Relu (r) Y = Reshape (q, v)"
    )
    return made(*_x(T, f"2,{T},{T}"), nodes, s=_i(2, T * T), v=_i(2, T, T))


@opened
def without_the_last(T: int) -> onnx.ModelProto:
    return made(*_x(T, f"2,{T - 1},6"), "Y = Slice (X, a, b, c)", a=_i(0), b=_i(T - 1), c=_i(1))


@opened
def the_last_four(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2,4,6"), "Y = Slice (X, a, b, c)", a=_i(T - 4), b=_i(T), c=_i(1))


@opened
def the_first_four(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2,4,6"), "Y = Slice (X, a, b, c)", a=_i(0), b=_i(4), c=_i(1))


@opened
def shifted(T: int) -> onnx.ModelProto:
    nodes = "s = Slice (X, a, b, c) z = Slice (X, d, a, c) Y = Concat <axis = 1> (s, z)"
    return made(*_x(T), nodes, a=_i(3), b=_i(T), c=_i(1), d=_i(0))


@opened
def backwards(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Slice (X, a, b, c, d)", a=_i(T - 1), b=_i(-T - 1), c=_i(1), d=_i(-1))


@opened
def last_row(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2,6"), "Y = Gather <axis = 1> (X, k)", k=np.int64(T - 1))


@opened
def rows_turned(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Gather <axis = 1> (X, k)", k=np.arange(T)[::-1])


@opened
def expanded(T: int) -> onnx.ModelProto:
    nodes = "m = ReduceMean <axes = [1]> (X) e = Expand (m, s) Y = Sub (X, e)"
    return made(*_x(T), nodes, s=_i(2, T, 6))


@opened
def tiled(T: int) -> onnx.ModelProto:
    return made(
        f"float[2,1,6] X, float[2,{T},6] Z", f"float[2,{T},6] Y", "t = Tile (X, s) Y = Add (t, Z)", s=_i(1, T, 1)
    )


@opened
def range_of_t(T: int) -> onnx.ModelProto:
    nodes = "r = Range (a, n, b) f = Cast <to = 1> (r) u = Unsqueeze (f, c) Y = Add (X, u)"
    return made(*_x(T), nodes, a=np.int64(0), n=np.int64(T), b=np.int64(1), c=_i(0, 2))


@opened
def zeros_of_t(T: int) -> onnx.ModelProto:
    return made(*_x(T, f"2,{T},12"), "z = ConstantOfShape (s) Y = Concat <axis = 2> (X, z)", s=_i(2, T, 6))


@opened
def resized_to_twice(T: int) -> onnx.ModelProto:
    how = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    nodes = f"Y = Resize <{how}> (X, , , s)"
    return made(f"float[2,6,{T}] X", f"float[2,6,{2 * T}] Y", nodes, s=_i(2, 6, 2 * T))


@opened
def padded_to_the_left(T: int) -> onnx.ModelProto:
    return made(*_x(T, f"2,{T + 3},6"), "Y = Pad (X, p)", p=_i(0, 3, 0, 0, 0, 0))


@opened
def padded_by_t(T: int) -> onnx.ModelProto:
    nodes = "p = Pad (X, k) q = Slice (p, a, b, c) Y = Add (q, X)"
    return made(*_x(T), nodes, k=_i(0, T - 1, 0, 0, 0, 0), a=_i(T - 1), b=_i(2 * T - 1), c=_i(1))


@opened
def relative_shift(T: int) -> onnx.ModelProto:
    nodes = "m = ReduceMax <axes = [2]> (X) e = Expand (m, x) p = Pad (e, k) r = Reshape (p, s)"
    return made(
        *_x(T, f"2,{T},{2 * T - 1}"),
        f"{nodes} q = Slice (r, a, b, c) Y = Reshape (q, v)",
        x=_i(2, T, 2 * T - 1),
        k=_i(0, 0, 1, 0, 0, 0),
        s=_i(2, 2 * T, T),
        a=_i(1),
        b=_i(2 * T),
        c=_i(1),
        v=_i(2, T, 2 * T - 1),
    )


@opened
def behind_a_strided_conv(T: int) -> onnx.ModelProto:
    half = (T + 1) // 2
    nodes = (
        "c = Conv <strides = [2], pads = [1,1], kernel_shape = [3]> (X, w) r = Reshape (c, s)"
        " t = Transpose <perm = [0,3,1,2]> (r) Y = Reshape (t, v)"
    )
    return made(f"float[2,6,{T}] X", f"float[2,{half},6] Y", nodes, w=CONV, s=_i(2, 2, 3, half), v=_i(2, half, 6))


@opened
def positions_behind_two_convs(T: int) -> onnx.ModelProto:
    half = (T + 1) // 2
    quarter = (half + 1) // 2
    conv = "Conv <strides = [2], pads = [1,1], kernel_shape = [3]>"
    nodes = f"a = {conv} (X, w) b = {conv} (a, w) Y = Add (b, p)"
    return made(
        f"float[2,6,{T}] X", f"float[2,6,{quarter}] Y", nodes, w=CONV, p=np.arange(quarter, dtype=np.float32)
    )


@opened
def triangle_behind_a_strided_conv(T: int) -> onnx.ModelProto:
    half = (T + 1) // 2
    nodes = "c = Conv <strides = [2], pads = [1,1], kernel_shape = [3]> (X, w) Y = MatMul (c, k)"
    triangle = np.triu(np.ones((half, half), np.float32))
    return made(f"float[2,6,{T}] X", f"float[2,6,{half}] Y", nodes, w=CONV, k=triangle)


@opened
def unpooled(T: int) -> onnx.ModelProto:
    half = T // 2
    nodes = "p = MaxPool <kernel_shape = [2], strides = [2]> (X) e = Reshape (p, s) Y = Tile (e, r)"
    return made(f"float[2,6,{T}] X", f"float[2,6,{half},2] Y", nodes, s=_i(2, 6, half, 1), r=_i(1, 1, 1, 2))


@opened
def max_pool_as_torch_writes_it(T: int) -> onnx.ModelProto:
    pool = f"MaxPool <kernel_shape = [{T}], strides = [{T}], dilations = [1], ceil_mode = 0>"
    return made(*_x(T, "2,6,1"), f"t = Transpose <perm = [0,2,1]> (X) Y = {pool} (t)")


@opened
def backwards_and_forwards(T: int) -> onnx.ModelProto:
    nodes = "b = Slice (X, last, before, a, last) s = Add (X, b) Y = Mul (s, n)"
    return made(*_x(T), nodes, n=1.0 * T, last=_i(-1), before=_i(-(2**63) + 1), a=_i(1))


@opened
def differences_of_rows_apart(T: int) -> onnx.ModelProto:
    nodes = "c = CumSum (X, a) f = Slice (c, four, end, a) p = Slice (c, o, back, a) Y = Sub (f, p)"
    return made(*_x(T, f"2,{T - 4},6"), nodes, a=_i(1), o=_i(0), four=_i(4), end=_i(2**63 - 1), back=_i(-4))


@opened
def one_hot_positions(T: int) -> onnx.ModelProto:
    nodes = "h = OneHot (p, d, v) q = MatMul (h, X) Y = Add (q, X)"
    return made(*_x(T), nodes, p=np.arange(T)[::-1], d=np.int64(T), v=np.array([0.0, 1.0]))


@opened
def range_beside_an_end_of_a_slice(T: int) -> onnx.ModelProto:
    """The end is an integer of 64 bits, as dynamo writes it: no Range has so many numbers."""
    nodes = (
        "r = Range (zero, n, one) f = Cast <to = 1> (r) u = Unsqueeze (f, two) p = Mul (X, u)"
        " e = Unsqueeze (end, o) Y = Slice (p, one_row, e, axis)"
    )
    numbers = {"zero": np.int64(0), "one": np.int64(1), "n": np.int64(T), "end": np.int64(2**63 - 1)}
    return made(*_x(T, f"2,{T - 1},6"), nodes, **numbers, two=_i(1), o=_i(0), one_row=_i(1), axis=_i(1))


# Constants that grow


@opened
def zero_states(T: int) -> onnx.ModelProto:
    nodes = "a = Concat <axis = 2> (X, z) Y = Relu (a)"
    return made(*_x(T, f"2,{T},9"), nodes, z=np.zeros((2, T, 3), np.float32))


@opened
def positions(T: int) -> onnx.ModelProto:
    nodes = "g = Gather (t, p) Y = Add (X, g)"
    return made(*_x(T), nodes, t=TABLE, p=np.arange(T)[None])


@opened
def linear_ramp(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, p)", p=np.linspace(0, 1, T, dtype=np.float32)[:, None])


@opened
def distances(T: int) -> onnx.ModelProto:
    far = np.arange(T)[None] - np.arange(T)[:, None]
    nodes = "t = Transpose <perm = [0,2,1]> (X) m = MatMul (X, t) Y = Add (m, k)"
    return made(*_x(T, f"2,{T},{T}"), nodes, k=-0.5 * np.abs(far).astype(np.float32))


@opened
def slopes_of_heads(T: int) -> onnx.ModelProto:
    far = np.arange(T)[None] - np.arange(T)[:, None]
    slopes = np.array([0.5, 0.25], np.float32)[:, None, None]
    nodes = "t = Transpose <perm = [0,2,1]> (X) m = MatMul (X, t) u = Unsqueeze (m, a) Y = Add (u, k)"
    return made(*_x(T, f"2,2,{T},{T}"), nodes, a=_i(1), k=slopes * np.minimum(far, 0).astype(np.float32))


@opened
def mask_of_minus_infinity(T: int) -> onnx.ModelProto:
    mask = np.triu(np.full((T, T), -np.inf, np.float32), 1)
    nodes = "t = Transpose <perm = [0,2,1]> (X) m = MatMul (X, t) a = Add (m, k) p = Softmax (a) Y = MatMul (p, X)"
    return made(*_x(T), nodes, k=mask)


@opened
def banded(T: int) -> onnx.ModelProto:
    far = np.abs(np.arange(T)[None] - np.arange(T)[:, None])
    return made(*_x(T), "Y = MatMul (k, X)", k=(far <= 2).astype(np.float32))


@opened
def clipped_distances(T: int) -> onnx.ModelProto:
    far = np.clip(np.arange(T)[None] - np.arange(T)[:, None], -3, 3) + 3
    nodes = "g = Gather (t, k) r = ReduceSum <keepdims = 0> (g, a) Y = MatMul (r, X)"
    return made(*_x(T), nodes, t=TABLE[:7], k=far, a=_i(2))


@opened
def head_and_tail(T: int) -> onnx.ModelProto:
    weights = np.ones(T, np.float32)
    weights[:2], weights[-1] = (0.1, 0.5), 0.7
    return made(*_x(T), "Y = Mul (X, k)", k=weights[:, None])


@opened
def each_row_twice(T: int) -> onnx.ModelProto:
    return made(*_x(T, f"2,{2 * T},6"), "Y = Gather <axis = 1> (X, k)", k=np.repeat(np.arange(T), 2))


@opened
def all_rows_twice(T: int) -> onnx.ModelProto:
    return made(*_x(T, f"2,{2 * T},6"), "Y = Gather <axis = 1> (X, k)", k=np.tile(np.arange(T), 2))


@opened
def alternating(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.where(np.arange(T) % 3 == 0, 2.0, -1.0).astype(np.float32)[:, None])


@opened
def mean_as_a_product(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2,1,6"), "Y = MatMul (k, X)", k=np.full((1, T), 1 / T, np.float32))


@opened
def ramp_to_the_end(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.arange(T - 1, -1, -1, dtype=np.float32)[:, None])


# Floats


@opened
def variance(T: int) -> onnx.ModelProto:
    nodes = "m = ReduceMean <axes = [1]> (X) d = Sub (X, m) q = Mul (d, d) s = ReduceSum (q, a) Y = Mul (s, k)"
    return made(*_x(T, "2,1,6"), nodes, a=_i(1), k=np.float32(1 / (T - 1)))


@opened
def root_of_t(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Div (X, k)", k=np.float32(T**0.5))


@opened
def inverse_root_of_t(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.float32(T**-0.5))


@opened
def square_of_t(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.float32(1 / T**2))


@opened
def twice_the_inverse(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.float32(2 / (T - 1)))


@opened
def pi_over_t(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.float32(np.pi / T))


# The attack on what one export shows, and on what two do


@opened
def positions_times_t(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Add (X, k)", k=(T * np.arange(6)).astype(np.float32))


@opened
def ramp_over_t(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.arange(1, 7) / T)


@frozen
def weights_over_t(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2,6"), "s = ReduceSum <keepdims = 0> (X, a) Y = MatMul (s, k)", a=_i(1), k=W66 / T)


@opened
def diagonal_over_t(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2,6"), "s = ReduceSum <keepdims = 0> (X, a) Y = MatMul (s, k)", a=_i(1), k=np.eye(6) / T)


@opened
def mean_of_all(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2"), "s = ReduceSum <keepdims = 0> (X, a) Y = Div (s, k)", a=_i(1, 2), k=np.float32(T * 6))


@opened
def inverse_of_all(T: int) -> onnx.ModelProto:
    nodes = "s = ReduceSum <keepdims = 0> (X, a) Y = Mul (s, k)"
    return made(*_x(T, "2"), nodes, a=_i(1, 2), k=np.float32(1 / (T * 6)))


@frozen
def split_in_rows(T: int) -> onnx.ModelProto:
    rows = ", ".join(f"s{n}" for n in range(T))
    nodes = f"{rows} = Split <axis = 1, num_outputs = {T}> (X) Y = Concat <axis = 1> ({rows})"
    return made(*_x(T), nodes, 18)


@frozen
def constant_output(T: int) -> onnx.ModelProto:
    outputs = f"float[2,{T},6] Y, int64[2] L"
    return made(_x(T)[0], outputs, f"Y = Relu (X) L = Constant <value_ints = [{T}, {T}]> ()")


@frozen
def weight_as_output(T: int) -> onnx.ModelProto:
    return made(_x(T)[0], f"float[2,{T},6] Y, int64[2] L", "Y = Relu (X)", L=_i(T, T))


@frozen
def constant_of_a_branch(T: int) -> onnx.ModelProto:
    branches = [
        f"{n} () => (float {n}) {{ {n} = Constant <value_float = {k}.0> () }}" for n, k in (("t", T), ("e", 2))
    ]
    choice = f"s = If (c) <then_branch = {branches[0]}, else_branch = {branches[1]}>"
    nodes = f"m = ReduceMax <keepdims = 0> (X) c = Greater (m, z) {choice} Y = Div (X, s)"
    return made(*_x(T), nodes, z=np.float32(0))


@frozen
def slope_of_leaky_relu(T: int) -> onnx.ModelProto:
    return made(*_x(T), f"Y = LeakyRelu <alpha = {1 / T:f}> (X)")


@frozen
def a_sixteenth(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2,6"), "Y = Gather <axis = 1> (X, k)", k=np.int64(T // 16))


@frozen
def band_of_a_triangle(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Trilu <upper = 0> (X, k)", k=np.int64(T - 24))


@opened
def bias_of_t(T: int) -> onnx.ModelProto:
    nodes = "m = ReduceMean <axes = [1], keepdims = 0> (X) Y = Gemm (m, w, b)"
    return made(*_x(T, "2,6"), nodes, w=W66, b=np.full(6, float(T)))


@opened
def gain_over_t(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = LayerNormalization (X, g, b)", g=np.full(6, 1 / T), b=np.zeros(6))


@opened
def taps_over_t(T: int) -> onnx.ModelProto:
    nodes = "Y = Conv <group = 6> (X, w)"
    return made(f"float[2,6,{T}] X", f"float[2,6,{T - 2}] Y", nodes, w=np.full((6, 1, 3), 1 / T))


@opened
def row_of_a_table_of_t(T: int) -> onnx.ModelProto:
    return made(*_x(T), "r = Gather (t, k) Y = Add (X, r)", t=np.array([float(T), 2.0 * T]), k=np.int64(0))


@opened
def ones_counted(T: int) -> onnx.ModelProto:
    nodes = "z = ConstantOfShape <value = float[1] {1}> (n) q = ReduceSum <keepdims = 0> (z) Y = Add (X, q)"
    return made(*_x(T), nodes, n=_i(T + 16))


@frozen
def root_of_a_quarter(T: int) -> onnx.ModelProto:
    conv = "Conv <strides = [2], pads = [1,1], kernel_shape = [3]>"
    nodes = f"c = {conv} (X, w) d = {conv} (c, w) s = ReduceMean <axes = [2]> (d) Y = Mul (s, k)"
    return made(f"float[2,6,{T}] X", "float[2,6,1] Y", nodes, w=CONV, k=np.float32((-(-T // 4)) ** -0.5))


@frozen
def quarter_or_limit(T: int) -> onnx.ModelProto:
    conv = "Conv <strides = [2], pads = [1,1], kernel_shape = [3]>"
    nodes = (
        f"c = {conv} (X, w) d = {conv} (c, w) s = ReduceMean <axes = [2]> (d)"
        " z = ConstantOfShape <value = float[1] {1}> (n) q = ReduceSum <keepdims = 0> (z) Y = Add (s, q)"
    )
    return made(f"float[2,6,{T}] X", "float[2,6,1] Y", nodes, w=CONV, n=_i(min(-(-T // 4), T - 8, 40)))


# What must be refused, or be right: two exports show it wrongly, or not at all


@frozen
def a_table(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Add (X, k)", k=TABLE[:T])


@frozen
def sines(T: int) -> onnx.ModelProto:
    angles = np.arange(T)[:, None] / 100 ** (np.arange(6) / 6)
    return made(*_x(T), "Y = Add (X, k)", k=np.sin(angles).astype(np.float32))


@frozen
def decay_matrix(T: int) -> onnx.ModelProto:
    far = np.arange(T)[:, None] - np.arange(T)[None]
    return made(*_x(T), "Y = MatMul (k, X)", k=np.where(far >= 0, 0.9 ** np.abs(far), 0).astype(np.float32))


@frozen
def window(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.hanning(T).astype(np.float32)[:, None])


@frozen
def mask_of_chunks(T: int) -> onnx.ModelProto:
    chunk = np.arange(T) // 8
    return made(*_x(T), "Y = MatMul (k, X)", k=(chunk[None] <= chunk[:, None]).astype(np.float32))


@frozen
def a_sixth(T: int) -> onnx.ModelProto:
    return made(*_x(T, "2,6"), "Y = Gather <axis = 1> (X, k)", k=np.int64(T // 6))


@frozen
def a_half(T: int) -> onnx.ModelProto:
    return made(*_x(T, f"2,{T // 2},6"), "Y = Slice (X, a, b, c)", a=_i(0), b=_i(T // 2), c=_i(1))


@frozen
def an_even_size(T: int) -> onnx.ModelProto:
    even = 2 * ((T + 1) // 2)
    return made(*_x(T, f"2,{even},6"), "Y = Pad (X, p)", p=_i(0, 0, 0, 0, even - T, 0))


@frozen
def clamped(T: int) -> onnx.ModelProto:
    return made(*_x(T, f"2,{min(T, 30)},6"), "Y = Slice (X, a, b, c)", a=_i(0), b=_i(min(T, 30)), c=_i(1))


@frozen
def logarithm(T: int) -> onnx.ModelProto:
    return made(*_x(T), "Y = Mul (X, k)", k=np.float32(np.log(T)))


@frozen
def padded_to_eight(T: int) -> onnx.ModelProto:
    more = -T % 8
    return made(*_x(T, f"2,{T + more},6"), "Y = Pad (X, p)", p=_i(0, 0, 0, 0, more, 0))


@frozen
def two_chunks(T: int) -> onnx.ModelProto:
    nodes = "a, b = Split <axis = 1> (X, s) n = Neg (b) Y = Concat <axis = 1> (a, n)"
    return made(*_x(T), nodes, s=_i((T + 1) // 2, T // 2))


@frozen
def product_of_tables(T: int) -> onnx.ModelProto:
    return made(*_x(T, f"2,{T},{T}"), "t = MatMul (X, k) Y = Relu (t)", k=(TABLE[:T] @ W66).T)


@frozen
def adaptive_pool(T: int) -> onnx.ModelProto:
    nodes = (
        f"t = Transpose <perm = [0,2,1]> (X) Y = AveragePool <kernel_shape = [{T // 4}], strides = [{T // 4}]> (t)"
    )
    return made(*_x(T, f"2,6,{(T - T // 4) // (T // 4) + 1}"), nodes)


@frozen
def unrolled(T: int) -> onnx.ModelProto:
    steps = " ".join(f"x{n + 1} = Relu (x{n})" for n in range(T % 5))
    return made(*_x(T), f"x0 = Neg (X) {steps} Y = Neg (x{T % 5})")


@frozen
def a_slice_that_is_left_out(T: int) -> onnx.ModelProto:
    if T % 4 == 0:
        return made(*_x(T), "r = Relu (X) Y = Neg (r)")
    return made(
        *_x(T),
        "r = Relu (X) p = Pad (r, k) q = Slice (p, a, b, c) Y = Neg (q)",
        k=_i(0, 0, 0, 0, 1, 0),
        a=_i(0),
        b=_i(T),
        c=_i(1),
    )


def feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random inputs of a model."""
    random = np.random.default_rng(seed)
    given = {}
    held = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name not in held:
            kind = value.type.tensor_type
            shape = [dim.dim_value for dim in kind.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            given[value.name] = random.normal(size=shape).astype(dtype)
    return given


def axes_of_t(build: Builder, first: int, second: int) -> dict[str, str]:
    """Return the axes of inputs that differ between two sizes: they are opened."""
    inputs = zip(build(first).graph.input, build(second).graph.input, strict=True)
    dims = ((a.name, a.type.tensor_type.shape.dim, b.type.tensor_type.shape.dim) for a, b in inputs)
    each = ((name, n, x, y) for name, xs, ys in dims for n, (x, y) in enumerate(zip(xs, ys, strict=True)))
    names = {first: "time"}
    found = {}
    for name, axis, x, y in each:
        if x.dim_value != y.dim_value:
            found[f"{name}:{axis}"] = names.setdefault(x.dim_value, f"other{len(names)}")
    return found
