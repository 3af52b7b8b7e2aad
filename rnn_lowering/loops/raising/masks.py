"""Masks that are lengths: they become sequence_lens.

Where a sequence has ended, a step keeps its states and stacks zeros: Where(t < lens, new, old), in any spelling. As
polynomials the new state is m new + (1 - m) old, with m m = m. The operators do the same with sequence_lens, where
the first states are zeros. Loops with other masks stay: those of arbitrary frames, of frames that are read
backwards, and masks whose outputs repeat the last state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.loops.raising.polynomials import EXACT, Element, NotRaised, Polynomial, Truth, Variables
from rnn_lowering.loops.raising.rows import RowWalk, Source
from rnn_lowering.loops.raising.step import StepEvaluator
from rnn_lowering.types import Array

NUMBER = "the number of the step"
"""The number of the step, as what an element belongs to."""

_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")

_KEEPS_COUNTS = ("Add", "Cast", "Gather", "Identity", "Range", "Slice", "Squeeze", "Sub", "Transpose", "Unsqueeze")
"""Operators that give 1 more in each step if their input does."""

_NO_LENGTH = "its mask is not known to be t < lens"


# Rows of a mask


def mask_row(e: StepEvaluator, rows: ir.Value, walk: RowWalk) -> Array | None:
    """Return a row of a mask, which compares the number of the step with others; None if the rows are no mask.

    Args:
        e: Computes nodes outside.
        rows: The rows of all steps, [steps, ...].
        walk: Follows its axis of the steps.
    """
    compared = _comparison(walk, rows)
    node = None if compared is None else compared.value.producer()
    rank = None if compared is None else walk.rank(compared.value)
    if compared is None or node is None or rank is None:
        return None
    from_end = rank - compared.axis
    for counter, other in (node.inputs, node.inputs[::-1]):
        start = None if counter is None else _start(e, walk, counter, from_end)
        lens = None if other is None else _integers(e, other)
        shape = None if lens is None else e.shape(lens)
        if counter is None or other is None or start is None or lens is None or shape is None:
            continue
        if len(shape) >= from_end and shape[-from_end] != 1:
            return None
        t = e.variables.elements(NUMBER, ()).item() + float(start)
        e.bind(counter, np.full([1] * (walk.rank(counter) or 0), t, object))
        e.bind(other, e.variables.elements(lens, shape))
        array = e.find(rows)
        return array[0] if array is not None and array.dtype == object and len(array) == 1 else None
    return None


def _comparison(walk: RowWalk, rows: ir.Value) -> Source | None:
    """Return the comparison that rows come from, and its axis of the steps; None if there is none."""
    source: Source | None = Source(rows)
    while source is not None and not source.backwards and (node := source.value.producer()) is not None:
        if node.op_type in _COMPARISONS:
            return source
        source = _behind(walk, node, source)
    return None


def _behind(walk: RowWalk, node: ir.Node, of: Source) -> Source | None:
    """Return the value that a node keeps the rows of, in another type or shape."""
    data = node.inputs[0] if node.inputs else None
    if node.op_type in ("Cast", "Not"):
        return None if data is None else Source(data, of.axis, of.backwards)
    return walk.behind(node, of)


def _start(e: StepEvaluator, walk: RowWalk, value: ir.Value, from_end: int) -> int | None:
    """Return k of a value that is k + t along an axis, and has no other one; None if it is something else."""
    rank = walk.rank(value)
    if rank is None or from_end > rank:
        return None
    array = walk.numbers(value)
    if array is not None:
        counts = array.dtype.kind in "iu" and array.size == array.shape[-from_end] > 0
        return int(array.flat[0]) if counts and np.all(np.diff(array.ravel()) == 1) else None
    source: Source | None = Source(value, rank - from_end)
    shift = 0
    while source is not None and not source.backwards and e.whole(_integers(e, source.value) or source.value):
        node = source.value.producer()
        if node is None or node.op_type not in _KEEPS_COUNTS or not _is_exact(e, source.value):
            return None
        if node.op_type == "Range":
            first, delta = walk.numbers(node.inputs[0]), walk.numbers(node.inputs[2])
            counts = first is not None and delta is not None and first.dtype.kind in "iu" and int(delta.item()) == 1
            return int(first.item()) + shift if counts and first is not None else None
        if node.op_type in ("Add", "Sub"):
            added = walk.numbers(node.inputs[1])
            if added is None or added.size != 1:
                return None
            shift += int(added.item()) * (1 if node.op_type == "Add" else -1)
        source = _behind(walk, node, source)
    return None


def _integers(e: StepEvaluator, value: ir.Value) -> ir.Value | None:
    """Return the integers that a value is cast from, or itself; None if it may have fractions."""
    while not e.whole(value):
        node = value.producer()
        data = node.inputs[0] if node is not None and node.op_type == "Cast" else None
        if data is None or not _is_exact(e, value):
            return None
        value = data
    return value


def _is_exact(e: StepEvaluator, value: ir.Value) -> bool:
    """Whether a value is of a type that has all numbers of steps."""
    return e.dtype(value) in EXACT


# The step without it


@dataclass(frozen=True)
class LengthMask:
    """Sequence n goes on in step t if t < lens[n] + more.

    Attributes:
        lens: Integers, one for each sequence.
        more: What is added.
    """

    lens: ir.Value
    more: int


@dataclass
class Unmasked:
    """A step where no sequence has ended.

    Attributes:
        next, stacked: The new states and stacked rows.
        masks: By state: for each element, the Boolean variable that chooses it, and its value while the sequence
            runs.
        stacked_masks: The same by stacked row.
    """

    next: list[Array | None]
    stacked: list[Array | None]
    masks: dict[int, Array] = field(default_factory=dict)
    stacked_masks: dict[int, Array] = field(default_factory=dict)


def without_mask(
    states: Sequence[Array | None], new: Sequence[Array | None], stacked: Sequence[Array | None]
) -> Unmasked:
    """Return a step without its mask.

    Args:
        states: The states before the step, as polynomials or numbers.
        new, stacked: What the step returns.

    Raises:
        NotRaised: A truth does something else than a mask.
    """
    step_alone = Unmasked([*new], [*stacked])
    for n, (old, array) in enumerate(zip(states, new, strict=True)):
        if old is not None and _has_truths(array) and array is not None and old.shape == array.shape:
            step_alone.next[n], step_alone.masks[n] = _unmasked(array, old)
    for n, array in enumerate(stacked):
        if array is not None and _has_truths(array):
            step_alone.stacked[n], step_alone.stacked_masks[n] = _unmasked(
                array, np.full(array.shape, Polynomial({}), object)
            )
    return step_alone


def _has_truths(array: Array | None) -> bool:
    return array is not None and array.dtype == object and any(_truths(p) for p in array.ravel())


def _truths(p: Polynomial) -> set[int]:
    return {v for monomial in p.terms for v in monomial if v < 0}


def _unmasked(array: Array, old: Array) -> tuple[Array, Array]:
    new, masks = np.empty(array.shape, object), np.empty(array.shape, object)
    for place, p in np.ndenumerate(array):
        truths = _truths(p)
        if len(truths) != 1:
            raise NotRaised("a condition on data chooses what its step computes")
        (v,) = truths
        going = next((on for on in (1, 0) if p.at(v, 1 - on).equals(old[place])), None)
        if going is None:
            raise NotRaised("a condition on data chooses what its step computes")
        new[place], masks[place] = p.at(v, going), (v, going)
    return new, masks


@dataclass(frozen=True)
class StepNumbers:
    """The numbers of the step among the variables.

    Attributes:
        variables: All.
        new: The new states.
        first: Returns the first number of a state; None if it is not known.
    """

    variables: Variables
    new: Sequence[Array | None]
    first: Callable[[int], int | None]

    def start(self, element: Element) -> int | None:
        """Return k of an element that is k + the number of the step; None if it is something else."""
        of = element.of
        if of == NUMBER:
            return 0
        array = self.new[of] if isinstance(of, int) else None
        if not isinstance(of, int) or array is None or array.dtype != object or array.size != 1:
            return None
        before = (array.item() - 1.0).variable
        return self.first(of) if before is not None and self.variables[before] == element else None


def length_mask_of(numbers: StepNumbers, masks: Sequence[Array]) -> LengthMask:
    """Return the mask that states have in common.

    Args:
        numbers: The numbers of the step.
        masks: By state, as in `Unmasked`, [batch, units].

    Raises:
        NotRaised: The states have different masks, or the mask is no length.
    """
    common: LengthMask | None = None
    for array in masks:
        for (b, _), (truth, going) in np.ndenumerate(array):
            index, mask = _length(numbers, truth, going)
            if index != b or (common is not None and mask != common):
                raise NotRaised("its mask has not one length for each sequence")
            common = mask
    assert common is not None
    return common


def _length(numbers: StepNumbers, truth: int, going: int) -> tuple[int, LengthMask]:
    """Return the sequence whose length a truth compares, and the mask.

    The truth is t - lens + k < 0 or its opposite, lens - t + k < 0; or the same with "at most".
    """
    held = numbers.variables[truth]
    assert isinstance(held, Truth)
    name, terms = held.key if isinstance(held.key, tuple) else ("", ())
    k, t, lens = 0.0, 0.0, list[tuple[Element, float]]()
    for monomial, coefficient in terms if name in ("Less", "LessOrEqual") else ():
        element = numbers.variables[monomial[0]] if len(monomial) == 1 else None
        start = numbers.start(element) if isinstance(element, Element) else None
        if start is not None:
            t, k = t + coefficient, k + coefficient * start
        elif isinstance(element, Element):
            lens.append((element, coefficient))
        elif not monomial:
            k += coefficient
        else:
            raise NotRaised(_NO_LENGTH)
    if len(lens) != 1 or abs(t) != 1 or lens[0][1] != -t or k != round(k):
        raise NotRaised(_NO_LENGTH)
    ((element, _),) = lens
    if not isinstance(element.of, ir.Value) or (t > 0) != bool(going):
        raise NotRaised(_NO_LENGTH)
    equal = name == "LessOrEqual"
    return element.index, LengthMask(element.of, -round(k) + equal if t > 0 else round(k) + (not equal))


# The lengths


def sequence_lens(op: Ops, lens: Tensor, more: int, steps: Tensor, batch: Tensor, sequences: int | None) -> Tensor:
    """Emit the lengths as an int32 [batch], from 0 to the number of steps.

    Args:
        op: Emits it.
        lens: Integers, one for each sequence.
        more: What is added.
        steps, batch: The numbers of steps and sequences, int64 [1].
        sequences: The number of sequences, if known.
    """
    lens = op.cast(lens, ir.DataType.INT64)
    flat = lens if lens.rank == 1 else op.reshape(lens, (None,), [op.constant([-1])])
    if flat.shape[0] is None or flat.shape[0] != sequences:
        flat = op.emit("Expand", [flat, batch], (sequences,))  # one length for all, if there is only one
    if more:
        flat = flat + op.constant([more])
    flat = steps - op.cast(op.less(flat, steps), ir.DataType.INT64) * (steps - flat)
    flat = op.cast(op.less(op.constant([0]), flat), ir.DataType.INT64) * flat
    return op.cast(flat, ir.DataType.INT32)
