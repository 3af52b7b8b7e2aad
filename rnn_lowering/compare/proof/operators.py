"""ONNX's operators on arrays of numbers, of sizes and of polynomials.

Each takes the inputs of a node and then its attributes, by name: none has one that is not named here. A number is
computed as a real number. Those that move elements are in `moves`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add, mul, sub
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnn_lowering.compare.proof.functions import FUNCTIONS
from rnn_lowering.compare.proof.machine import Machine, Operator
from rnn_lowering.compare.proof.moves import MOVES, plain, sizes_made
from rnn_lowering.compare.proof.polynomials import ZERO, BoundedPolynomial, UnprovenError, number
from rnn_lowering.compare.proof.sizes import SymbolicSize, counter, difference, integers
from rnn_lowering.compare.proof.symbolic_rows import floats, is_symbolic, numbers_of, of_known_type, refuse_large
from rnn_lowering.types import Array

_MOST_INT32 = 2**31 - 1


def _each(of: Operator, *arrays: Array, dtype: Any = None) -> Array:
    """Return a function of numbers and sizes, element by element, as integers or of a type."""
    broad = np.broadcast_arrays(*arrays)
    found = [of(*elements) for elements in zip(*(array.astype(object).flat for array in broad), strict=True)]
    return integers(found, broad[0].shape) if dtype is None else np.array(found, dtype).reshape(broad[0].shape)


def _arithmetic(of: Operator) -> Operator:
    """Return an operator of two arrays of numbers or sizes; None if rounding makes its numbers."""

    def operator(m: Machine, a: Array, b: Array) -> Array | None:
        if a.dtype == object or b.dtype == object:
            return _each(of, a, b)
        own = np.asarray(of(a, b))  # in their own type, as a runtime does
        wide = of(a.astype(np.longdouble), b.astype(np.longdouble))
        if own.dtype.kind != "f":
            _check_range(own, wide)
        elif not (np.abs(own - wide) <= m.rounding * np.abs(wide)).all():
            raise UnprovenError("a constant is rounded")
        return own if (own == wide).all() else None

    return operator


def _check_range(integers: Array, numbers: Array) -> None:
    """Raise if integers are not these numbers, or too large for the smallest type that sizes have."""
    if (integers != numbers).any() or (np.abs(numbers) > _MOST_INT32).any():
        raise UnprovenError("an integer is too large for its type")


def _divided(m: Machine, a: Array, b: Array) -> None:
    if {a.dtype.kind, b.dtype.kind} != {"f"}:
        raise UnprovenError("integers are divided")


def _elementwise(name: str, of_numbers: Operator | None = None, **defaults: float) -> Operator:
    """Return an operator that computes each element from one of each input.

    Args:
        name: That of a function of polynomials.
        of_numbers: What computes numbers and sizes; None, or one that returns None, if that function does.
        defaults: Those of the attributes, which are its parameters.
    """

    def operator(m: Machine, *arrays: Array, **given: float) -> Any:
        if given.keys() - defaults.keys():
            raise UnprovenError(f"{name} has attribute {min(given)}")
        are_numbers = of_numbers is not None and not any(map(is_symbolic, arrays))
        found = of_numbers(m, *arrays) if of_numbers is not None and are_numbers else None
        if found is not None:
            return found
        parameters = [number(value, m.half(value)) for value in (defaults | given).values()]
        return m.elementwise(m.algebra.function(FUNCTIONS[name], *parameters), *arrays)

    return operator


def _unknown(name: str) -> Operator:
    """Return an operator of which nothing is known but that equal inputs give equal outputs, element by element."""

    def operator(m: Machine, *arrays: Array, **attributes: Any) -> Array:
        of_name = name, *sorted(attributes.items())

        def element(*of: BoundedPolynomial) -> BoundedPolynomial:
            return m.algebra.atom(max(map(m.algebra.lanes, of)), *of_name, *map(m.algebra.identity, of))

        return m.elementwise(element, *arrays)

    return operator


def _extreme(name: str, prefers: Callable[[int], bool]) -> Operator:
    """Return Max or Min of several arrays."""

    def of_numbers(m: Machine, a: Array, b: Array) -> Array:
        dtype = None if object in (a.dtype, b.dtype) else a.dtype
        return _each(lambda x, y: x if prefers(difference(x, y)) else y, a, b, dtype=dtype)

    two = _elementwise(name, of_numbers)
    return lambda m, *arrays: reduce(partial(two, m), arrays)


def _comparison(is_so: Callable[[int], bool]) -> Operator:
    """Return a comparison of numbers and sizes: what a - b must be."""
    return lambda m, a, b: _each(lambda x, y: is_so(difference(x, y)), a, b, dtype=bool)


def _equal(m: Machine, a: Array, b: Array) -> Array:
    if is_symbolic(a) or is_symbolic(b):
        raise UnprovenError("data are compared for equality")
    return np.asarray(_comparison(lambda far: far == 0)(m, a, b))


def _chosen(m: Machine, condition: Array, a: Array, b: Array) -> Array:
    if a.dtype == object or b.dtype == object:
        return _each(lambda c, x, y: x if c else y, condition, a, b)
    return np.where(condition, a, b)


def _where(m: Machine, condition: Array, a: Array, b: Array) -> Array:
    if not is_symbolic(condition) and (is_symbolic(a) or is_symbolic(b)):
        return np.where(condition, m.lifted(a), m.lifted(b))
    return np.asarray(
        _elementwise("Where", _chosen)(m, condition, a, b)
    )  # data are bits only if a comparison made them


def _clip(m: Machine, x: Array, *bounds: Array | None, **attributes: float) -> Array:
    for name, side, given in zip(("Max", "Min"), ("min", "max"), (*bounds, None, None), strict=False):
        bound = np.array(attributes[side], np.float32) if given is None and side in attributes else given
        x = x if bound is None else OPERATORS[name](m, x, bound)
    return x


def _cast(m: Machine, x: Array, *, to: int) -> Array:
    """Return numbers as the type has them, and data as they are, if the type keeps them but for rounding."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(to))
    if x.dtype == object or dtype.kind == "O":
        if to not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):  # others are too small for some size
            raise UnprovenError("a size becomes another type")
        return x
    if not is_symbolic(x):
        result = of_known_type(x.astype(dtype))
        if dtype.kind in "iu" and x.dtype.kind == "f":
            _check_range(result, np.trunc(x))
        return result
    if dtype.kind in "biu":
        raise UnprovenError("data become integers")
    x = m.elementwise(m.algebra.without_unit, x)
    return x if m.keeps(to) else _unknown("Cast")(m, x, to=to)


def _gemm(
    m: Machine,
    a: Array,
    b: Array,
    c: Array | None = None,
    /,
    *,
    transA: int = 0,
    transB: int = 0,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Array:
    if (alpha, beta) != (1.0, 1.0):
        raise UnprovenError("Gemm has factors")
    result = m.product(a.T if transA else a, b.T if transB else b)
    return result if c is None else OPERATORS["Add"](m, result, c)


def _matmul(m: Machine, a: Array, b: Array) -> Array:
    if a.ndim < 2 or b.ndim < 2:
        raise UnprovenError("a product is of a vector")
    return m.product(a, b)


def _dequantize_linear(m: Machine, x: Array, scale: Array, zero: Array | None = None, /, *, axis: int = 1) -> Array:
    """Return numbers of integers that are constants."""
    given = [part for part in (x, scale, zero) if part is not None]
    if any(map(is_symbolic, given)) or any(m.marks(part) is not None for part in given):
        raise UnprovenError("data are dequantized")
    along = [-1 if scale.ndim and n == axis % x.ndim else 1 for n in range(x.ndim)]
    factor, least = (
        floats(part).reshape(along) for part in (scale, np.zeros_like(scale) if zero is None else zero)
    )
    return ((floats(x) - least) * factor).astype(scale.dtype)


def _dynamic_quantize_linear(m: Machine, x: Array) -> list[Array]:
    """Return integers, scale and zero point: functions of a number and of the range of all, which includes 0."""
    x = m.lifted(x)
    of_range = "range", frozenset(m.algebra.identity(part) for _, _, (part,) in m.rows.runs(x) if part.terms)
    scale, zero_point = (m.rows.of((m.algebra.atom(1, what, of_range), 1), shape=()) for what in ("scale", "zero"))

    def far(part: BoundedPolynomial) -> BoundedPolynomial:
        lanes = m.algebra.lanes(part)
        return m.algebra.atom(lanes, "rounded", of_range, m.algebra.identity(part)) if part.terms else ZERO

    return [_counted(m, m.sum(m.elementwise(far, x), zero_point)), scale, _counted(m, zero_point)]


def _integer_product(m: Machine, *given: Array) -> Array:
    """Return a product of integers without their zero points."""
    given = tuple(x if x is None else numbers_of_integers(m, x) for x in given)
    if len(given) > 2 and given[2] is not None and given[2].size != 1:
        raise UnprovenError("rows have zero points of their own")
    pairs = zip(given[:2], (*given[2:], None, None), strict=False)
    a, b = (x if zero is None else OPERATORS["Sub"](m, x, zero) for x, zero in pairs)
    return _counted(m, m.lifted(_matmul(m, a, b)))


def _counted(m: Machine, x: Array) -> Array:
    """Return numbers as integers: these have a unit, so what is computed of them is no number."""
    return m.times(x, m.rows.of((m.algebra.unit, 1), shape=()))


def numbers_of_integers(m: Machine, x: Array) -> Array:
    """Return integers without their unit."""
    return m.elementwise(m.algebra.without_unit, x) if is_symbolic(x) else floats(x)


def _reduced(name: str) -> Operator:
    def operator(
        m: Machine,
        x: Array,
        given: Array | None = None,
        /,
        *,
        axes: Sequence[int] = (),
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Array:
        axes = axes if given is None else plain(given)
        if not axes and noop_with_empty_axes:
            return x
        along = tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))
        if name == "Add" and not is_symbolic(x) and x.any():
            x = m.lifted(x)  # which are added up first is not known
        if any(m.axes.is_open(x.shape[axis]) for axis in along):
            raise UnprovenError("a sum or extreme over an open axis")
        for axis in along:
            if not x.shape[axis]:
                raise UnprovenError("the largest of no numbers")
            x = reduce(lambda a, b: OPERATORS[name](m, a, b), np.split(x, x.shape[axis], axis))
        return x if keepdims else np.squeeze(x, along)

    return operator


# Sizes and constants


def _shape(m: Machine, x: Array, *, start: int = 0, end: int | None = None) -> Array:
    sizes = x.shape[start:end]
    m.axes.closed(len(sizes))
    return integers([m.axes.of(size) for size in sizes], (len(sizes),))


def _constant_of_shape(m: Machine, shape: Array, *, value: onnx.TensorProto | None = None) -> Array:
    sizes = sizes_made(m, shape)
    refuse_large(*sizes)
    return np.full(sizes, np.float32(0) if value is None else numbers_of(value).flat[0])


def _range(m: Machine, start: Array, limit: Array, step: Array) -> Array:
    first, end, by = (x.flat[0] for x in (start, limit, step))
    if limit.dtype.kind == "f":
        raise UnprovenError("Range is of floats")
    if not any(isinstance(x, SymbolicSize) for x in (first, end, by)):
        refuse_large(abs(int((end - first) / by)))
        numbers = np.arange(first, end, by)
        m.axes.closed(len(numbers))
        return numbers
    if first != 0 or by != 1 or not isinstance(end, SymbolicSize):
        raise UnprovenError("Range does not count from 0")
    m.axes.made(end)
    return integers([counter(n, "row", end) for n in range(end)], (int(end),))


def _constant(m: Machine, **attributes: Any) -> Array:
    ((name, value),) = attributes.items()
    if name not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        raise UnprovenError(f"a constant has {name}")
    array = numbers_of(value) if name == "value" else np.array(value, np.int64 if "int" in name else np.float32)
    m.axes.closed(*array.shape)
    return array


_UNKNOWN = ("Celu", "Cos", "Erf", "Gelu", "HardSwish", "Mish", "Pow", "Reciprocal", "Selu", "Sin", "Sqrt")

ELEMENTWISE: dict[str, Operator] = {
    "Add": _elementwise("Add", _arithmetic(add)),
    "Sub": _elementwise("Sub", _arithmetic(sub)),
    "Mul": _elementwise("Mul", _arithmetic(mul)),
    "Neg": _elementwise("Neg", lambda m, x: -x),
    "Div": _elementwise("Div", _divided),
    "Max": _extreme("Max", lambda far: far >= 0),
    "Min": _extreme("Min", lambda far: far <= 0),
    "Clip": _clip,
    **{
        name: _elementwise(name)
        for name in ("Tanh", "Sigmoid", "Relu", "Abs", "Exp", "Log", "Softplus", "Softsign")
    },
    "Elu": _elementwise("Elu", alpha=1.0),
    "LeakyRelu": _elementwise("LeakyRelu", alpha=0.01),
    "ThresholdedRelu": _elementwise("ThresholdedRelu", alpha=1.0),
    "HardSigmoid": _elementwise("HardSigmoid", alpha=0.2, beta=0.5),
    "Less": _elementwise("Less", _comparison(lambda far: far < 0)),
    "Greater": _elementwise("Greater", _comparison(lambda far: far > 0)),
    "LessOrEqual": _elementwise("LessOrEqual", _comparison(lambda far: far <= 0)),
    "GreaterOrEqual": _elementwise("GreaterOrEqual", _comparison(lambda far: far >= 0)),
    "Equal": _equal,
    "And": _elementwise("And", lambda m, a, b: a & b),
    "Or": _elementwise("Or", lambda m, a, b: a | b),
    "Not": _elementwise("Not", lambda m, x: ~x),
    "Where": _where,
    "Cast": _cast,
    **{name: _unknown(name) for name in _UNKNOWN},
}
"""Those that compute each element from one of each input."""

OPERATORS: dict[str, Operator] = {
    **ELEMENTWISE,
    **MOVES,
    "MatMul": _matmul,
    "MatMulInteger": _integer_product,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "Gemm": _gemm,
    "ReduceMax": _reduced("Max"),
    "ReduceMin": _reduced("Min"),
    "ReduceSum": _reduced("Add"),
    "Shape": _shape,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Constant": _constant,
}
"""By the name of the operator."""
