"""The operators that ONNX defines by no others, as functions of basic operators.

https://onnx.ai/onnx/operators/ has what each computes. Behind the inputs of an operator, its function has inputs
for numbers that follow from attributes, sizes and types, then the attributes of basic operators. `formulas` gives
them.
"""
# mypy: ignore-errors
# onnxscript's types of tensors have no arithmetic.

from __future__ import annotations

from typing import Sequence, TypeVar  # noqa: UP035 - onnxscript reads it before 0.6

from onnxscript import BOOL, FLOAT, INT64, script
from onnxscript.onnx_opset import opset11 as op11
from onnxscript.onnx_opset import opset13 as op
from onnxscript.onnx_opset import opset18 as op18
from onnxscript.onnx_types import TensorType

T = TypeVar("T", bound=TensorType)
Real = TypeVar("Real", bound=TensorType)


@script()
def gather(x: T, indices: INT64[...], axis: int) -> T:
    """The same along an axis that is not negative."""
    return op.Gather(x, indices, axis=axis)


@script()
def squeeze(x: T, axes: INT64[...], given: INT64[...]) -> T:
    """The same along axes that are not negative."""
    return op.Squeeze(x, given)


@script()
def squeeze_11(x: T, given: Sequence[int]) -> T:
    """The same before opset 13."""
    return op11.Squeeze(x, axes=given)


@script()
def unsqueeze(x: T, axes: INT64[...], given: INT64[...]) -> T:
    """The same along axes that are not negative."""
    return op.Unsqueeze(x, given)


@script()
def unsqueeze_11(x: T, given: Sequence[int]) -> T:
    """The same before opset 13."""
    return op11.Unsqueeze(x, axes=given)


@script()
def less(a: T, b: T) -> BOOL[...]:
    """a < b is b > a, of each type, and of NaN too; LessOrEqual and Not would make true of NaN."""
    return op.Greater(b, a)


@script()
def hard_sigmoid(x: Real, alpha: Real, beta: Real, zero: Real, one: Real) -> Real:
    """max(0, min(1, alpha x + beta)); ONNX's own body needs opset 15."""
    return op.Min(op.Max(x * alpha + beta, zero), one)


@script()
def selu(x: Real, alpha: Real, gamma: Real, zero: Real) -> Real:
    """gamma x from zero on, below it gamma (alpha exp(x) - alpha); ONNX's own body needs opset 15."""
    low = op.Exp(x) * alpha - alpha
    return op.Where(x < zero, low, x) * gamma


@script()
def shrink(x: Real, lambd: Real, below: Real, bias: Real, zero: Real) -> Real:
    """x and the bias below -lambd, else x less the bias above lambd, else 0; ONNX's own body needs opset 15."""
    high = op.Where(x > lambd, x - bias, zero)
    return op.Where(x < below, x + bias, high)


@script()
def celu(x: Real, alpha: Real) -> Real:
    """alpha Elu(x / alpha), for a positive alpha."""
    return op.Elu(x / alpha) * alpha


@script()
def celu_of_any_alpha(x: Real, alpha: Real, zero: Real, one: Real) -> Real:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1)), which ONNX's own body computes for a positive alpha only."""
    low = (op.Exp(op.Min(x, zero) / alpha) - one) * alpha
    return op.Max(x, zero) + low


@script()
def softplus(x: Real, zero: Real, one: Real) -> Real:
    """log(1 + exp(-|x|)) + max(0, x); ONNX's own body is infinite for large x."""
    curve = op.Log(op.Exp(-op.Abs(x)) + one)
    return op.Max(x, zero) + curve


@script()
def log_sum_exp(x: Real, axes: INT64[...], least: Real, most: Real) -> Real:
    """m + log(sum(exp(x - m))) with the largest number m; ONNX's own body is infinite for large x."""
    m = op18.Min(op18.Max(op18.ReduceMax(x, axes, keepdims=1), least), most)
    return m + op18.Log(op18.ReduceSum(op18.Exp(x - m), axes, keepdims=1))


@script()
def log_sum_exp_without_axes(x: Real, axes: INT64[...], least: Real, most: Real) -> Real:
    """The same without the axes of size 1."""
    m = op18.Min(op18.Max(op18.ReduceMax(x, axes, keepdims=1), least), most)
    whole = m + op18.Log(op18.ReduceSum(op18.Exp(x - m), axes, keepdims=1))
    return op18.ReduceMax(whole, axes, keepdims=0)


@script()
def log_sum_exp_17(x: Real, given: INT64[...], least: Real, most: Real, axes: Sequence[int]) -> Real:
    """The same up to opset 17."""
    m = op.Min(op.Max(op.ReduceMax(x, axes=axes, keepdims=1), least), most)
    return m + op.Log(op.ReduceSum(op.Exp(x - m), given, keepdims=1))


@script()
def log_sum_exp_17_without_axes(x: Real, given: INT64[...], least: Real, most: Real, axes: Sequence[int]) -> Real:
    """The same without the axes of size 1."""
    m = op.Min(op.Max(op.ReduceMax(x, axes=axes, keepdims=1), least), most)
    return op.Squeeze(m + op.Log(op.ReduceSum(op.Exp(x - m), given, keepdims=1)), given)


@script()
def log_sum_17(x: Real, given: INT64[...], keepdims: int) -> Real:
    """log(sum(x)) up to opset 17."""
    return op.Log(op.ReduceSum(x, given, keepdims=keepdims))


@script()
def log_softmax_17(x: Real, given: INT64[...], axes: Sequence[int]) -> Real:
    """x - m + -log(sum(exp(x - m))) with the largest number m; of a difference OpenCV makes a LogSoftmax again."""
    below = x - op.ReduceMax(x, axes=axes, keepdims=1)
    return below + op.Neg(op.Log(op.ReduceSum(op.Exp(below), given, keepdims=1)))


@script()
def l1_17(x: Real, given: INT64[...], keepdims: int) -> Real:
    """sum(|x|) up to opset 17."""
    return op.ReduceSum(op.Abs(x), given, keepdims=keepdims)


@script()
def l2_17(x: Real, given: INT64[...], keepdims: int) -> Real:
    """The root of sum(x x) up to opset 17."""
    return op.Sqrt(op.ReduceSum(x * x, given, keepdims=keepdims))


@script()
def sum_square_17(x: Real, given: INT64[...], keepdims: int) -> Real:
    """sum(x x) up to opset 17."""
    return op.ReduceSum(x * x, given, keepdims=keepdims)


@script()
def integer_remainder(a: T, b: T) -> T:
    """a modulo b with the sign of b, by a Div that rounds towards 0."""
    near = a - op.Div(a, b) * b + b
    return near - op.Div(near, b) * b


@script()
def signed_remainder(a: T, b: T, zero: T) -> T:
    """a modulo b with the sign of a; a ratio that is rounded may be off by one."""
    x, y = op.Abs(a), op.Abs(b)
    near = x - op.Floor(x / y) * y
    above = op.Where(near < zero, near + y, near)
    return op.Sign(a) * op.Where(above < y, above, above - y)


@script()
def is_nan(x: Real, zero: Real) -> BOOL[...]:
    """Neither below zero nor from it on; MNN says of NaN that it equals itself."""
    return op.Not(op.Or(x < zero, x >= zero))


@script()
def equal(a: Real, b: Real) -> BOOL[...]:
    """Neither is less than the other, nor NaN."""
    return op.And(op.LessOrEqual(a, b), op.GreaterOrEqual(a, b))


@script()
def not_zero(x: T, zero: T) -> BOOL[...]:
    """Not equal to 0."""
    return op.Not(op.Equal(x, zero))


@script()
def equal_booleans(a: BOOL[...], b: BOOL[...]) -> BOOL[...]:
    """Not one without the other."""
    return op.Not(op.Xor(a, b))


@script()
def absolute(x: Real, zero: Real) -> Real:
    """The larger of x and -x."""
    return op.Max(x, zero - x)


@script()
def absolute_9(x: Real, zero: Real) -> Real:
    """-x for a negative x, up to opset 11, whose Max takes no integers."""
    return op11.Where(op11.Less(x, zero), op11.Sub(zero, x), x)


@script()
def sign(x: Real, zero: Real, one: Real, minus: Real) -> Real:
    """1 above 0, -1 below it."""
    return op11.Where(op11.Less(x, zero), minus, op11.Where(op11.Greater(x, zero), one, zero))


@script()
def negative(x: Real, zero: Real) -> Real:
    """0 - x."""
    return op.Sub(zero, x)


@script()
def is_inf(x: Real, number: Real) -> BOOL[...]:
    """|x| is infinite."""
    return op.Equal(op.Abs(x), number)


@script()
def is_equal(x: Real, number: Real) -> BOOL[...]:
    """x is one of the infinities."""
    return op.Equal(x, number)


@script()
def compress(x: T, condition: BOOL[...], flat: INT64[...], axis: int) -> T:
    """The rows whose condition is true."""
    return op.Gather(x, op.Reshape(op.NonZero(condition), flat), axis=axis)


@script()
def compress_numbers(x: T, condition: BOOL[...], flat: INT64[...]) -> T:
    """The numbers whose condition is true."""
    return op.Gather(op.Reshape(x, flat), op.Reshape(op.NonZero(condition), flat))


@script()
def product_as_sum(a: T, b: T, last: INT64[...], before: INT64[...], along: INT64[...]) -> T:
    """A MatMul: the sum of the products of each column with a row."""
    return op.ReduceSum(op.Unsqueeze(a, last) * op.Unsqueeze(b, before), along, keepdims=0)


@script()
def square(x: T) -> T:
    """-(x (-x)): tract makes an operator of floats of x x."""
    return op.Neg(x * op.Neg(x))


@script()
def reverse_sequence(
    x: T,
    lengths: INT64[...],
    zero: INT64,
    one: INT64,
    two: INT64,
    column: INT64[...],
    row: INT64[...],
    rest: INT64[...],
    others: INT64[...],
) -> T:
    """y[t, n] = x[L[n] - 1 - t, n] for t < L[n], else x[t, n]: a Gather of the rows t * N + n of [T, N, ...]."""
    sizes = op.Shape(x)
    steps = op.Gather(sizes, zero)
    N = op.Gather(sizes, one)
    flat = op.Concat(rest, op.Gather(sizes, others), axis=0)
    t = op.Reshape(op.Range(zero, steps, one), column)
    n = op.Reshape(op.Range(zero, N, one), row)
    L = op.Reshape(op.Cast(lengths, to=INT64.dtype), row)
    within = op.Cast(t < L, to=INT64.dtype)
    index = (t + within * (L - one - two * t)) * N + n
    return op.Gather(op.Reshape(x, flat), index)


@script()
def reverse_sequence_of_numbers(
    x: T,
    lengths: INT64[...],
    zero: INT64,
    one: INT64,
    two: INT64,
    column: INT64[...],
    row: INT64[...],
    rest: INT64[...],
) -> T:
    """The same of [T, N]."""
    sizes = op.Shape(x)
    steps = op.Gather(sizes, zero)
    N = op.Gather(sizes, one)
    t = op.Reshape(op.Range(zero, steps, one), column)
    n = op.Reshape(op.Range(zero, N, one), row)
    L = op.Reshape(op.Cast(lengths, to=INT64.dtype), row)
    within = op.Cast(t < L, to=INT64.dtype)
    index = (t + within * (L - one - two * t)) * N + n
    flat = op.Reshape(op.Identity(x), op.Identity(rest))  # jaxonnxruntime rejects it without these
    return op.Gather(flat, index)


@script()
def reverse_sequence_of_rows(x: T, lengths: INT64[...], swap: Sequence[int]) -> T:
    """The same of [N, T, ...], by that of [T, N, ...]."""
    turned = op.ReverseSequence(op.Transpose(x, perm=swap), lengths, batch_axis=1, time_axis=0)
    return op.Transpose(turned, perm=swap)


@script()
def dft(
    x: FLOAT[...], flat: INT64[...], waves: FLOAT[...], parts: INT64[...], order: Sequence[int], back: Sequence[int]
) -> FLOAT[...]:
    """The product of x [..., n, 1 or 2] with a matrix of cosines and sines, for a constant length."""
    product = op.MatMul(op.Reshape(op.Transpose(x, perm=order), flat), waves)
    return op.Transpose(op.Reshape(product, parts), perm=back)


@script()
def stft(signal: FLOAT[...], waves: FLOAT[...], shape: INT64[...], strides: Sequence[int]) -> FLOAT[...]:
    """A Conv of the signal [N, samples, 1 or 2] with the windowed waves of each bin as kernels."""
    sums = op.Conv(op.Transpose(signal, perm=[0, 2, 1]), waves, strides=strides)
    return op.Transpose(op.Reshape(sums, shape), perm=[0, 3, 2, 1])


@script()
def scatter_sum(
    data: T, indices: INT64[...], updates: T,
    rows: INT64[...], below: INT64[...], zero: T, behind: INT64[...], along: INT64[...],
) -> T:  # fmt: skip
    """y[d] = data[d] + the sum of updates[k] where indices[k] is d, or d less the size: each in a row of zeros."""
    index = op.Unsqueeze(op.Cast(indices, to=INT64.dtype), behind)
    update = op.Unsqueeze(updates, behind)
    counted = op.Where(op.Equal(index, below), update, zero)
    placed = op.Where(op.Equal(index, rows), update, counted)
    return op.Add(data, op.ReduceSum(placed, along, keepdims=0))


@script()
def scatter_nd_sum(
    data: T, indices: INT64[...], updates: T,
    sizes: INT64[...], strides: INT64[...], flat: INT64[...], below: INT64[...], last: INT64[...],
    along: INT64[...], rows: INT64[...], parts: INT64[...], whole: INT64[...], shape: INT64[...],
    column: INT64[...], zero: T,
) -> T:  # fmt: skip
    """y[d] = data[d] + the sum of updates[k] where indices[k] is d: each in a row of zeros."""
    index = op.Reshape(indices, flat)
    place = op.Where(index < below, index + sizes, index)
    row = op.ReduceSum(place * strides, last, keepdims=0)
    here = op.Unsqueeze(op.Equal(row, op.Reshape(rows, column)), last)
    placed = op.Where(here, op.Reshape(updates, parts), zero)
    return op.Reshape(op.Reshape(data, whole) + op.ReduceSum(placed, along, keepdims=0), shape)
