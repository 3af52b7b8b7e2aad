"""Layers, one above the other, in one loop: each is one step behind the layer below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.run_time_sizes import flip, zeros
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.block_weights import stacked, with_added
from rnn_lowering.recurrence.cells import CELLS
from rnn_lowering.recurrence.directions import (
    OPEN_BATCH,
    Finals,
    NodeInputs,
    by_steps,
    can_join,
    can_turn,
    input_product,
    side_by_side,
)
from rnn_lowering.recurrence.recurrence import Recurrence, Repeat, Tensors
from rnn_lowering.recurrence.weights import Operands, operands
from rnn_lowering.spec.rnn import RecurrentSpec

_MOST_PRODUCTS = 1 << 15
"""The most products of a batch with one gate of R of layers: with more, they cost more than other operators."""


def can_stack(dialect: Dialect, opset: int, specs: Sequence[RecurrentSpec]) -> bool:
    """Return whether one loop computes layers, each one step behind the layer below: X is Y of the layer below."""
    first = specs[0]
    T, width = first.seq_length, sum(spec.hidden_size for spec in specs)
    if (T is not None and len(specs) >= T) or width > dialect.stack_up_to or len(first.directions) != 1:
        return False
    if any("W" not in spec.constants or "sequence_lens" in spec.inputs for spec in specs[1:]):
        return False
    if first.directions == ("reverse",) and not can_turn(dialect, opset, first):
        return False
    rows = OPEN_BATCH if first.batch_size is None else first.batch_size
    if rows * width**2 > _MOST_PRODUCTS:
        return False
    same = all(spec.directions == first.directions for spec in specs)
    return (
        same and "sequence_lens" not in first.inputs and can_join(replace(dialect, join_up_to=width), opset, specs)
    )


def run_stack(op: Ops, layers: Sequence[NodeInputs], repeat: Repeat) -> list[tuple[Finals, Tensors]]:
    """Emit the recurrence of layers that `can_stack`; all of them follow from X of `layers[0]`.

    With n layers, the loop computes step t - l of layer l at its step t, from t = n - 1 on. The steps of lower
    layers that come before are computed before the loop. Where the length is known, the last steps of upper layers
    are computed after it. Otherwise the loop computes them too, since it must not be empty: X gets n - 1 rows of
    zeros, and what lower layers compute from these is cut off.

    Example: with 2 layers and 5 steps, step 0 of layer 0 comes before the loop. The loop computes steps 1 to 4 of
    layer 0 and steps 0 to 3 of layer 1. Step 4 of layer 1 comes after the loop.

    Returns:
        For each layer, the result of `run_directions`.
    """
    return _Stack(op, layers).run(repeat)


class _Stack:
    """Layers in one loop."""

    def __init__(self, op: Ops, layers: Sequence[NodeInputs]) -> None:
        self.op, self.specs = op, [layer.spec for layer in layers]
        self.ks = [with_added(op, operands(op, layer.spec)[0], layer.added) for layer in layers]
        self.sizes = [k.hidden_size for k in self.ks]
        self.last = len(self.ks) - 1
        self.reverse = self.specs[0].directions == ("reverse",)
        X = by_steps(op, self.specs[0], layers[0].X)
        self.X = flip(op, X) if self.reverse else X
        self.states = [[op.squeeze(of_state[0], [0]) for of_state in layer.init] for layer in layers]
        cut = self.specs[:-1] if X.shape[0] is None else []  # their states after the loop are not the final ones
        count = 2 if any("Y_c" in spec.outputs for spec in cut) else 1
        self.stacked: list[list[Tensors]] = [[[] for _ in range(count)] for _ in layers]

    def run(self, repeat: Repeat) -> list[tuple[Finals, Tensors]]:
        """Emit the steps before the loop, the loop and the steps after it."""
        head, body = self._rows()
        rows = [self._projected(0, self.op.squeeze(row, [0])) for row in head]
        for s, row in enumerate(rows):
            self._step(range(s + 1), row)
        self._loop(repeat, body)
        if self.X.shape[0] is None:
            return [self._cut(layer) for layer in range(self.last + 1)]
        for s in range(self.last):
            self._step(range(s + 1, self.last + 1), [])
        return [self._result(layer) for layer in range(self.last + 1)]

    def _rows(self) -> tuple[Tensors, Tensor]:
        """Return the rows of X before the loop, one by one, and those of the loop."""
        op, X, T = self.op, self.X, self.X.shape[0]
        if T is not None:
            *head, body = op.split(X, [1] * self.last + [T - self.last], axis=0)
            return head, body
        sizes = [op.constant([self.last]), op.dim(X, 1), op.constant([X.shape[2] or 0])]
        padded = op.concat([X, zeros(op, sizes)], 0)
        return [op.slice(padded, 0, n, n + 1) for n in range(self.last)], op.slice(padded, 0, self.last, None)

    def _loop(self, repeat: Repeat, X: Tensor) -> None:
        """Emit the loop: the steps that all layers compute."""
        op = self.op
        final, ys = repeat(op, self._recurrence(X))
        by_state = [op.split(op.squeeze(state, [0]), self.sizes) for state in final]
        self.states = [[of_state[n] for of_state in by_state] for n in range(self.last + 1)]
        for n, all_steps in enumerate(ys):
            for of_layer, part in zip(self.stacked, op.split(all_steps, self.sizes), strict=True):
                of_layer[n].append(part)

    def _result(self, layer: int) -> tuple[Finals, Tensors]:
        finals = [[self.op.unsqueeze(state, [0]) for state in self.states[layer]]]
        return finals, self._Y(layer, self.op.concat(self.stacked[layer][0], 0))

    def _Y(self, layer: int, Y: Tensor) -> Tensors:
        return [flip(self.op, Y) if self.reverse else Y] if "Y" in self.specs[layer].outputs else []

    def _cut(self, layer: int) -> tuple[Finals, Tensors]:
        """Return the result of a layer without its last steps, of which there are as many as layers above."""
        op, above = self.op, self.last - layer
        if not above:
            return self._result(layer)
        sizes = [op.constant([1]), op.constant([1]), op.dim(self.X, 1), op.constant([self.sizes[layer]])]
        whole = [op.concat([zeros(op, sizes), *of_state], 0) for of_state in self.stacked[layer]]
        finals = [op.squeeze(op.slice(x, 0, -1 - above, -above), [0]) for x in whole]
        return [finals], self._Y(layer, op.slice(whole[0], 0, 1, -above))

    def _projected(self, layer: int, x: Tensor) -> Tensors:
        k = self.ks[layer]
        return self.op.split(k.product(x, k.W) + k.Wb, k.groups)

    def _step(self, layers: range, row: Tensors) -> None:
        """Compute a step of some layers from their previous states; `row` is the row of layer 0."""
        op, before = self.op, [states[0] for states in self.states]
        for n in layers:
            x = self._projected(n, before[n - 1]) if n else row
            self.states[n] = CELLS[self.specs[n].op_type](op, self.ks[n], self.states[n], x)
            for all_steps, state in zip(self.stacked[n], self.states[n], strict=False):
                all_steps.append(op.unsqueeze(state, [0, 1]))

    def _recurrence(self, X: Tensor) -> Recurrence:
        """Return the steps that all layers compute."""
        op, first = self.op, self.specs[0]
        k, between = stacked(op, self.ks, hidden_apart=first.op_type == "GRU")
        cell, count = CELLS[first.op_type], len(self.stacked[0])

        def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            new = cell(op, k if between is None else _with_W(k, between, states[0]), states, rows)
            return new, new[:count]

        xs = op.split(input_product(op, first, k, X), k.groups)
        states = zip(*([op.unsqueeze(s, [0]) for s in of_layer] for of_layer in self.states), strict=True)
        init = [side_by_side(op, of_state, op.dim(X, 1)) for of_state in states]
        return Recurrence(init, xs, step)


def _with_W(k: Operands, W: Tensor, h: Tensor) -> Operands:
    """Return operands of a GRU that adds h W to its hidden gate last: one kernel with tanh in onnxruntime."""
    return replace(
        k,
        f=lambda x: k.f(k.clip(x)),
        g=lambda x: k.g(k.clip(k.product(h, W) + x)),
        clip=lambda x: x,
    )
