"""A recurrence: initial states, the inputs of all steps, and the step that takes one row of them.

A form repeats it (`repetition`) and does not know what its step computes; a step does not know how it is repeated.
Functions that change a recurrence return another one: `sequence_lens.with_ended_rows` adds an input, `directions`
makes one of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor

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
        keeps_states: Whether the states after no step are those before; otherwise they are zero.

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
