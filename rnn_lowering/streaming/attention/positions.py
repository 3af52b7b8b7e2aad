"""Sums of positions, and what operators make of them: everywhere, or at large distances (tails)."""

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

DISTANCE = 0
"""What the tail of a function of the distance counts, in place of an axis."""


class UnknownError(Exception):
    """Why a value is not known to depend on the distance alone."""


@dataclass(frozen=True)
class Numbers:
    """A sum of positions: steps[axis] * (position on that axis // cell) for each axis, frames * T and a constant.

    Attributes:
        steps: The factors by axis, none of which is 0.
        frames: The factor of the number of frames.
        low, high: The smallest and the largest constant. They are equal if all elements have the same one.
        cell: By what the positions are divided.
        exact: Whether the constant of an element is the same at all positions, not only bounded.
    """

    steps: Mapping[int, Fraction] = field(default_factory=dict)
    frames: Fraction = Fraction(0)
    low: float = 0.0
    high: float = 0.0
    cell: int = 1
    exact: bool = True

    @classmethod
    def tail(cls, slope: Fraction, bound: float, *, exact: bool = True) -> Numbers:
        """Return slope * distance plus a constant within a bound."""
        return cls({DISTANCE: slope} if slope else {}, low=-bound, high=bound, exact=exact)

    @property
    def is_constant(self) -> bool:
        return not self.steps and not self.frames and self.exact

    @property
    def uniform(self) -> float | None:
        """The number that it is everywhere; None for others."""
        return self.low if self.is_constant and self.low == self.high else None

    @property
    def bound(self) -> float:
        """The largest absolute value of the constant."""
        return max(abs(self.low), abs(self.high))

    @property
    def slope(self) -> Fraction:
        """The factor of the distance, of a tail."""
        return self.steps.get(DISTANCE, Fraction(0))

    @property
    def least(self) -> float:
        """A lower bound, whatever the position."""
        return self.low if not self.frames and all(step > 0 for step in self.steps.values()) else -math.inf

    @property
    def most(self) -> float:
        """An upper bound, whatever the position."""
        return self.high if not self.frames and all(step < 0 for step in self.steps.values()) else math.inf


CURVED = Numbers(low=-math.inf, high=math.inf, exact=False)
"""What is not known."""


def is_exact(numbers: Numbers) -> bool:
    """Whether a sum of positions is not rounded, nor wraps, in any type that holds positions."""
    steps = all(step.denominator == 1 and abs(step) <= LARGEST_STEP for step in numbers.steps.values())
    whole = all(each.is_integer() and abs(each) <= LARGEST_CONSTANT for each in (numbers.low, numbers.high))
    return steps and whole and numbers.frames.denominator == 1 and abs(numbers.frames) <= LARGEST_STEP


def times(numbers: Numbers, by: Fraction) -> Numbers:
    """Return a sum of positions times a number."""
    if not by:
        return Numbers() if math.isfinite(numbers.bound) else CURVED
    ends = sorted((numbers.low * float(by), numbers.high * float(by)))
    steps = {axis: step * by for axis, step in numbers.steps.items()}
    return replace(numbers, steps=steps, frames=numbers.frames * by, low=ends[0], high=ends[1])


def _plus(first: Numbers, second: Numbers) -> Numbers:
    """Return the sum of two, which is not known if they count different cells."""
    if first.steps and second.steps and first.cell != second.cell:
        return CURVED
    axes = {**first.steps, **second.steps}
    steps = {axis: first.steps.get(axis, Fraction(0)) + second.steps.get(axis, Fraction(0)) for axis in axes}
    kept, cell = {axis: step for axis, step in steps.items() if step}, first.cell if first.steps else second.cell
    frames, exact = first.frames + second.frames, first.exact and second.exact
    return Numbers(kept, frames, first.low + second.low, first.high + second.high, cell, exact)


def difference_of(given: Sequence[Numbers]) -> Numbers:
    """Return the first sum of positions minus the second."""
    return _plus(given[0], times(given[1], Fraction(-1)))


COMPARED = {
    "Equal": lambda sign: sign == 0,
    "Greater": lambda sign: sign > 0,
    "GreaterOrEqual": lambda sign: sign >= 0,
    "Less": lambda sign: sign < 0,
    "LessOrEqual": lambda sign: sign <= 0,
}
"""By operator, the result by the sign of the first input minus the second."""


def decision_of(op_type: str, difference: Numbers) -> bool | None:
    """Return the result of a comparison that is the same at all positions; None if it is not."""
    low, high = difference.least, difference.most
    signs = {sign for sign, may in ((-1, low < 0), (0, low <= 0 <= high), (1, high > 0)) if may}
    results = {COMPARED[op_type](sign) for sign in signs}
    return results.pop() if len(results) == 1 else None


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


# What operators make of sums. At a sign of 0 these are sums at all positions, and so is the result; at other signs
# they are tails: what functions of the distance are at large distances of that sign. A rule also returns the
# distance beyond which the result holds.


_Ruled = tuple[Numbers, int]


def _summed(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    rest = [times(part, Fraction(-1)) if node.op_type == "Sub" else part for part in parts[1:]]
    return reduce(_plus, rest, parts[0]), 0


def _multiplied(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    for first, second in (parts, [*reversed(parts)]):
        if second.uniform is not None and math.isfinite(second.uniform):
            return times(first, Fraction(second.uniform)), 0
    return CURVED, 0


def _divided(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    first, by = parts[0], parts[1].uniform
    if not by or math.isinf(by):
        return CURVED, 0
    if not returns_integers(known, node):
        return times(first, 1 / Fraction(by)), 0
    if sign:
        return _whole(known, node, [times(first, 1 / Fraction(by))], sign)
    cells = first.cell == 1 and [*first.steps.values()] == [Fraction(1)] and not first.frames
    fits = cells and first.low == first.high >= 0 and by >= 1 and first.low % by == 0
    return (replace(first, low=first.low // by, high=first.low // by, cell=int(by)) if fits else CURVED), 0


def _negated(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    return times(parts[0], Fraction(-1)), 0


def _kept(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    """A Cast to a type that holds positions; to integers: rounded; to booleans: whether they are not 0."""
    before = known.types.get(node.inputs[0]) if node.inputs[0] is not None else None
    if known.types.get(node.outputs[0]) != ir.DataType.BOOL:
        rounds = sign and returns_integers(known, node) and (before is None or before.is_floating_point())
        return _whole(known, node, parts, sign) if rounds else (parts[0], 0)
    tail, slope = parts[0], parts[0].slope
    if not sign or not slope or math.isinf(tail.bound):
        return CURVED, 0
    return Numbers(low=1.0, high=1.0), math.ceil(tail.bound / abs(slope)) + 1


def _compared(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    difference = difference_of(parts)
    if math.isinf(difference.bound):
        return CURVED, 0
    slope = difference.slope
    if slope == 0:
        return (Numbers.tail(slope, 1.0), 0) if difference.exact else (CURVED, 0)
    value = float(COMPARED[node.op_type](sign if slope > 0 else -sign))
    return Numbers(low=value, high=value), math.ceil(difference.bound / abs(slope)) + 1


def _whole(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    """Rounded to integers, in any direction: the constant moves by at most 1. It stays one if the slope is an
    integer and the sign does not change; Round makes halves even, so it does not."""
    tail, slope = parts[0], parts[0].slope
    if math.isinf(tail.bound):
        return CURVED, 0
    exact = tail.exact and slope.denominator == 1 and node.op_type != "Round"
    reach = math.ceil(tail.bound / abs(slope)) + 1 if slope else 0
    return Numbers.tail(slope, tail.bound + 1, exact=exact), reach


def _absolute(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    tail, slope = parts[0], parts[0].slope
    if not slope or math.isinf(tail.bound):
        return CURVED, 0
    return times(tail, Fraction(sign if slope > 0 else -sign)), math.ceil(tail.bound / abs(slope)) + 1


def _extreme(known: KnownValues, node: ir.Node, parts: Sequence[Numbers], sign: int) -> _Ruled:
    """Min, Max, Relu and Clip of what grows: at a large distance one of them is the result."""
    if node.op_type == "Relu":
        return _larger(parts[0], Numbers(), sign, True)
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


def _larger(first: Numbers, second: Numbers, sign: int, largest: bool) -> _Ruled:
    """Return the larger or smaller of two at large distances of a sign, and from which distance on it is that."""
    rest, bound = first.slope - second.slope, first.bound + second.bound
    if rest == 0:
        if not first.is_constant or not second.is_constant:
            return CURVED, 0
        choose = max if largest else min
        return Numbers(low=choose(first.low, second.low), high=choose(first.high, second.high)), 0
    if math.isinf(bound):
        return CURVED, 0
    return (first if (rest * sign > 0) == largest else second), math.ceil(bound / abs(rest)) + 1


_Rule = Callable[[KnownValues, ir.Node, Sequence[Numbers], int], _Ruled]

LINEAR: Mapping[str, _Rule] = {
    "Add": _summed,
    "Cast": _kept,
    "Div": _divided,
    "Identity": _kept,
    "Mul": _multiplied,
    "Neg": _negated,
    "Sub": _summed,
    "Sum": _summed,
}
"""By operator, what it makes of sums at all positions, and of tails."""

TAILS: Mapping[str, _Rule] = {
    **LINEAR,
    **dict.fromkeys(COMPARED, _compared),
    "Abs": _absolute,
    "Ceil": _whole,
    "Clip": _extreme,
    "Floor": _whole,
    "Max": _extreme,
    "Min": _extreme,
    "Relu": _extreme,
    "Round": _whole,
}
"""By operator, what it makes of tails."""
