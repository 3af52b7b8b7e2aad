"""One loop for layers: each is one step behind the layer below, so a step of the loop computes one step of each.

`can_stack` says which layers share a loop, `run_stack` how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rnn_lowering.emit.composites import flip, zeros
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.recurrence.cells import STEPS
from rnn_lowering.recurrence.directions import (
    OPEN_BATCH,
    Finals,
    NodeInputs,
    by_steps,
    can_join,
    can_turn,
    each_side_by_side,
    input_product,
)
from rnn_lowering.recurrence.forms import Recurrence, Repeat, Tensors
from rnn_lowering.recurrence.weights import CellOperands, layered_operands, operands, with_added_constants

_MOST_PRODUCTS = 1 << 15
"""Maximum of batch * width^2; above it, multiplying by the joined R costs more than the saved operators."""

_WIDEST_OPEN = 64
"""Maximum width of layers of an open length; above it, a joined loop is slower for a sequence of one step."""


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
    if rows * width**2 > _MOST_PRODUCTS or (T is None and width > _WIDEST_OPEN):
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
    zeros. Then lower layers have no outputs, since the loop goes past their last step.

    Example: with 2 layers and 5 steps, step 0 of layer 0 comes before the loop. The loop computes steps 1 to 4 of
    layer 0 and steps 0 to 3 of layer 1. Step 4 of layer 1 comes after the loop.

    Returns:
        For each layer, the result of `run_apart`.
    """
    return _Stack(op, layers).run(repeat)


class _Stack:
    """Layers in one loop."""

    def __init__(self, op: Ops, layers: Sequence[NodeInputs]) -> None:
        self.op, self.specs = op, [layer.spec for layer in layers]
        self.ks = [with_added_constants(op, operands(op, layer.spec)[0], layer.added) for layer in layers]
        self.sizes = [k.hidden_size for k in self.ks]
        self.last = len(self.ks) - 1
        self.reverse = self.specs[0].directions == ("reverse",)
        X = by_steps(op, self.specs[0], layers[0].X)
        self.X = flip(op, X) if self.reverse else X
        self.states = [[op.squeeze(of_state[0], [0]) for of_state in layer.init] for layer in layers]
        self.Ys: list[Tensors] = [[] for _ in layers]

    def run(self, repeat: Repeat) -> list[tuple[Finals, Tensors]]:
        """Emit the steps before the loop, the loop and the steps after it."""
        head, body = self._rows()
        joint: list[Tensors] = []
        for n, row in enumerate(head):
            joint = [self._step(slice(n + 1), [*joint, self.states[n]], row)]
        self._loop(repeat, [*joint, self.states[-1]], body)
        for n in range(self.last if self.X.shape[0] is not None else 0):
            self._step(slice(n + 1, None), self.states[n + 1 :], self.states[n][0])
        return [self._result(layer) for layer in range(self.last + 1)]

    def _rows(self) -> tuple[Tensors, Tensor]:
        """Return the rows of X before the loop, each [batch, input], and those of the loop."""
        op, X, T = self.op, self.X, self.X.shape[0]
        if T is not None:
            *head, body = op.split(X, [1] * self.last + [T - self.last], axis=0)
            return [op.squeeze(row, [0]) for row in head], body
        sizes = [op.constant([self.last]), op.dim(X, 1), op.constant([X.shape[2] or 0])]
        padded = op.concat([X, zeros(op, sizes)], 0)
        first = [op.take(padded, op.constant(n)) for n in range(self.last)]
        return first, op.slice(padded, 0, self.last, None)

    def _loop(self, repeat: Repeat, states: list[Tensors], X: Tensor) -> None:
        """Emit the loop: the steps that all layers compute."""
        op, (k, cell) = self.op, self._joint(slice(None))

        def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            new = cell(states, rows)
            return new, new[:1]

        xs = op.split(input_product(op, self.specs[0], k, X), k.groups)
        init = [op.unsqueeze(state, [0]) for state in each_side_by_side(op, states, op.dim(X, 1))]
        final, (Y,) = repeat(op, Recurrence(init, xs, step))
        self._keep(slice(None), [op.without_first_axis(state) for state in final])
        for Ys, part in zip(self.Ys, op.split(Y, self.sizes), strict=True):
            Ys.append(part)

    def _step(self, layers: slice, states: list[Tensors], x: Tensor) -> Tensors:
        """Compute a step of some layers.

        Args:
            layers: The layers.
            states: Their previous states, of some of them side by side.
            x: The input of the first, [batch, input].

        Returns:
            Their states side by side.
        """
        op, (k, cell) = self.op, self._joint(layers)
        before = each_side_by_side(op, states, op.dim(x, 0))
        new = cell(before, op.split(k.product(x, k.W) + k.bias, k.groups))
        self._keep(layers, new)
        for Ys, after in zip(self.Ys[layers], self.states[layers], strict=True):
            Ys.append(op.unsqueeze(after[0], [0, 1]))
        return new

    def _joint(self, layers: slice) -> tuple[CellOperands, Callable[[Tensors, Tensors], Tensors]]:
        """Return the operands of some layers as one, and their cell: it takes states and a row."""
        op, ks, cell = self.op, self.ks[layers], self.specs[0].cell
        k, between = layered_operands(op, ks, hidden_apart=cell.resets) if len(ks) > 1 else (ks[0], None)

        def step(states: Tensors, row: Tensors) -> Tensors:
            return STEPS[cell.operator](op, k if between is None else _with_W(k, between, states[0]), states, row)

        return k, step

    def _keep(self, layers: slice, joint: Tensors) -> None:
        """Keep the states of some layers, which are side by side."""
        parts = [self.op.split(state, self.sizes[layers]) for state in joint]
        self.states[layers] = [list(of_layer) for of_layer in zip(*parts, strict=True)]

    def _result(self, layer: int) -> tuple[Finals, Tensors]:
        """Return the final states of a layer and Y; a lower layer of an open length has no outputs."""
        op = self.op
        finals = [[op.unsqueeze(state, [0]) for state in self.states[layer]]]
        if "Y" not in self.specs[layer].outputs:
            return finals, []
        Y = op.concat(self.Ys[layer], 0)
        return finals, [flip(op, Y) if self.reverse else Y]


def _with_W(k: CellOperands, W: Tensor, h: Tensor) -> CellOperands:
    """Return operands of a GRU that adds h W to its hidden gate last: one kernel with tanh in onnxruntime."""
    return replace(
        k,
        f=lambda x: k.f(k.clip(x)),
        g=lambda x: k.g(k.clip(k.product(h, W) + x)),
        clip=lambda x: x,
    )
