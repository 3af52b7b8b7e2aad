"""Tails: what a function of the distance is at large distances, and what operators make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce

import onnx_ir as ir

from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.operators import operator_of
from rnn_lowering.streaming.attention.position_sums import COMPARED, Numbers


@dataclass(frozen=True)
class Tail:
    """A function of the distance beyond its reach, to one side.

    Attributes:
        slope: It is slope * distance plus a constant; None if that is not known.
        bound: The largest absolute value of that constant.
        value: The constant, if it is the same everywhere and the slope is 0; None if that is not known.
        exact: Whether the constant is one, not only bounded.
    """

    slope: Fraction | None
    bound: float = math.inf
    value: float | None = None
    exact: bool = True

    @property
    def is_constant(self) -> bool:
        return self.slope == 0 and self.exact


CURVED = Tail(None)


def constant_tail(numbers: Numbers) -> Tail:
    return Tail(Fraction(0), max(abs(numbers.low), abs(numbers.high)), numbers.uniform)


def added(first: Tail, second: Tail) -> Tail:
    if first.slope is None or second.slope is None:
        return CURVED
    slope, exact = first.slope + second.slope, first.exact and second.exact
    value = None
    if slope == 0 and first.value is not None and second.value is not None:
        value = first.value + second.value
    return Tail(slope, first.bound + second.bound, value, exact)


def scaled(tail: Tail, by: Fraction, *, value: bool = True) -> Tail:
    """Return a tail times a number; without `value`, with the sign of the distance changed only."""
    if tail.slope is None:
        return CURVED
    if not value:
        return replace(tail, slope=tail.slope * by)
    held = None if tail.value is None else tail.value * float(by)
    return Tail(tail.slope * by, tail.bound * float(abs(by)), held, tail.exact)


def bound_of(node: ir.Node, bounds: Sequence[float]) -> float:
    """Return a bound of the absolute value of what a node computes from numbers with these bounds."""
    if operator_of(node).boolean or node.op_type in ("And", "Or", "Not", "Xor"):
        return 1.0
    if node.op_type in ("Where", "Min", "Max", "Clip", "Abs", "Neg", "Identity"):
        return math.inf if "min" in node.attributes or "max" in node.attributes else max(bounds)
    if node.op_type in ("Add", "Sub", "Sum"):
        return sum(bounds)
    return math.prod(bounds) if node.op_type == "Mul" and all(map(math.isfinite, bounds)) else math.inf


def returns_integers(known: KnownValues, node: ir.Node) -> bool:
    """Return whether a node returns integers."""
    dtype = known.types.get(node.outputs[0])
    return dtype is not None and dtype.is_integer()


def compared(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    difference = added(parts[0], scaled(parts[1], Fraction(-1)))
    slope = difference.slope
    if slope is None or math.isinf(difference.bound):
        return CURVED, 0
    if slope == 0:
        return (Tail(Fraction(0), 1.0), 0) if difference.exact else (CURVED, 0)
    value = float(COMPARED[node.op_type](sign if slope > 0 else -sign))
    return Tail(Fraction(0), 1.0, value), math.ceil(difference.bound / abs(slope)) + 1


def _summed(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    rest = [scaled(part, Fraction(-1)) if node.op_type == "Sub" else part for part in parts[1:]]
    return reduce(added, [parts[0], *rest]), 0


def _multiplied(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    for first, second in (parts, [*reversed(parts)]):
        if second.is_constant and second.value is not None and math.isfinite(second.value):
            return scaled(first, Fraction(second.value)), 0
    return CURVED, 0


def _divided(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    by = parts[1].value if parts[1].is_constant else None
    if not by or math.isinf(by):
        return CURVED, 0
    quotient = scaled(parts[0], 1 / Fraction(by))
    return _whole(known, node, [quotient], sign) if returns_integers(known, node) else (quotient, 0)


def _negated(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    return scaled(parts[0], Fraction(-1)), 0


def _kept(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    """A Cast to a type that holds positions; to integers: rounded; to booleans: whether they are not 0."""
    before = known.types.get(node.inputs[0]) if node.inputs[0] is not None else None
    if known.types.get(node.outputs[0]) != ir.DataType.BOOL:
        rounds = returns_integers(known, node) and (before is None or before.is_floating_point())
        return _whole(known, node, parts, sign) if rounds else (parts[0], 0)
    tail, slope = parts[0], parts[0].slope
    if not slope or math.isinf(tail.bound):
        return CURVED, 0
    return Tail(Fraction(0), 1.0, 1.0), math.ceil(tail.bound / abs(slope)) + 1


def _whole(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    """Rounded to integers, in any direction: the constant moves by at most 1. It stays one if the slope is an
    integer and the sign does not change; Round makes halves even, so it does not."""
    tail, slope = parts[0], parts[0].slope
    if slope is None or math.isinf(tail.bound):
        return CURVED, 0
    exact = tail.exact and slope.denominator == 1 and node.op_type != "Round"
    return Tail(slope, tail.bound + 1, exact=exact), math.ceil(tail.bound / abs(slope)) + 1 if slope else 0


def _absolute(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    tail, slope = parts[0], parts[0].slope or Fraction(0)
    if not slope or math.isinf(tail.bound):
        return CURVED, 0
    return replace(tail, slope=abs(slope) * sign, value=None), math.ceil(tail.bound / abs(slope)) + 1


def _extreme(known: KnownValues, node: ir.Node, parts: Sequence[Tail], sign: int) -> tuple[Tail, int]:
    """Min, Max, Relu and Clip of what grows: at a large distance one of them is the result."""
    if node.op_type == "Relu":
        return _larger(parts[0], Tail(Fraction(0), 0.0, 0.0), sign, True)
    limits = [(part, node.op_type == "Max") for part in parts[1:]]
    if node.op_type == "Clip":
        if "min" in node.attributes or "max" in node.attributes:
            return CURVED, 0
        slots = [slot for slot in (1, 2) if slot < len(node.inputs) and node.inputs[slot] is not None]
        limits = [(part, slot == 1) for part, slot in zip(parts[1:], slots, strict=True)]
    tail, reach = parts[0], 0
    for part, largest in limits:
        tail, more = _larger(tail, part, sign, largest)
        reach = max(reach, more)
    return tail, reach


def _larger(first: Tail, second: Tail, sign: int, largest: bool) -> tuple[Tail, int]:
    """Return the larger or smaller of two at large distances of a sign, and from which distance on it is that."""
    if first.slope is None or second.slope is None:
        return CURVED, 0
    rest, bound = first.slope - second.slope, first.bound + second.bound
    if rest == 0:
        if not first.is_constant or not second.is_constant:
            return CURVED, 0
        one = first.value is not None and second.value is not None
        value = (max if largest else min)(first.value or 0.0, second.value or 0.0) if one else None
        return Tail(Fraction(0), max(first.bound, second.bound), value), 0
    if math.isinf(bound):
        return CURVED, 0
    return (first if (rest * sign > 0) == largest else second), math.ceil(bound / abs(rest)) + 1


TailRule = Callable[[KnownValues, ir.Node, Sequence[Tail], int], tuple[Tail, int]]

TAILS: Mapping[str, TailRule] = {
    **dict.fromkeys(COMPARED, compared),
    "Abs": _absolute,
    "Add": _summed,
    "Cast": _kept,
    "Ceil": _whole,
    "Clip": _extreme,
    "Div": _divided,
    "Floor": _whole,
    "Identity": _kept,
    "Max": _extreme,
    "Min": _extreme,
    "Mul": _multiplied,
    "Neg": _negated,
    "Relu": _extreme,
    "Round": _whole,
    "Sub": _summed,
    "Sum": _summed,
}
"""By operator, what it makes of the tails of its inputs at a sign of the distance, and from which distance on."""
