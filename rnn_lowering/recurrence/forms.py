"""A recurrence, the forms that repeat it over time (a Scan, a Loop, or unrolled), and the choice of one.

A form takes a `Recurrence` and returns its final states, each [1, batch, ...], and its outputs, each [seq, 1,
batch, ...]. A form does not know what a step computes; a step does not know how it is repeated. Functions that
change a recurrence return another one: `sequence_lens.with_ended_rows` adds an input, `directions` makes one of
several. Operators: https://onnx.ai/onnx/operators/onnx__Scan.html and onnx__Loop.html.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from rnn_lowering.emit.composites import can_flip, flip, zeros
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.dialect import Dialect, since
from rnn_lowering.emit.open_scopes import Finish, Rule
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.types import Dims

Tensors = list[Tensor]
Step = Callable[[Tensors, Tensors], "tuple[Tensors, Tensors]"]


@dataclass(frozen=True)
class Recurrence:
    """Computes states, step by step over the rows of xs, as `jax.lax.scan` does.

    Attributes:
        init: The states before the first step, each [1, batch, ...].
        xs: The inputs of all steps, each [seq, batch, ...].
        step: Takes the states and a row of each of xs; returns the new states and the outputs of the step. Its
            tensors are [batch, ...] or, where a form keeps the first axis, [1, batch, ...].
        reverse: It runs from the last row to the first; output t is still that of row t.
        keeps_states: After zero steps, return the initial states; otherwise (RNN, GRU, LSTM) zeros.

    An exponential average of X:

        def average(states, rows):
            (h,), (x,) = states, rows
            new = h + (x - h) * op.constant(0.1)
            return [new], [new]

        final, ys = scan(op, Recurrence([op.zero((1, 2, 4))], [X], average))
    """

    init: Tensors
    xs: Tensors
    step: Step
    reverse: bool = False
    keeps_states: bool = False


Repeat = Callable[[Ops, Recurrence], "tuple[Tensors, Tensors]"]
"""Repeats a recurrence: returns the final states, each [1, batch, ...], and outputs, each [seq, 1, batch, ...]."""


StackRows = Callable[[Ops, Tensors, Tensors], "tuple[Tensors, Callable[[Tensors], Tensors]]"]
"""Takes the ys and new states of a step; returns the outputs of the body, and a function that turns the stacked
outputs into the ys of all steps."""


@since(9)
def scan(
    op: Ops, r: Recurrence, stack: StackRows | None = None, swap: Callable[[Ops, Tensor], Tensor] | None = None
) -> tuple[Tensors, Tensors]:
    """Emit a Scan of opset 9 or later; that of opset 8 has a batch axis.

    In reverse the rows are flipped before and after it, which every runtime supports. At an unknown length the
    Scan's direction attributes are used instead with `reverse_in_loop`, and at opset 9, where `can_flip` is false.

    Args:
        op: The emitter.
        r: The recurrence.
        stack: How ys are stacked; by default no body outputs a state again.
        swap: Swaps the axes of steps and batch, for a Scan along axis 1; by default it runs along axis 0.
    """
    T = r.xs[0].shape[0]
    by_directions = r.reverse and _runs_in_reverse(op, r.xs[0])
    flipped = r.reverse and not by_directions
    rows = [flip(op, x) for x in r.xs] if flipped else r.xs
    states = _carried(op, r)
    with op.body():
        inputs = [
            *(op.body_input(f"state{n}", s.dtype, s.shape) for n, s in enumerate(states)),
            *(op.body_input(f"Xt{n}", x.dtype, x.shape[1:]) for n, x in enumerate(r.xs)),
        ]
        new, ys = r.step(inputs[: len(states)], inputs[len(states) :])
        stacked, assemble = (stack or _stackable)(op, ys, new)
        body = op.body_graph(inputs, [*new, *stacked])
    rows = [swap(op, x) for x in rows] if swap else rows
    outputs = op.emit_all(
        "Scan",
        [*states, *rows],
        [*(s.shape for s in states), *((y.shape[0], T, *y.shape[1:]) if swap else (T, *y.shape) for y in stacked)],
        [s.dtype for s in (*states, *stacked)],
        body=body,
        num_scan_inputs=len(rows),
        **_axes_and_directions(len(rows), len(stacked), swap is not None, by_directions),
    )
    final = [op.unsqueeze(s, [0]) for s in outputs[: len(states)]]
    collected = [swap(op, y) if swap else y for y in outputs[len(states) :]]
    all_ys = _with_axis_1(op, assemble(collected), ys)
    return final, [flip(op, y) for y in all_ys] if flipped else all_ys


def _axes_and_directions(inputs: int, outputs: int, by_axis_1: bool, reverse: bool) -> dict[str, list[int]]:
    """Return the attributes of a Scan along axis 1, or in reverse; an empty list would have no type."""
    counts = {"input": inputs, "output": outputs}
    kinds = ["axes"] * by_axis_1 + ["directions"] * reverse
    return {f"scan_{end}_{kind}": [1] * n for kind in kinds for end, n in counts.items() if n}


def loop(op: Ops, r: Recurrence) -> tuple[Tensors, Tensors]:
    """Emit a Loop.

    In reverse the rows are flipped before and after it. Where a Scan would use its direction attributes, the Loop
    reads the rows from the last to the first, and a Gather puts its outputs in order.
    """
    T, length = r.xs[0].shape[0], op.dim(r.xs[0], 0)
    counts_down = r.reverse and _runs_in_reverse(op, r.xs[0])
    flipped = r.reverse and not counts_down
    rows = [flip(op, x) for x in r.xs] if flipped else r.xs
    states = _carried(op, r)
    last = op.squeeze(length - op.constant([1]), [0]) if counts_down else None
    with op.body():
        i, going = op.loop_inputs()
        before = [op.body_input(f"state{n}", s.dtype, s.shape) for n, s in enumerate(states)]
        position = i if last is None else last - i
        new, ys = r.step(before, [op.take(x, position) for x in rows])
        stacked, assemble = _stackable(op, ys, new)
        counts = [position] if counts_down and ys else []
        body = op.body_graph([i, going, *before], [going, *new, *stacked, *counts])
    shapes = [*(s.shape for s in states), *((T, *y.shape) for y in [*stacked, *counts])]
    types = [s.dtype for s in [*states, *stacked, *counts]]
    outputs = op.emit_all("Loop", [op.squeeze(length, [0]), op.true(), *states], shapes, types, body=body)
    op.declare(outputs)
    final = [op.unsqueeze(s, [0]) for s in outputs[: len(states)]]
    all_ys = _with_axis_1(op, assemble(outputs[len(states) : len(states) + len(stacked)]), ys)
    if counts:
        all_ys = [op.take(y, outputs[-1]) for y in all_ys]
    elif flipped:
        all_ys = [flip(op, y) for y in all_ys]
    return (final, all_ys) if T is not None else _if_empty(op, r, final, all_ys)


def _runs_in_reverse(op: Ops, x: Tensor) -> bool:
    """Return whether a reverse loop over x reads its rows backwards, so that they need not be flipped."""
    return not can_flip(op.opset, x.shape[0]) or (op.dialect.reverse_in_loop and x.shape[0] is None)


def _if_empty(op: Ops, r: Recurrence, final: Tensors, ys: Tensors) -> tuple[Tensors, Tensors]:
    """Correct the results for a sequence length of 0: unless the recurrence keeps its states, the final ones are
    then zero, but a Loop's are its initial ones; and the empty outputs of a Loop have no batch size."""
    ran = op.less(op.constant([0]), op.dim(r.xs[0], 0))
    if not r.keeps_states:
        final = [s if i.is_zero else op.zero_unless(ran, s) for s, i in zip(final, r.init, strict=True)]
    if any(None in y.shape[2:] for y in ys):
        # Both at run time: onnxruntime would turn a single unknown size into -1, which fails on an empty tensor.
        seq, batch = op.dim(r.xs[0], 0), op.dim(r.xs[0], 1)
        ys = [op.reshape(y, y.shape, [seq, op.constant([1]), *_sizes(op, y.shape[2:], batch)]) for y in ys]
    return final, ys


def _sizes(op: Ops, shape: Dims, batch: Tensor) -> Tensors:
    """Return a shape in which only the batch size may be open."""
    return [batch if size is None else op.constant([size]) for size in shape]


def unroll(op: Ops, r: Recurrence) -> tuple[Tensors, Tensors]:
    """Emit every step; the length of xs must be known. The tensors of a step are [1, batch, ...], or with
    `matrix_steps` and a known batch size [batch, ...]."""
    T, batch = r.xs[0].shape[:2]
    assert T is not None
    N = batch if op.dialect.matrix_steps and all(len(s.shape) == 3 for s in (*r.init, *r.xs)) else None
    if N:
        rows = [op.split(op.flatten(x), [N] * T, axis=0) for x in r.xs]
        states = [op.squeeze(s, [0]) for s in r.init]
    else:
        rows, states = [op.split(x, [1] * T, axis=0) for x in r.xs], list(r.init)
    stacked: list[Tensors] = [[] for _ in range(T)]
    middle = (T // 2 - 1, T // 2)  # all steps are like these two
    for t in reversed(range(T)) if r.reverse else range(T):
        with op.step(t, described=t in middle) if T > 1 else nullcontext():
            states, stacked[t] = r.step(states, [x[t] for x in rows])
    ys = [op.concat(list(y), axis=0) for y in zip(*stacked, strict=True)]
    if N:
        return [op.unsqueeze(s, [0]) for s in states], [op.reshape(y, (T, 1, N, y.shape[-1])) for y in ys]
    return states, [op.unsqueeze(y, [1]) for y in ys]


def _stackable(op: Ops, ys: Tensors, states: Tensors) -> tuple[Tensors, Callable[[Tensors], Tensors]]:
    """Return the values that a body outputs in place of its ys, and a function that computes ys from them after the
    loop.

    A body must not output a state again as y: onnxruntime computes a body wrongly that lists a value twice, and
    tract one that uses a value which it also stacks. So y goes through an Unsqueeze. Optimizers keep it, whereas
    they would remove an Identity, and the loop would need one behind it anyway. With `stack_outside` the body
    outputs the operands of a last sum or product, which is computed once after the loop.
    """
    if not op.dialect.stack_outside:
        return [op.unsqueeze(y, [0]) for y in ys], lambda stacked: stacked
    stacked: Tensors = []
    makers: list[tuple[int, str]] = []
    for y in ys:
        apart, operator = _stackable_terms(op, y, states)
        makers.append((len(apart), operator))
        stacked += apart

    def assemble(given: Tensors) -> Tensors:
        left = iter(given)
        parts = [([next(left) for _ in range(count)], operator) for count, operator in makers]
        return [op.emit(o, p, p[0].shape) if o else p[0] for p, o in parts]

    return stacked, assemble


def _stackable_terms(op: Ops, y: Tensor, states: Tensors) -> tuple[Tensors, str]:
    """Return values that are not states, and the operator that computes y from them; "" if the one value is y."""
    if all(y.value is not state.value for state in states):
        return [y], ""
    producer = y.value.producer() if isinstance(y.value, ir.Value) else None
    if producer is None or not y.terms or any(term.shape != y.shape for term in y.terms):
        return [op.unsqueeze(y, [0])], ""
    return list(y.terms), producer.op_type


def _with_axis_1(op: Ops, stacked: Tensors, ys: Tensors) -> Tensors:
    """Return the outputs of all steps as [seq, 1, ...], whether each step gave ys or, by an Unsqueeze, [1, ...]."""
    pairs = zip(stacked, ys, strict=True)
    return [op.unsqueeze(all_ys, [1]) if all_ys.rank == y.rank + 1 else all_ys for all_ys, y in pairs]


def _carried(op: Ops, r: Recurrence) -> Tensors:
    """Return the initial states of a Scan or Loop, [batch, ...].

    Symbolic zeros of one shape share one tensor, whose batch size is that of the inputs; with `states_apart` each
    state has a tensor of its own.
    """
    shared: dict[Dims, Tensor] = {}
    states: Tensors = []
    for state in r.init:
        shape = state.shape[1:]
        if not state.is_zero:
            start = op.without_first_axis(state)
            is_copied = op.dialect.states_apart and any(start.value is other.value for other in states)
            states.append(op.emit("Identity", [start], start.shape) if is_copied else start)
            continue
        if shape not in shared or op.dialect.states_apart:
            shared[shape] = zeros(op, _sizes(op, shape, op.dim(r.xs[0], 1)))
        states.append(shared[shape])
    return states


# `Choice`: how the equivalent of a node is emitted, and `Emitted`: what it consists of.


Lower = Callable[[Ops, Sequence[Any], Sequence[Sequence[Constant]]], list[dict[str, Tensor]]]
"""An equivalent in a form; returns the connected outputs of each node by their names in the schema."""


@dataclass(frozen=True)
class Choice:
    """The form of one node.

    Attributes:
        form: "scan", "loop", "unroll" or "chunked".
        reason: Why it was chosen.
        lower: Emits the equivalents of nodes in this form.
        dialect: The dialect of loops.
        instead: By operator, what is emitted in its place.
        finish: Rewrites of finished bodies.
        outputs_apart: Emits the copy that a graph output gets if nodes read it too; None for no copy.
    """

    form: str
    reason: str
    lower: Lower
    dialect: Dialect
    instead: Mapping[str, Rule]
    finish: tuple[Finish, ...]
    outputs_apart: Callable[[Ops, Tensor], Tensor] | None

    def for_any_length(self) -> Choice:
        """Return the form without a choice by the length at run time."""
        return replace(self, dialect=replace(self.dialect, by_length=False))


@dataclass(frozen=True)
class Emitted:
    """What is emitted for a node.

    Attributes:
        operators: The operators, those of bodies included.
        axes: The most axes of a tensor that is computed, and not just given another shape.
    """

    operators: frozenset[str]
    axes: int
