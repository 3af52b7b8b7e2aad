"""The conditions on which a Loop goes on, as numbers of steps.

Each compares two numbers that are linear in the number of the step: their difference is a line p + q i. A Loop ends
after the first step whose condition is false. Not, And and Or are followed, Not down to the comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import onnx_ir as ir

from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.errors import NodeRef, UnknownTripsError
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.facts.size import Size
from rnn_lowering.loops.body import behind_identities
from rnn_lowering.loops.linear_counts import Counters, first_of, rate_of
from rnn_lowering.loops.value_facts import number_of

ENDLESS = 1 << 62
"""A trip count this large means "no limit"."""

_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def depends_on_data(node: NodeRef, value: ir.Value | None = None) -> UnknownTripsError:
    """Return the error of a Loop that ends by a condition on data."""
    return UnknownTripsError(
        "the number of its steps depends on data",
        hint="export it with a fixed number of steps",
        node=node,
        value=value,
    )


class StepLimit:
    """A condition on which a Loop goes on; one on another number of steps has another class.

    Attributes:
        count: The number of steps that it gives wherever that is at least 1; None if it is no polynomial.
    """

    count: Size | None = None

    def steps(self, counters: Counters) -> Tensor:
        """Emit the number of steps until it is false, as an int64 [1].

        Raises:
            UnknownTripsError: It depends on data.
        """
        raise depends_on_data(counters.loop.ref)

    def holds(self, length: Size) -> bool:
        """Whether it is true where a size is at least 1."""
        return False


@dataclass(frozen=True)
class _Negative(StepLimit):
    """A line is negative."""

    line: Size

    @property
    def count(self) -> Size | None:  # type: ignore[override]
        return 1 - first_of(self.line) if rate_of(self.line) == 1 else None

    def steps(self, counters: Counters) -> Tensor:
        op, rate = counters.copy.op, rate_of(self.line)
        if rate <= 0:
            raise depends_on_data(counters.loop.ref)
        reach = counters.emit(rate - 1 - first_of(self.line))
        zero = op.constant([0])
        reach = op.where(op.less(reach, zero), zero, reach)
        whole = reach if rate == 1 else op.emit("Div", [reach, op.constant([rate])], (1,))
        return whole + op.constant([1])

    def holds(self, length: Size) -> bool:
        pairs = (self.line, -1), (self.line + length, 0)
        return any(each.constant is not None and each.constant <= most for each, most in pairs)


@dataclass(frozen=True)
class _Nonzero(StepLimit):
    """A line is not 0: one that begins above 0 never is."""

    line: Size

    @property
    def _upwards(self) -> Size:
        return self.line if rate_of(self.line) >= 0 else -self.line

    @property
    def count(self) -> Size | None:  # type: ignore[override]
        return _Negative(self._upwards).count

    def steps(self, counters: Counters) -> Tensor:
        op = counters.copy.op
        if rate_of(self._upwards) != 1:  # a larger one may step over 0
            raise depends_on_data(counters.loop.ref)
        reach = counters.emit(-first_of(self._upwards))
        never = op.less(reach, op.constant([0]))
        return op.where(never, op.constant([ENDLESS]), reach + op.constant([1]))

    def holds(self, length: Size) -> bool:
        return _Negative(self.line).holds(length) or _Negative(-self.line).holds(length)


@dataclass(frozen=True)
class _Zero(StepLimit):
    """A line is 0."""

    line: Size


@dataclass(frozen=True)
class _OneOf(StepLimit):
    """One of several is true, each of which stays false from some step on."""

    alternatives: Sequence[Sequence[StepLimit]]

    def steps(self, counters: Counters) -> Tensor:
        op = counters.copy.op

        def pick(least: bool) -> Callable[[Tensor, Tensor], Tensor]:
            return lambda a, b: op.where(op.less(*((a, b) if least else (b, a))), a, b)

        found = [reduce(pick(True), [each.steps(counters) for each in limits]) for limits in self.alternatives]
        return reduce(pick(False), found)

    def holds(self, length: Size) -> bool:
        return any(all(each.holds(length) for each in limits) for limits in self.alternatives)


def step_limits(
    counters: Counters, going: ir.Value, home: ir.Graph | None, *, wanted: bool = True
) -> list[StepLimit]:
    """Return what is all true as long as a condition is.

    Args:
        counters: The numbers of the Loop.
        going: The condition.
        home: The graph that computes it; None for any.
        wanted: What the condition must be: true, or false.

    Raises:
        UnknownTripsError: It depends on data.
    """
    value = behind_identities(going)
    if _truth(counters, value) is wanted:
        return []
    node = value.producer()
    if node is None or home not in (None, node.graph) or node.domain not in DEFAULT_DOMAIN:
        raise depends_on_data(counters.loop.ref)
    a, b = (*node.inputs[:2], None, None)[:2]
    if node.op_type in ("Cast", "Not") and a is not None:
        return step_limits(counters, a, home, wanted=wanted is (node.op_type == "Cast"))
    if a is None or b is None:
        raise depends_on_data(counters.loop.ref)
    if node.op_type in ("And", "Or"):
        if wanted is (node.op_type == "And"):
            return [limit for each in (a, b) for limit in step_limits(counters, each, home, wanted=wanted)]
        open_ones = [each for each in (a, b) if _truth(counters, behind_identities(each)) is not (not wanted)]
        return _one_of(counters, [step_limits(counters, each, home, wanted=wanted) for each in open_ones])
    for given, other in ((a, b), (b, a)):
        truth = _truth(counters, behind_identities(other)) if node.op_type in ("Equal", "Xor") else None
        if truth is not None:
            return step_limits(counters, given, home, wanted=(truth is wanted) is (node.op_type == "Equal"))
    return [_comparison(counters, node, a, b, wanted=wanted)]


def _truth(counters: Counters, value: ir.Value) -> bool | None:
    """Return a condition that is the same in each step; None if it is not known."""
    if value is counters.loop.cond_in:
        return True
    item = counters.item_of_outside(value)
    kind = counters.copy.facts.kind(item)
    number = number_of(item) if kind is not None and kind.dtype == ir.DataType.BOOL else None
    return None if number is None else bool(number)


def _comparison(counters: Counters, node: ir.Node, a: ir.Value, b: ir.Value, *, wanted: bool) -> StepLimit:
    """Return a comparison of two numbers, or its opposite."""
    first, second = counters.line(a), counters.line(b)
    if node.op_type not in _COMPARISONS or first is None or second is None:
        raise depends_on_data(counters.loop.ref)
    difference = first - second
    if node.op_type == "Equal":
        return _Zero(difference) if wanted else _Nonzero(difference)
    if node.op_type.startswith("Greater") is wanted:
        difference = -difference  # a > b is b < a, and a < b is false where b <= a
    return _Negative(difference - (1 if node.op_type.endswith("OrEqual") is wanted else 0))


def _one_of(counters: Counters, alternatives: Sequence[list[StepLimit]]) -> list[StepLimit]:
    """Return a condition that is true if all limits of one alternative are."""
    if [] in alternatives:
        return []
    if len(alternatives) == 1:
        return alternatives[0]
    singles = [limits[0] for limits in alternatives if len(limits) == 1]
    less = [each.line for each in singles if isinstance(each, _Negative)]
    equal = [each.line for each in singles if isinstance(each, _Zero)]
    if len(less) == len(equal) == 1 and less[0] in (equal[0], -equal[0]):
        return [_Negative(less[0] - 1)]  # a < b or a == b
    followed = all(isinstance(each, (_Negative, _OneOf)) for limits in alternatives for each in limits)
    if not alternatives or not followed:
        raise depends_on_data(counters.loop.ref)
    return [_OneOf(alternatives)]
