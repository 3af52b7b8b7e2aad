"""ONNX's operators on arrays of numbers, of sizes and of polynomials.

A number is computed as a real number. What an operator moves it moves whatever it is, so NumPy does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnn_lowering.compare.proof.axes import Moves
from rnn_lowering.compare.proof.machine import Machine, Operator
from rnn_lowering.compare.proof.polynomials import ONE, ZERO, Algebra, BoundedPolynomial, UnprovenError, number
from rnn_lowering.compare.proof.sizes import SymbolicSize, counter, difference
from rnn_lowering.compare.proof.symbolic_rows import floats, is_symbolic, numbers_of, of_known_type, refuse_large
from rnn_lowering.types import Array

_MOST_INT32 = 2**31 - 1


def integers(elements: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """Return integers as an array: of objects, if some follow from sizes."""
    if any(isinstance(x, SymbolicSize) for x in elements):
        array = np.empty(len(elements), object)
        array[:] = elements
        return array.reshape(shape)
    return np.array([int(x) for x in elements], np.int64).reshape(shape)


# Arithmetic


def _arithmetic(of_arrays: Operator, of_elements: Operator) -> Operator:
    """Return an operator of two arrays, of numbers, sizes or polynomials."""

    def operator(m: Machine, _: Any, a: Array, b: Array) -> Array:
        if is_symbolic(a) or is_symbolic(b):
            return m.elementwise(of_elements, a, b)
        if a.dtype != object and b.dtype != object:
            own = np.asarray(of_arrays(a, b))  # in their own type, as a runtime does
            wide = of_arrays(a.astype(np.longdouble), b.astype(np.longdouble))
            if own.dtype.kind != "f":
                _check_range(own, wide)
            elif (own != wide).any():
                if not (np.abs(own - wide) <= m.rounding * np.abs(wide)).all():
                    raise UnprovenError("a constant is rounded")
                return m.elementwise(of_elements, a, b)
            return own
        broad = np.broadcast_arrays(a.astype(object), b.astype(object))
        return integers([of_elements(x, y) for x, y in zip(*(z.flat for z in broad), strict=True)], broad[0].shape)

    return operator


def _check_range(integers: Array, numbers: Array) -> None:
    """Raise if integers are not these numbers, or too large for the smallest type that sizes have."""
    if (integers != numbers).any() or (np.abs(numbers) > _MOST_INT32).any():
        raise UnprovenError("an integer is too large for its type")


def _divided(m: Machine, _: Any, a: Array, b: Array) -> Array:
    if any(not is_symbolic(x) and x.dtype.kind != "f" for x in (a, b)):
        raise UnprovenError("integers are divided")
    return m.elementwise(m.algebra.divided, a, b)


def _function(name: str, **defaults: float) -> Operator:
    """Return an operator that is a function of the algebra, with attributes as its parameters."""

    def operator(m: Machine, attributes: Mapping[str, Any], x: Array) -> Array:
        parameters = [number(attributes.get(k, v), m.half(attributes.get(k, v))) for k, v in defaults.items()]
        return m.elementwise(m.algebra.function(name, *parameters), x)

    return operator


def _unknown(name: str) -> Operator:
    """Return an operator of which nothing is known but that equal inputs give equal outputs, element by element."""

    def operator(m: Machine, attributes: Mapping[str, Any], *arrays: Array) -> Array:
        of_name = name, *sorted(attributes.items())

        def element(*of: BoundedPolynomial) -> BoundedPolynomial:
            return m.algebra.atom(max(map(m.algebra.lanes, of)), *of_name, *map(m.algebra.identity, of))

        return m.elementwise(element, *arrays)

    return operator


def _extreme(name: str, prefers: Callable[[int], bool]) -> Operator:
    """Return Max or Min of several arrays."""

    def two(m: Machine, a: Array, b: Array) -> Array:
        if is_symbolic(a) or is_symbolic(b):
            return m.elementwise(getattr(m.algebra, name), a, b)
        broad = np.broadcast_arrays(a, b)
        chosen = [x if prefers(_difference(x, y)) else y for x, y in zip(*(z.flat for z in broad), strict=True)]
        has_sizes = a.dtype == object or b.dtype == object
        array = integers(chosen, (len(chosen),)) if has_sizes else np.array(chosen, a.dtype)
        return array.reshape(broad[0].shape)

    return lambda m, _, *arrays: reduce(lambda a, b: two(m, a, b), arrays)


def _difference(a: Any, b: Any) -> int:
    """Return a number with the sign of a - b."""
    if isinstance(a, SymbolicSize) or isinstance(b, SymbolicSize):
        return difference(a, b)
    if a != a or b != b:
        raise UnprovenError("a constant is no number")
    return int(a > b) - int(a < b)


def _comparison(
    is_so: Callable[[Any], bool], of_polynomials: Callable[[Algebra, BoundedPolynomial], BoundedPolynomial] | None
) -> Operator:
    """Return a comparison: what a - b must be."""

    def operator(m: Machine, _: Any, a: Array, b: Array) -> Array:
        if is_symbolic(a) or is_symbolic(b):
            if of_polynomials is None:
                raise UnprovenError("data are compared for equality")
            return m.elementwise(lambda x, y: of_polynomials(m.algebra, m.algebra.difference(x, y)), a, b)
        broad = np.broadcast_arrays(a, b)
        pairs = zip(*(z.flat for z in broad), strict=True)
        return np.array([is_so(_difference(x, y)) for x, y in pairs], bool).reshape(broad[0].shape)

    return operator


def _where(m: Machine, _: Any, condition: Array, a: Array, b: Array) -> Array:
    if is_symbolic(condition):  # as data, these are bits only if a comparison made them
        return m.elementwise(lambda c, x, y: y + c * (x - y), condition, a, b)
    if is_symbolic(a) or is_symbolic(b):
        a, b = m.lifted(a), m.lifted(b)
    elif a.dtype == object or b.dtype == object:
        broad = np.broadcast_arrays(condition, a, b)
        chosen = [x if c else y for c, x, y in zip(*(z.flat for z in broad), strict=True)]
        return integers(chosen, broad[0].shape)
    return np.where(condition, a, b)


def _logic(of_bits: Operator, of_elements: Operator) -> Operator:
    def operator(m: Machine, _: Any, *arrays: Array) -> Array:
        if any(map(is_symbolic, arrays)):
            return m.elementwise(of_elements, *arrays)
        return np.asarray(of_bits(*arrays))

    return operator


def _clip(
    m: Machine, attributes: Mapping[str, Any], x: Array, low: Array | None = None, high: Array | None = None
) -> Array:
    for name, given, side in (("Max", low, "min"), ("Min", high, "max")):
        bound = np.array(attributes[side], np.float32) if given is None and side in attributes else given
        x = x if bound is None else OPERATORS[name](m, {}, x, bound)
    return x


def _cast(m: Machine, attributes: Mapping[str, Any], x: Array) -> Array:
    """Return numbers as the type has them, and data as they are, if the type keeps them but for rounding."""
    to = attributes["to"]
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
    return x if m.keeps(to) else _unknown("Cast")(m, attributes, x)


def _gemm(m: Machine, attributes: Mapping[str, Any], a: Array, b: Array, c: Array | None = None) -> Array:
    a, b = (x.T if attributes.get(name) else x for name, x in (("transA", a), ("transB", b)))
    result = m.product(a, b)
    for name in ("alpha", "beta"):
        if attributes.get(name, 1.0) != 1.0:
            raise UnprovenError("Gemm has factors")
    return result if c is None else OPERATORS["Add"](m, {}, result, c)


def _matmul(m: Machine, _: Any, a: Array, b: Array) -> Array:
    if a.ndim < 2 or b.ndim < 2:
        raise UnprovenError("a product is of a vector")
    return m.product(a, b)


def _dynamic_quantize_linear(m: Machine, _: Any, x: Array) -> list[Array]:
    """Return integers, scale and zero point: functions of a number and of the range of all, which includes 0."""
    x = m.lifted(x)
    of_range = "range", frozenset(m.algebra.identity(part) for _, _, (part,) in m.rows.runs(x) if part.terms)
    scale, zero_point = (m.rows.of((m.algebra.atom(1, what, of_range), 1), shape=()) for what in ("scale", "zero"))

    def far(part: BoundedPolynomial) -> BoundedPolynomial:
        lanes = m.algebra.lanes(part)
        return m.algebra.atom(lanes, "rounded", of_range, m.algebra.identity(part)) if part.terms else ZERO

    return [_counted(m, m.sum(m.elementwise(far, x), zero_point)), scale, _counted(m, zero_point)]


def _integer_product(m: Machine, _: Any, *given: Array) -> Array:
    """Return a product of integers without their zero points."""
    given = tuple(x if x is None else numbers_of_integers(m, x) for x in given)
    if len(given) > 2 and given[2] is not None and given[2].size != 1:
        raise UnprovenError("rows have zero points of their own")
    pairs = zip(given[:2], (*given[2:], None, None), strict=False)
    a, b = (x if zero is None else OPERATORS["Sub"](m, {}, x, zero) for x, zero in pairs)
    return _counted(m, m.lifted(_matmul(m, {}, a, b)))


def _counted(m: Machine, x: Array) -> Array:
    """Return numbers as integers: these have a unit, so what is computed of them is no number."""
    return m.times(x, m.rows.of((m.algebra.unit, 1), shape=()))


def numbers_of_integers(m: Machine, x: Array) -> Array:
    """Return integers without their unit."""
    return m.elementwise(m.algebra.without_unit, x) if is_symbolic(x) else floats(x)


def _reduced(name: str) -> Operator:
    def operator(m: Machine, attributes: Mapping[str, Any], x: Array, given: Array | None = None) -> Array:
        axes = attributes.get("axes", ()) if given is None else _plain(given)
        if not axes and attributes.get("noop_with_empty_axes"):
            return x
        along = tuple(a % x.ndim for a in axes) or tuple(range(x.ndim))
        if name == "Add" and not is_symbolic(x) and x.any():
            x = m.lifted(x)  # which are added up first is not known
        if any(m.axes.is_open(x.shape[axis]) for axis in along):
            raise UnprovenError("a sum or extreme over an open axis")
        parts = x
        for axis in sorted(along, reverse=True):
            if not parts.shape[axis]:
                raise UnprovenError("the largest of no numbers")
            rows = [np.take(parts, [n], axis) for n in range(parts.shape[axis])]
            parts = reduce(lambda a, b: OPERATORS[name](m, {}, a, b), rows)
        kept = bool(attributes.get("keepdims", 1))
        return parts if kept else np.squeeze(parts, along)

    return operator


# Moves


def _plain(array: Array | None) -> list[int]:
    """Return integers that no size decides."""
    values = [] if array is None else list(array.flat)
    if any(isinstance(value, SymbolicSize) for value in values):
        raise UnprovenError("a size is no such number")
    return [int(value) for value in values]


def _sizes(m: Machine, shape: Array) -> list[int]:
    """Return the sizes of a new array."""
    for size in shape.flat:
        m.axes.made(size)
    return [int(size) for size in shape.flat]


def _axes(attributes: Mapping[str, Any], given: Array | None) -> list[int]:
    if given is not None and given.ndim != 1:
        raise UnprovenError("axes are no vector")
    return list(attributes.get("axes", ())) if given is None else _plain(given)


def _reshape(m: Machine, attributes: Mapping[str, Any], x: Array, shape: Array) -> Array:
    wanted = _sizes(m, shape)
    if not attributes.get("allowzero"):
        wanted = [x.shape[n] if size == 0 else size for n, size in enumerate(wanted)]
    return _reshaped(m, x, wanted)


def _reshaped(m: Machine, x: Array, shape: Sequence[int]) -> Array:
    result = x.reshape(shape)
    m.axes.check_order(x.shape, result.shape)
    return result


def _flatten(m: Machine, attributes: Mapping[str, Any], x: Array) -> Array:
    axis = attributes.get("axis", 1)
    axis += x.ndim * (axis < 0)
    return _reshaped(m, x, [int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))])


def _squeeze(m: Machine, attributes: Mapping[str, Any], x: Array, given: Array | None = None) -> Array:
    axes = _axes(attributes, given)
    if not axes:
        raise UnprovenError("Squeeze names no axes")
    return np.squeeze(x, tuple(axes))


def _unsqueeze(m: Machine, attributes: Mapping[str, Any], x: Array, given: Array | None = None) -> Array:
    return np.expand_dims(x, tuple(_axes(attributes, given)))


def _concat(m: Machine, attributes: Mapping[str, Any], *parts: Array) -> Array:
    axis, before = attributes["axis"], m.moves(*parts)
    for part in parts:
        m.check_stays(part, *part.shape)
    if any(map(is_symbolic, parts)):
        parts = tuple(map(m.lifted, parts))
    result, sizes = np.concatenate(parts, axis), [part.shape[axis] for part in parts]
    opened = list(filter(m.axes.is_open, sizes))
    if len(parts) > 1 and opened:
        first, closed = sizes.index(opened[0]), sum(sizes) - sum(opened)
        in_front = closed if len(opened) > 1 else sum(sizes[:first])
        moves = [m.axes.beside(size, in_front) + m.axes.behind(size, closed - in_front) for size in opened]
        m.moved(result, reduce(Moves.__or__, moves) + before)
    m.axes.joined(sizes, result.shape[axis])
    return result


def _split(m: Machine, attributes: Mapping[str, Any], x: Array, given: Array | None = None) -> list[Array]:
    axis, sizes = attributes.get("axis", 0), attributes.get("split") if given is None else _plain(given)
    if m.axes.is_open(x.shape[axis]):
        raise UnprovenError("an open axis is split")
    if sizes is None:
        count = attributes["num_outputs"]
        sizes = [x.shape[axis] // count] * count
    if sum(sizes) != x.shape[axis]:
        raise UnprovenError("Split has other sizes")
    m.axes.closed(*sizes)
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _slice(m: Machine, attributes: Mapping[str, Any], x: Array, *given: Array | None) -> Array:
    names = ("starts", "ends", "axes", "steps")
    if given:
        parts = {name: list(a.flat) for name, a in zip(names, given, strict=False) if a is not None}
    else:
        parts = {name: attributes[name] for name in names if name in attributes}
    axes = parts.get("axes", range(len(parts["starts"])))
    m.check_stays(x, *x.shape)
    for n, axis in enumerate(_plain(np.array(axes, object))):
        start, end, step = parts["starts"][n], parts["ends"][n], parts.get("steps", [1] * len(parts["starts"]))[n]
        size = m.rows_of(x, axis)
        is_open = m.axes.is_open(size)
        moves = m.axes.chosen(size, start) + m.axes.chosen(size, end, past=int(np.sign(step)))
        if isinstance(step, SymbolicSize) or (abs(step) != 1 and is_open):
            raise UnprovenError("an open axis is sliced in steps")
        rows = _rows(x.shape[axis], int(start), int(end), int(step))
        before = m.axes.from_the_end(m.moves(x)) if min(start, end, step) < 0 else m.moves(x)
        x = m.moved(np.take(x, rows, axis), reduce(Moves.__add__, map(m.moves, given), moves + before))
        m.axes.sliced(size, x.shape[axis], start, end)
    return x


def _rows(size: int, start: int, end: int, step: int) -> list[int]:
    """Return the rows that a Slice takes: Python's rule, but for an end that is before the first row in reverse."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start, end = (min(max(v + size if v < 0 else v, low), high) for v in (start, end))
    return list(range(start, end, step))


def _gather(m: Machine, attributes: Mapping[str, Any], x: Array, index: Array) -> Array:
    axis = attributes.get("axis", 0)
    m.check_stays(x, *x.shape)
    before = m.axes.from_the_end(m.moves(x)) if min(index.flat, default=0) < 0 else m.moves(x)
    moves = m.axes.chosen(m.rows_of(x, axis), *index.flat) + before + m.moves(index)
    rows = index.astype(np.int64)
    if rows.size and not (-x.shape[axis] <= rows.min() and rows.max() < x.shape[axis]):
        raise UnprovenError("an index is beyond its axis")
    refuse_large(x.size // max(1, x.shape[axis]), np.size(rows))
    return m.moved(np.take(x, rows, axis), moves)


def _shape(m: Machine, attributes: Mapping[str, Any], x: Array) -> Array:
    sizes = x.shape[attributes.get("start", 0) : attributes.get("end", x.ndim)]
    m.axes.closed(len(sizes))
    return integers([m.axes.of(size) for size in sizes], (len(sizes),))


def _constant_of_shape(m: Machine, attributes: Mapping[str, Any], shape: Array) -> Array:
    value = numbers_of(attributes["value"]) if "value" in attributes else np.zeros(1, np.float32)
    sizes = _sizes(m, shape)
    refuse_large(*sizes)
    return np.full(sizes, value.flat[0])


def _range(m: Machine, _: Any, start: Array, limit: Array, step: Array) -> Array:
    first, end, by = (x.flat[0] for x in (start, limit, step))
    if isinstance(first, SymbolicSize) or isinstance(by, SymbolicSize):
        raise UnprovenError("Range does not count from 0")
    if limit.dtype.kind == "f":
        raise UnprovenError("Range is of floats")
    if not isinstance(end, SymbolicSize):
        refuse_large(abs(int((end - first) / by)))
        numbers = np.arange(first, end, by)
        m.axes.closed(len(numbers))
        return numbers
    if first != 0 or by != 1:
        raise UnprovenError("Range does not count from 0")
    m.axes.made(end)
    return integers([counter(n, "row", end) for n in range(end)], (int(end),))


def _expand(m: Machine, _: Any, x: Array, shape: Array) -> Array:
    sizes = np.broadcast_shapes(x.shape, tuple(_sizes(m, shape)))
    refuse_large(*sizes)
    return np.broadcast_to(x, sizes)


def _constant(m: Machine, attributes: Mapping[str, Any]) -> Array:
    ((name, value),) = attributes.items()
    if name not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        raise UnprovenError(f"a constant has {name}")
    kind = np.int64 if "int" in name else np.float32
    array = numbers_of(value) if name == "value" else np.array(value, kind)
    m.axes.closed(*array.shape)
    return array


_UNKNOWN = ("Celu", "Cos", "Erf", "Gelu", "HardSwish", "Mish", "Pow", "Reciprocal", "Selu", "Sin", "Sqrt")

ELEMENTWISE: dict[str, Operator] = {
    "Add": _arithmetic(np.add, lambda a, b: a + b),
    "Sub": _arithmetic(np.subtract, lambda a, b: a - b),
    "Mul": _arithmetic(np.multiply, lambda a, b: a * b),
    "Neg": lambda m, _, x: m.elementwise(BoundedPolynomial.__neg__, x) if is_symbolic(x) else -x,
    "Div": _divided,
    "Max": _extreme("maximum", lambda far: far >= 0),
    "Min": _extreme("minimum", lambda far: far <= 0),
    "Clip": _clip,
    "Tanh": _function("tanh"),
    "Sigmoid": _function("sigmoid"),
    "Relu": _function("relu"),
    "Abs": _function("abs"),
    "Exp": _function("exp"),
    "Log": _function("log"),
    "Softplus": _function("softplus"),
    "Softsign": _function("softsign"),
    "Elu": _function("elu", alpha=1.0),
    "LeakyRelu": _function("leaky_relu", alpha=0.01),
    "ThresholdedRelu": _function("thresholded_relu", alpha=1.0),
    "HardSigmoid": _function("hard_sigmoid", alpha=0.2, beta=0.5),
    "Less": _comparison(lambda far: far < 0, lambda algebra, far: algebra.above(-far)),
    "Greater": _comparison(lambda far: far > 0, lambda algebra, far: algebra.above(far)),
    "LessOrEqual": _comparison(lambda far: far <= 0, lambda algebra, far: ONE - algebra.above(far)),
    "GreaterOrEqual": _comparison(lambda far: far >= 0, lambda algebra, far: ONE - algebra.above(-far)),
    "Equal": _comparison(lambda far: far == 0, None),
    "And": _logic(np.logical_and, lambda a, b: a * b),
    "Or": _logic(np.logical_or, lambda a, b: a + b - a * b),
    "Not": _logic(np.logical_not, BoundedPolynomial.complement),
    "Where": _where,
    "Cast": _cast,
    **{name: _unknown(name) for name in _UNKNOWN},
}
"""Those that compute each element from one of each input."""

MOVES: dict[str, Operator] = {
    "Identity": lambda m, _, x: x,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": lambda m, attributes, x: np.transpose(x, attributes.get("perm")),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Expand": _expand,
}
"""Those that move the elements of their first input, or of all."""

OPERATORS: dict[str, Operator] = {
    **ELEMENTWISE,
    **MOVES,
    "MatMul": _matmul,
    "MatMulInteger": _integer_product,
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
