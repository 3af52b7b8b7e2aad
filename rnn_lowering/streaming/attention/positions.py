"""Sums of positions: numbers times positions, plus a constant; and the tails of functions of a distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce

import onnx_ir as ir

from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.operators import operator_of

LARGEST_STEP, LARGEST_CONSTANT = 1 << 6, 1 << 20
"""Maximum factors and constants of sums of positions: float32 and int32 hold the sums of long sequences."""


@dataclass(frozen=True)
class Unknown:
    """A value that is not known to depend on the distance alone, and why."""

    reason: str


@dataclass(frozen=True)
class Numbers:
    """A sum of positions: steps[axis] * (position on that axis // cell) for each axis, frames * T and a constant.

    Attributes:
        steps: The factors by axis, none of which is 0.
        frames: The factor of the number of frames.
        low, high: The smallest and the largest constant. They are equal if all elements have the same one.
        cell: By what the positions are divided.
    """

    steps: Mapping[int, Fraction] = field(default_factory=dict)
    frames: Fraction = Fraction(0)
    low: float = 0.0
    high: float = 0.0
    cell: int = 1

    @property
    def is_constant(self) -> bool:
        return not self.steps and not self.frames

    @property
    def uniform(self) -> float | None:
        """The number that it is everywhere; None for others."""
        return self.low if self.is_constant and self.low == self.high else None

    @property
    def least(self) -> float:
        """A lower bound, whatever the position."""
        return self.low if not self.frames and all(step > 0 for step in self.steps.values()) else -math.inf

    @property
    def most(self) -> float:
        """An upper bound, whatever the position."""
        return self.high if not self.frames and all(step < 0 for step in self.steps.values()) else math.inf


def is_exact(numbers: Numbers) -> bool:
    """Whether a sum of positions is not rounded, nor wraps, in any type that holds positions."""
    steps = all(step.denominator == 1 and abs(step) <= LARGEST_STEP for step in numbers.steps.values())
    whole = all(each.is_integer() and abs(each) <= LARGEST_CONSTANT for each in (numbers.low, numbers.high))
    return steps and whole and numbers.frames.denominator == 1 and abs(numbers.frames) <= LARGEST_STEP


def linear_of(node: ir.Node, given: Sequence[Numbers], dtype: ir.DataType | None) -> Numbers | Unknown | None:
    """Return the sum of positions that a node computes, in a type; None if it is none."""
    cells = {each.cell for each in given if each.steps}
    if len(cells) > 1:
        return None
    cell = cells.pop() if cells else 1
    if node.op_type in ("Identity", "Cast"):
        return given[0] if not given[0].is_constant and dtype != ir.DataType.BOOL else None
    if node.op_type == "Neg":
        return _times(given[0], -1.0)
    if node.op_type in ("Add", "Sum", "Sub"):
        parts = [given[0], *(_times(each, -1.0) if node.op_type == "Sub" else each for each in given[1:])]
        return replace(reduce(_plus, parts), cell=cell)
    if node.op_type in ("Mul", "Div"):
        return _product(node, given, dtype is not None and dtype.is_integer())
    return None


def _product(node: ir.Node, given: Sequence[Numbers], integer: bool) -> Numbers | Unknown | None:
    """Return positions times a number, or divided by one."""
    first, second = given
    if node.op_type == "Mul":
        by = second.uniform if second.uniform is not None else first.uniform
        other = first if second.uniform is not None else second
        return _times(other, by) if by is not None and math.isfinite(by) else None
    by = second.uniform
    if first.is_constant or not by or not math.isfinite(by):
        return None
    if not integer:
        return _times(first, 1 / by)
    cells = first.cell == 1 and [*first.steps.values()] == [Fraction(1)] and not first.frames
    fits = first.low == first.high >= 0 and first.low % by == 0
    if not cells or not fits or by < 1:
        return Unknown("divides positions by an amount that is not known")
    return Numbers(first.steps, low=first.low // by, high=first.low // by, cell=int(by))


def _times(numbers: Numbers, by: float) -> Numbers:
    factor = Fraction(by)
    ends = sorted((numbers.low * by, numbers.high * by)) if by else [0.0, 0.0]
    steps = {axis: step * factor for axis, step in numbers.steps.items() if by}
    return Numbers(steps, numbers.frames * factor, ends[0], ends[1], numbers.cell)


def _plus(first: Numbers, second: Numbers) -> Numbers:
    axes = {**first.steps, **second.steps}
    steps = {axis: first.steps.get(axis, Fraction(0)) + second.steps.get(axis, Fraction(0)) for axis in axes}
    kept = {axis: step for axis, step in steps.items() if step}
    return Numbers(kept, first.frames + second.frames, first.low + second.low, first.high + second.high)


def difference_of(given: Sequence[Numbers]) -> Numbers | None:
    """Return the first sum of positions minus the second; None if they count different cells."""
    if len({each.cell for each in given if each.steps}) > 1:
        return None
    cell = next((each.cell for each in given if each.steps), 1)
    return replace(_plus(given[0], _times(given[1], -1.0)), cell=cell)


COMPARED = {
    "Equal": lambda sign: sign == 0,
    "Greater": lambda sign: sign > 0,
    "GreaterOrEqual": lambda sign: sign >= 0,
    "Less": lambda sign: sign < 0,
    "LessOrEqual": lambda sign: sign <= 0,
}
"""By operator, the result by the sign of the first input minus the second."""


def decision_of(op_type: str, difference: Numbers | None) -> bool | None:
    """Return the result of a comparison that is the same at all positions; None if it is not."""
    if difference is None:
        return None
    low, high = difference.least, difference.most
    signs = {sign for sign, may in ((-1, low < 0), (0, low <= 0 <= high), (1, high > 0)) if may}
    results = {COMPARED[op_type](sign) for sign in signs}
    return results.pop() if len(results) == 1 else None


# Tails: what a function of the distance is at large distances, and what operators make of it.


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
