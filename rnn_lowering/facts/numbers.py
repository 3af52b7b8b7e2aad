"""Evaluate nodes that read constants and sizes only: the results are numbers, or polynomials of open sizes.

A node whose inputs are constants runs in onnx's reference evaluator. Polynomials are moved as labels, added and
multiplied exactly, and compared only if the answer is the same at every size. A number that depends on a
counter in another way raises `UnfollowedError`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy as np
import onnx_ir as ir

from rnn_lowering.facts.known import LARGEST, KnownValues, shape_of
from rnn_lowering.facts.node_outputs import MOST_SENT, NodeModel, compute_node, numbered
from rnn_lowering.facts.operators import bodies_of, is_of_default_domain, moved_inputs, operator_of
from rnn_lowering.facts.size import Size, product, size
from rnn_lowering.types import Array

_Results = Sequence[Array | None]
"""The numbers of each output of a node; None if unknown."""
_Rule = Callable[[KnownValues, ir.Node], _Results | None]

_NEVER_NEGATIVE = frozenset(("Abs", "Cast", "Div", "Max", "Min", "Mod", "Mul", "ReduceProd", "Sum", "Where"))
"""Operators that return no negative number if they are given none, as those that only move elements do."""

_MOST_SYMBOLS = 64
"""Maximum elements of a tensor whose numbers are computed as symbols."""


_LARGEST_POWER = 4
"""Maximum exponent of a polynomial."""


class UnfollowedError(Exception):
    """A value depends on a counter, but not as a polynomial."""


def evaluate(known: KnownValues, node: ir.Node) -> None:
    """Evaluate a node that reads constants and sizes only, and add the numbers of its outputs.

    Raises:
        UnfollowedError: They depend on a counter, but not as a polynomial.
    """
    if not is_of_default_domain(node) or operator_of(node).random or bodies_of(node):
        return
    if not can_evaluate(known, node):
        return
    results = _shape(known, node) if node.op_type in ("Shape", "Size") else _result(known, node)
    for output, array in zip(node.outputs, results, strict=False):
        if array is not None and array.size <= (MOST_SENT if array.dtype == object else LARGEST):
            known.contents[output] = _without_objects(known, output, array)
            if output not in known.shapes:
                known.shapes[output] = tuple(size(n) for n in array.shape)


def can_evaluate(known: KnownValues, node: ir.Node) -> bool:
    """Return whether the numbers that a node reads are known; of a Shape or Size, whether the shape is."""
    if node.op_type in ("Shape", "Size"):
        return shape_of(known, node) is not None
    return all(value in known.contents for value in _read(node))


def _read(node: ir.Node) -> list[ir.Value]:
    """Return the inputs whose numbers a node reads: CastLike reads only the type of the second."""
    return [v for v in node.inputs[: 1 if node.op_type == "CastLike" else None] if v is not None]


def _result(known: KnownValues, node: ir.Node) -> _Results:
    if all(known.constant(v) is not None for v in _read(node)):
        return _of_constants(known, node)
    results = _broadcastable(known, node)
    if results is not None:
        return results
    symbolic = [array for v in _read(node) if (array := known.contents[v]).dtype == object]
    if not symbolic:
        return []
    results = _symbolic(known, node)
    if results is None and any(map(_varies, symbolic)):
        raise UnfollowedError
    return _new_symbols(known, node) if results is None else results


def _of_constants(known: KnownValues, node: ir.Node) -> _Results:
    if sum(float(product(known.shapes[v]).constant or 0) for v in node.outputs if v in known.shapes) > LARGEST:
        return []
    arrays = [None if v is None else known.constant(v) for v in node.inputs]
    if node.op_type == "CastLike" and node.inputs[1] in known.types:
        arrays[1] = np.zeros((), known.types[node.inputs[1]].numpy())
    expected = [known.static_type(v) for v in node.outputs]
    results = NodeModel.of(node, known.opset).compute(arrays, expected) or []
    for output, array in zip(node.outputs, results, strict=False):
        if output.name and known.static_shape(output) is None:  # which follows from numbers, as of a NonZero
            known.shapes[output] = tuple(size(n) for n in array.shape)
    return results


def _varies(array: Array) -> bool:
    return any(isinstance(n, Size) and n.varies for n in array.reshape(-1))


def numbers_vary(known: KnownValues, value: ir.Value) -> bool:
    """Whether the contents of a value depend on a counter."""
    array = known.contents.get(value)
    return array is not None and array.dtype == object and _varies(array)


def _without_objects(known: KnownValues, value: ir.Value, array: Array) -> Array:
    """Return the array in its own type if no element depends on a size."""
    if array.dtype != object:
        return array
    constants = [n.constant for n in (size(n) for n in array.reshape(-1))]
    if any(n is None for n in constants) or value not in known.types:
        return array
    return np.array([float(n or 0) for n in constants]).astype(known.types[value].numpy()).reshape(array.shape)


def _shape(known: KnownValues, node: ir.Node) -> _Results:
    shape = shape_of(known, node)
    if shape is None:
        return []
    if node.op_type == "Size":
        return [_objects([product(shape)], ())]
    first, last = (node.attributes.get_int(name, None) for name in ("start", "end"))
    kept = shape[first:last]
    return [_objects(kept, (len(kept),))]


def _objects(numbers: Sequence[Size], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(numbers), object)
    array[:] = numbers
    return array.reshape(shape)


# Constants that are the same along an axis of unknown size


def _broadcastable(known: KnownValues, node: ir.Node) -> _Results | None:
    """Return the outputs of a node as arrays that broadcast to their shapes; None for other operators."""
    arrays = [known.contents[v] for v in _read(node)]
    symbolic = any(array.dtype == object for array in arrays)
    if node.op_type == "ConstantOfShape":
        value = node.attributes.get_tensor("value", None)
        fill, sizes = np.zeros(1, np.float32) if value is None else value.numpy(), known.numbers_of_input(node, 0)
        return None if sizes is None else [fill.reshape((1,) * len(sizes))]
    if node.op_type == "Expand":
        shape = known.shapes.get(node.outputs[0])
        if shape is None:
            return None
        return [arrays[0].reshape((1,) * (len(shape) - arrays[0].ndim) + arrays[0].shape)]
    of_any_size = operator_of(node).elementwise or node.op_type in ("CastLike", "Transpose")
    if not symbolic and (of_any_size or node.op_type == "Unsqueeze"):
        return compute_node(node, known.contents, known.opset)
    if not symbolic and node.op_type == "Concat":
        return _concatenation(known, node)
    return _rearrangement(known, node)


def _concatenation(known: KnownValues, node: ir.Node) -> _Results:
    values, axis = _read(node), node.attributes.get_int("axis", 1) or 0
    arrays = [known.contents[v] for v in values]
    if any(known.shapes[v][axis] != size(a.shape[axis]) for v, a in zip(values, arrays, strict=True)):
        return []
    return [concatenated(arrays, axis)]


def concatenated(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays that broadcast along the other axes."""
    shape = np.broadcast_shapes(*(a.take([0], axis).shape for a in arrays if a.shape[axis]))
    axis %= len(shape)
    same = [np.broadcast_to(a, (*shape[:axis], a.shape[axis], *shape[axis + 1 :])) for a in arrays if a.shape[axis]]
    return np.concatenate(same, axis)


def _rearrangement(known: KnownValues, node: ir.Node) -> _Results | None:
    """Reshape, slice or gather an array that broadcasts along the other axes."""
    value = node.inputs[0]
    if not operator_of(node).moves or node.op_type == "Concat" or value is None:
        return None
    array, shape = known.contents[value], known.shapes[value]
    if array.dtype == object or _is_full(known, value):
        return None
    if array.size == 1:
        outputs = [known.shapes.get(v) for v in node.outputs]
        return [None if dims is None else array.reshape((1,) * len(dims)) for dims in outputs]
    axis = node.attributes.get_int("axis", 0) or 0
    along = {axis % array.ndim} if node.op_type in ("Gather", "Split") else None
    if node.op_type == "Slice":
        axes = known.parameter(node, "axes")
        along = {int(n.constant or 0) % array.ndim for n in axes or ()} or set(range(array.ndim))
    if along is None or any(shape[n] != size(array.shape[n]) for n in along):
        return []
    others = [v for v in node.inputs[1:] if v is not None]
    feed = {v: numbers for v in others if (numbers := known.constant(v)) is not None}
    return compute_node(node, {**feed, value: array}, known.opset) if len(feed) == len(set(others)) else []


# Numbers that depend on sizes


def _symbolic(known: KnownValues, node: ir.Node) -> _Results | None:
    if operator_of(node).moves:
        return _moved_labels(known, node)
    if not all(_are_numbers(known.contents[v]) for v in _read(node)):
        return None
    rule = _CALCULATED.get(node.op_type)
    return None if rule is None else rule(known, node)


def _are_numbers(array: Array) -> bool:
    return array.dtype.kind in "iubO" or (array.dtype.kind == "f" and bool(np.isfinite(array).all()))


def _new_symbols(known: KnownValues, node: ir.Node) -> _Results:
    """Return symbols for integers that are no polynomials and do not depend on a counter."""
    shape, dtype = known.static_shape(node.outputs[0]), known.types.get(node.outputs[0])
    if dtype is None or not dtype.is_integer() or shape is None or math.prod(shape) > _MOST_SYMBOLS:
        return []
    attributes = [(name, a.value) for name, a in sorted(node.attributes.items())]
    arrays = [known.contents[v].tolist() for v in _read(node)]
    given = [known.numbers(v) for v in _read(node)]
    positive = all(numbers is not None and all(n.at_least(0) for n in numbers) for numbers in given)
    negative = not positive or not (operator_of(node).moves or node.op_type in _NEVER_NEGATIVE)
    keys = (f"{node.op_type} {attributes} {arrays} {n}" for n in range(math.prod(shape)))
    return [_objects([known.unknown(key, negative=negative) for key in keys], shape)]


def _is_full(known: KnownValues, value: ir.Value | None) -> bool:
    """Whether the array has the whole shape of the value, not one that broadcasts to it."""
    return value is not None and tuple(size(n) for n in known.contents[value].shape) == known.shapes.get(value)


def _moved_labels(known: KnownValues, node: ir.Node) -> _Results | None:
    """Return the outputs of a node that only moves elements, by running it on labels of them."""
    data = [v for v in node.inputs[: moved_inputs(node)] if v is not None]
    others = {v for v in node.inputs if v is not None and v not in data}
    feed = {v: numbers for v in others if (numbers := known.constant(v)) is not None}
    if len(feed) < len(others) or not all(_is_full(known, v) for v in data):
        return None
    arrays = [known.contents[value] for value in data]
    sizes = [size(n) for array in arrays for n in array.reshape(-1).tolist()]
    moved = compute_node(node, feed | dict(zip(data, numbered(arrays), strict=True)), known.opset)
    return [_objects([sizes[n] for n in array.reshape(-1).astype(int)], array.shape) for array in moved]


def _polynomials(known: KnownValues, node: ir.Node) -> list[Array]:
    """Return the inputs as arrays of polynomials."""
    arrays = [known.contents[v] for v in _read(node)]
    return [_objects([size(n) for n in a.reshape(-1).tolist()], a.shape) for a in arrays]


def _each(function: Callable[..., Size | None], *, rounds: bool = False) -> _Rule:
    """Apply a rule to each element; return None if it returns None for one.

    Args:
        function: The rule.
        rounds: Whether the operator rounds floats. T / 41 is rounded, so T / 41 * 41 may not be T.
    """

    def rule(known: KnownValues, node: ir.Node) -> _Results | None:
        given = _polynomials(known, node)
        arrays = np.broadcast_arrays(*given)
        found = [function(*each) for each in zip(*(a.reshape(-1).tolist() for a in arrays), strict=True)]
        numbers = [number for number in found if number is not None]
        if len(numbers) < len(found) or (rounds and _is_rounded(known, node, given, numbers)):
            return None
        return [_objects(numbers, arrays[0].shape)]

    return rule


def _is_rounded(known: KnownValues, node: ir.Node, given: Sequence[Array], numbers: Sequence[Size]) -> bool:
    """Whether a float that is computed of rounded fractions may differ from the exact number."""
    dtype = known.types.get(node.outputs[0])
    if dtype is None or not dtype.is_floating_point():
        return False
    before = math.lcm(*(_rounds(known, n) for array in given for n in array.reshape(-1)))
    return any(_rounds(known, n) % before for n in numbers)


def _rounds(known: KnownValues, number: Size) -> int:
    """Return the odd part of the denominator of a polynomial: floats hold other fractions exactly."""
    denominator = known.denominator(number)
    return denominator // (denominator & -denominator)


def _cast(known: KnownValues, node: ir.Node) -> _Results | None:
    """Apply a Cast that changes no number: it truncates no fraction, and a long sequence does not overflow."""
    dtype_after, (array,) = known.types.get(node.outputs[0]), _polynomials(known, node)
    if dtype_after is None:
        return None
    dtype, numbers = dtype_after.numpy(), array.reshape(-1)
    whole = dtype.kind == "f" or (dtype.kind in "iu" and all(map(known.is_whole, numbers)))
    whole = whole and (dtype.kind != "u" or all(map(known.never_negative, numbers)))
    fits = whole and dtype.itemsize >= 4
    return [array] if fits else None


def _whole(known: KnownValues, node: ir.Node) -> _Results | None:
    """Apply Ceil or Round to integers, which stay the same."""
    (array,) = _polynomials(known, node)
    return [array] if all(map(known.is_whole, array.reshape(-1))) else None


def _floor(known: KnownValues, node: ir.Node) -> _Results | None:
    return _each(known.floor)(known, node)


def _quotient(known: KnownValues, node: ir.Node) -> _Results | None:
    """Apply Div; integers are rounded towards 0, which is down for numbers that are surely not negative."""
    dtype = known.types.get(node.outputs[0])

    def quotient(first: Size, second: Size) -> Size | None:
        ratio = first.divided(second)
        if ratio is None or dtype is None or not dtype.is_integer() or known.denominator(ratio) == 1:
            return ratio
        return known.floor(ratio) if known.divides_down(ratio) else None

    return _each(quotient, rounds=True)(known, node)


def _remainder(known: KnownValues, node: ir.Node) -> _Results | None:
    """Apply Mod to integers: a multiple of 4 has the remainder 0."""
    dtype, truncates = known.types.get(node.outputs[0]), node.attributes.get_int("fmod", 0)
    if dtype is None or not dtype.is_integer() or truncates:
        return None

    def remainder(first: Size, second: Size) -> Size | None:
        quotient = first.divided(second) if second.constant is not None and second.constant > 0 else None
        below = None if quotient is None else known.floor(quotient)
        return None if below is None else first - below * second

    return _each(remainder)(known, node)


def _product_of_all(known: KnownValues, node: ir.Node) -> _Results | None:
    shape = known.shapes.get(node.outputs[0])
    (array, *_) = _polynomials(known, node)
    total = product(array.reshape(-1))
    full = array.ndim == 1 and shape is not None and _is_full(known, node.inputs[0])
    return [_objects([total], (1,) * len(shape or ()))] if full else None


def _absolute(number: Size) -> Size | None:
    return number if number.at_least(0) else -number if number.at_most(0) else None


def _larger(*numbers: Size) -> Size | None:
    return next((a for a in numbers if all((a - b).at_least(0) for b in numbers)), None)


def _smaller(*numbers: Size) -> Size | None:
    return next((a for a in numbers if all((b - a).at_least(0) for b in numbers)), None)


def _comparison(yes: Callable[[Size], bool], no: Callable[[Size], bool]) -> Callable[[Size, Size], Size | None]:
    """Compare two numbers by their difference, if the result is the same at all sizes."""

    def compare(first: Size, second: Size) -> Size | None:
        rest = first - second
        return size(1) if yes(rest) else size(0) if no(rest) else None

    return compare


def _either_sign(rest: Size) -> bool:
    return rest.at_least(1) or rest.at_most(-1)


def _chosen(condition: Size, first: Size, second: Size) -> Size | None:
    return None if condition.constant is None else first if condition.constant else second


def _power(number: Size, by: Size) -> Size | None:
    """Apply Pow by a small whole number: torch writes 2 * T**2 / T for 2 * T."""
    exponent = by.constant
    small = exponent is not None and exponent.denominator == 1 and 0 <= exponent <= _LARGEST_POWER
    return reduce(operator.mul, [number] * int(exponent or 0), size(1)) if small else None


_CALCULATED: Mapping[str, _Rule] = {
    "Abs": _each(_absolute),
    "Add": _each(operator.add, rounds=True),
    "Cast": _cast,
    "CastLike": _cast,
    "Ceil": _whole,
    "Div": _quotient,
    "Equal": _each(_comparison(lambda d: d == size(0), _either_sign)),
    "Floor": _floor,
    "Greater": _each(_comparison(lambda d: d.at_least(1), lambda d: d.at_most(0))),
    "GreaterOrEqual": _each(_comparison(lambda d: d.at_least(0), lambda d: d.at_most(-1))),
    "Less": _each(_comparison(lambda d: d.at_most(-1), lambda d: d.at_least(0))),
    "LessOrEqual": _each(_comparison(lambda d: d.at_most(0), lambda d: d.at_least(1))),
    "Max": _each(_larger),
    "Min": _each(_smaller),
    "Mod": _remainder,
    "Mul": _each(operator.mul, rounds=True),
    "Neg": _each(operator.neg),
    "Pow": _each(_power, rounds=True),
    "ReduceProd": _product_of_all,
    "Round": _whole,
    "Sub": _each(operator.sub, rounds=True),
    "Sum": _each(lambda *numbers: reduce(operator.add, numbers), rounds=True),
    "Where": _each(_chosen),
}
