"""Which sequence an element follows: the one whose length it depends on.

No element follows two, and one of an output only its own. So what holds if each sequence has each length holds for
all lengths together. Numbers that follow a length stay in their rows, and a length chooses no numbers but equal
ones. So a mask tells only whether a row is before, at or behind the end of its sequence. A mark is the number of a
sequence, from 1 on, or 0; an array without marks follows none.

| operators | an element follows |
|---|---|
| element-wise | what its operands follow |
| those that move elements | what it follows already; what Gather takes, also what the index follows |
| products of matrices | what its row and its column follow |
| Shape | none: no size follows a length |
| all others | what any element of their inputs follows |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from rnn_lowering.compare.proof.operators import ELEMENTWISE, MOVES
from rnn_lowering.compare.proof.polynomials import UnprovenError
from rnn_lowering.compare.proof.symbolic_rows import is_symbolic
from rnn_lowering.types import Array

Marks = Sequence[Array | None]

Rule = Callable[[Any, Mapping[str, Any], Sequence[Any], Marks], list[Array]]
"""Returns marks of the outputs, or those of all as one, from the machine, attributes, inputs and their marks."""


def marks_of(
    m: Any,
    op: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[Any],
    marks: Marks,
    outputs: Sequence[Array],
) -> list[Array]:
    """Return the marks of the outputs of an operator.

    Raises:
        UnprovenError: An element follows two sequences, or a shape follows one.
    """
    rule: Rule = _RULES.get(op, _of_all)
    found = rule(m, attributes, inputs, marks)
    return found if len(found) == len(outputs) else found * len(outputs)


def within(own: Array | None, marks: Array | None) -> bool:
    """Whether elements follow their own sequence at most."""
    return marks is None or not (marks != (0 if own is None else own))[marks != 0].any()


def _along(axis: int, of: Array) -> Array:
    most: Array = of.max(axis, keepdims=True, initial=0)
    if ((of != most) & (of != 0)).any():
        raise UnprovenError("lengths of several sequences meet")
    return most


def _both(a: Array, b: Array) -> Array:
    return np.squeeze(_along(0, np.stack(np.broadcast_arrays(a, b))), 0)


def _given(marks: Marks) -> list[Array]:
    return [of for of in marks if of is not None]


def _elementwise(m: Any, attributes: Any, inputs: Any, marks: Marks) -> list[Array]:
    return [reduce(_both, _given(marks))]


def _of_all(m: Any, attributes: Any, inputs: Any, marks: Marks) -> list[Array]:
    return [reduce(_both, (np.array(n) for of in _given(marks) for n in np.unique(of)))]


def _reduced(m: Any, attributes: Any, inputs: Any, marks: Marks) -> list[Array]:
    _refuse(marks[1:])
    return _of_all(m, attributes, inputs, marks)


def _of_shape(m: Any, attributes: Any, inputs: Any, marks: Marks) -> list[Array]:
    _refuse(marks)
    return [np.array(0)]


def _refuse(marks: Marks) -> None:
    if _given(marks):
        raise UnprovenError("a length decides which rows there are")


def _none(m: Any, attributes: Any, inputs: Any, marks: Marks) -> list[Array]:
    return [np.array(0)]


def _product(m: Any, attributes: Mapping[str, Any], inputs: Any, marks: Marks) -> list[Array]:
    sides = zip(marks, ("transA", "transB"), (-1, -2), strict=False)
    parts = [_along(axis, of.T if attributes.get(turned) else of) for of, turned, axis in sides if of is not None]
    return [reduce(_both, [*parts, *_given(marks[2:])])]


def _moving(op: str) -> Rule:
    """Return the rule of an operator that moves elements of its first input, or of all."""
    joins = op == "Concat"

    def rule(m: Any, attributes: Mapping[str, Any], inputs: Sequence[Any], marks: Marks) -> list[Array]:
        count = len(inputs) if joins else 1
        _refuse(marks[count:])
        pairs = zip(inputs[:count], marks, strict=False)
        parts = (np.zeros(x.shape, np.int64) if of is None else of for x, of in pairs)
        moved = MOVES[op](m, attributes, *parts, *inputs[count:])
        return moved if isinstance(moved, list) else [moved]

    return rule


def _gathered(m: Any, attributes: Mapping[str, Any], inputs: Sequence[Array], marks: Marks) -> list[Array]:
    (x, index), (_, of_index) = inputs, marks
    (rows,) = _moving("Gather")(m, attributes, inputs, [marks[0], None])
    if of_index is None:
        return [rows]
    are_numbers = not is_symbolic(x) and any(map(m.axes.is_open, x.shape))
    if are_numbers and x.size and (x != x.flat[0]).any():
        raise UnprovenError("a length chooses numbers")
    behind = x.ndim - 1 - attributes.get("axis", 0) % x.ndim
    return [_both(rows, of_index.reshape(*index.shape, *[1] * behind))]


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **{op: _moving(op) for op in MOVES},
    "Gather": _gathered,
    **dict.fromkeys(("MatMul", "Gemm"), _product),
    "Shape": _none,
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum"), _reduced),
    **dict.fromkeys(("ConstantOfShape", "Range"), _of_shape),
}
