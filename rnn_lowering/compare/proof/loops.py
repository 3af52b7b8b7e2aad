"""Scan, Loop and If, whose bodies run step by step.

A proof at a few lengths holds at every length by induction: after each step, each state of a loop is a state of the
specification, the same one of each step. An atom stands for it, so the next step is computed for any state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

from rnn_lowering.compare.proof.axes import Moves
from rnn_lowering.compare.proof.machine import Machine, Operator, Values
from rnn_lowering.compare.proof.polynomials import UnprovenError
from rnn_lowering.compare.proof.sizes import SymbolicSize, counter, integers
from rnn_lowering.compare.proof.symbolic_rows import is_symbolic
from rnn_lowering.types import Array


def scan(
    m: Machine, outer: Values, *inputs: Array | None, body: onnx.GraphProto, num_scan_inputs: int, **of_rows: Any
) -> list[Array]:
    """Run a Scan of opset 9 or later."""
    given = [x for x in inputs if x is not None]
    if len(given) != len(inputs) or len(given) != len(body.input):
        raise UnprovenError("a Scan of opset 8")
    first = len(given) - num_scan_inputs
    rows = [_rows(m, x, axis, 0, back) for x, axis, back in _placed(given[first:], of_rows, "input")]
    if len({len(x) for x in rows}) != 1:
        raise UnprovenError("rows of a Scan do not fit")
    is_open = m.axes.is_open(len(rows[0]))
    steps = map(list, zip(*(_entries(m, x) for x in rows), strict=True))
    finals, stacked = _repeat(m, body, outer, given[:first], steps, is_open)
    for value, rows_of_y in zip(body.output[first:], stacked, strict=True):
        _check_declared(value, rows_of_y.shape[1:])
    return [*finals, *(_rows(m, x, 0, axis, back) for x, axis, back in _placed(stacked, of_rows, "output"))]


def _check_declared(value: onnx.ValueInfoProto, shape: Sequence[int]) -> None:
    """Raise if a row of an output has another shape than is declared: onnxruntime makes room for that one."""
    declared = value.type.tensor_type
    sizes = [dim.dim_value for dim in declared.shape.dim]
    fits = len(sizes) == len(shape) and all(size in (0, own) for size, own in zip(sizes, shape, strict=True))
    if declared.HasField("shape") and not fits:
        raise UnprovenError("a row has another shape than is declared")


def _placed(arrays: Sequence[Array], of_rows: dict[str, Any], of: str) -> Iterator[tuple[Array, int, int]]:
    """Yield arrays with the axis of their rows, and whether these run backwards."""
    axes, backwards = (of_rows.get(f"scan_{of}_{what}") or [0] * len(arrays) for what in ("axes", "directions"))
    return zip(arrays, axes, backwards, strict=True)


def _rows(m: Machine, x: Array, axis: int, to: int, backwards: int) -> Array:
    """Return an array whose rows are along another axis, and in reverse if they are read or written backwards."""
    if backwards:
        m.check_stays(x, x.shape[axis])
    rows = m.arranged(x, lambda of: np.moveaxis(np.flip(of, axis) if backwards else of, axis, to))
    return m.moved(rows, m.axes.from_the_end(m.moves(x)) if backwards else m.moves(x))


def _entries(m: Machine, x: Array) -> Iterator[Array]:
    """Yield the entries along the first axis of an array."""
    moves, marks = m.moves(x), m.marks(x)
    for t, entry in enumerate(m.rows.entries(x)):
        yield m.moved(entry if marks is None else m.marked(entry, marks[t]), moves)


def loop(
    m: Machine, outer: Values, trips: Array | None, going: Array | None, *states: Array, body: onnx.GraphProto
) -> list[Array]:
    """Run a Loop, to its end by a condition only if nothing is open."""
    yes = np.array(True) if going is None else going
    _refuse_marked(m, trips, going)
    if not _is_true(yes):
        raise UnprovenError("a loop has no steps")
    count = _MOST_STEPS if trips is None else trips.flat[0]
    is_open = isinstance(count, SymbolicSize)
    m.axes.made(count)
    most = min(int(count), _MOST_STEPS)
    rows = ([integers([counter(n, "step", count)], ())] for n in range(most))
    finals, stacked = _repeat(m, body, outer, states, rows, is_open, [yes])
    if m.taken == _MOST_STEPS:
        raise UnprovenError("too large")
    return [*finals, *stacked]


def branch(
    m: Machine, outer: Values, condition: Array, *, then_branch: onnx.GraphProto, else_branch: onnx.GraphProto
) -> list[Array]:
    """Run the branch of an If that its condition names."""
    if condition.dtype != np.bool_:
        raise UnprovenError("an If depends on data")
    _refuse_marked(m, condition)
    outputs = m.run(then_branch if condition.flat[0] else else_branch, outer)
    return [m.moved(x, m.moves(x, condition)) for x in outputs]


_MOST_STEPS = 1 << 12

CONTROL: dict[str, Operator] = {"Scan": scan, "Loop": loop, "If": branch}
"""By the name of the operator."""


def _refuse_marked(m: Machine, *arrays: Array | None) -> None:
    if any(m.marks(x) is not None for x in arrays):
        raise UnprovenError("a length decides which steps there are")


def _is_true(condition: Array) -> bool:
    return condition.dtype == np.bool_ and bool(condition.flat[0])


def _repeat(
    m: Machine,
    body: onnx.GraphProto,
    outer: Values,
    states: Sequence[Array],
    steps: Iterable[list[Array]],
    is_open: bool,
    going: Sequence[Array] = (),
) -> tuple[list[Array], list[Array]]:
    """Run a body once for each step; return the last states, and what is stacked.

    Args:
        steps: The rows or the counter of each step.
        is_open: Whether the number of steps is.
        going: The condition of a Loop.
    """
    name = m.rows.fresh()
    ys: list[list[Array]] = []
    invariant = _Invariant(m, states)
    moves: list[Moves] | None = None
    for n, of_step in enumerate(steps):
        step = partial(m.run, body, outer, [*of_step, *going, *states] if going else [*states, *of_step])
        outputs = m.stepped(step, slice(len(going), len(going) + len(states)), name, n + 1)
        conditions, outputs = outputs[: len(going)], outputs[len(going) :]
        states = outputs[: len(states)]
        ys.append(outputs[len(states) :])
        if is_open:
            invariant.check(states, n + 1)
            moves = moves or [m.moves(x) for x in states]  # which are those after each step
            states = [m.known(x, far) for x, far in zip(states, moves, strict=True)]
            ys[-1] = [m.known(y, m.moves(y)) for y in ys[-1]]
        _refuse_marked(m, *conditions)
        if not all(map(_is_true, conditions)):
            if m.axes.fixed is not None or conditions[0].dtype != np.bool_:
                raise UnprovenError("a Loop ends by a condition")
            break
    if not ys:
        raise UnprovenError("a loop has no steps")
    m.taken = None if is_open else len(ys)
    return list(states), [_stack(m, parts) for parts in zip(*ys, strict=True)]


def _stack(m: Machine, parts: Sequence[Array]) -> Array:
    moves, marks = m.moves(*parts), [m.marks(part) for part in parts]
    if any(map(is_symbolic, parts)):
        parts = [m.lifted(part) for part in parts]
    of = [np.zeros(part.shape, np.int64) if of is None else of for part, of in zip(parts, marks, strict=True)]
    return m.moved(m.marked(np.stack(parts), np.stack(of)), moves)


class _Invariant:
    """What each state of a loop is, at every step: the same state of the specification, or what it was before."""

    def __init__(self, m: Machine, states: Sequence[Array]) -> None:
        self.m, self.first = m, states
        self.names: dict[tuple[int, int], Any] = {}

    def check(self, states: Sequence[Array], step: int) -> None:
        """Check the states after a number of steps.

        Raises:
            UnprovenError: One is another.
        """
        for s, (state, first) in enumerate(zip(states, self.first, strict=True)):
            if state.shape != first.shape:
                raise UnprovenError("a state of a loop grows")
            if is_symbolic(state) or is_symbolic(first):
                names = self._names(self.m.lifted(state), self.m.lifted(first), step)
            elif state.dtype != object and (state == first).all():
                continue
            else:
                raise UnprovenError("a state of a loop is no state of the node")
            for n, name in enumerate(names):
                if self.names.setdefault((s, n), name) != name:
                    raise UnprovenError("a state of a loop is another one in each step")

    def _names(self, state: Array, first: Array, step: int) -> Iterator[Any]:
        """Yield which state of the specification each part is, and how many steps later, or where it stays."""
        before = first.reshape(-1)
        for start, end, (x, _) in self.m.rows.runs(state, first):
            label: Any = self.m.algebra.label(x)
            kind, *of_state = label[0] if label else (None,)
            if kind == "state":
                *of_row, at, place = of_state
                yield start, end, of_row, place + label[1], at - step, self.m.algebra.lanes(x) == 1
            elif (state.reshape(-1)[start:end] == before[start:end]).all():
                yield start, end
            else:
                raise UnprovenError("a state of a loop is no state of the node")
