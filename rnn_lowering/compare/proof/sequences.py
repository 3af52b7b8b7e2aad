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

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from rnn_lowering.compare.proof.moves import MOVES
from rnn_lowering.compare.proof.operators import ELEMENTWISE
from rnn_lowering.compare.proof.polynomials import UnprovenError
from rnn_lowering.compare.proof.symbolic_rows import is_symbolic
from rnn_lowering.types import Array

Marks = Sequence[Array | None]


def marks_of(
    m: Any, op: str, attributes: Mapping[str, Any], inputs: Sequence[Any], marks: Marks, outputs: Sequence[Array]
) -> list[Array]:
    """Return the marks of the outputs of an operator, from the machine, its attributes, inputs and their marks.

    Raises:
        UnprovenError: An element follows two sequences, or a shape follows one.
    """
    given = [of for of in marks if of is not None]
    if op == "Gather":
        found = [_gathered(m, attributes, inputs, marks)]
    elif op in MOVES:
        found = _moved(m, op, attributes, inputs, marks)
    elif op in ELEMENTWISE:
        found = [reduce(_both, given)]
    elif op in ("MatMul", "Gemm"):
        sides = zip(marks, ("transA", "transB"), (-1, -2), strict=False)
        parts = [
            _along(axis, of.T if attributes.get(turned) else of) for of, turned, axis in sides if of is not None
        ]
        found = [reduce(_both, [*parts, *(of for of in marks[2:] if of is not None)])]
    else:
        _refuse(marks[_NUMBERS.get(op, len(marks)) :])
        found = [reduce(_both, (np.array(n) for of in given for n in np.unique(of)))]
    return found if len(found) == len(outputs) else found * len(outputs)


_NUMBERS = {"ReduceMax": 1, "ReduceMin": 1, "ReduceSum": 1, "ConstantOfShape": 0, "Range": 0}
"""How many inputs of an operator are numbers; the others say which rows there are."""


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


def _refuse(marks: Marks) -> None:
    if any(of is not None for of in marks):
        raise UnprovenError("a length decides which rows there are")


def _moved(m: Any, op: str, attributes: Mapping[str, Any], inputs: Sequence[Any], marks: Marks) -> list[Array]:
    """Return the marks that an operator moves: those of its first input, or of all."""
    count = len(inputs) if op == "Concat" else 1
    _refuse(marks[count:])
    pairs = zip(inputs[:count], marks, strict=False)
    parts = (np.zeros(x.shape, np.int64) if of is None else of for x, of in pairs)
    moved = MOVES[op](m, *parts, *inputs[count:], **attributes)
    return moved if isinstance(moved, list) else [moved]


def _gathered(m: Any, attributes: Mapping[str, Any], inputs: Sequence[Array], marks: Marks) -> Array:
    (x, index), (_, of_index) = inputs, marks
    (rows,) = _moved(m, "Gather", attributes, inputs, [marks[0], None])
    if of_index is None:
        return rows
    are_numbers = not is_symbolic(x) and any(map(m.axes.is_open, x.shape))
    if are_numbers and x.size and (x != x.flat[0]).any():
        raise UnprovenError("a length chooses numbers")
    behind = x.ndim - 1 - attributes.get("axis", 0) % x.ndim
    return _both(rows, of_index.reshape(*index.shape, *[1] * behind))
