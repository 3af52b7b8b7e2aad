"""Sums of positions: numbers times positions, plus a constant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce

import onnx_ir as ir

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
