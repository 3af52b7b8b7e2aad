"""The loops of a node's directions, or of several nodes side by side: one loop for each, or one for all.

Directions and nodes share a loop if they are narrow and alike (`can_join`), layers if they `can_stack`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.composites import can_flip, flip, zeros
from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.recurrence.cells import STEPS
from rnn_lowering.recurrence.forms import Recurrence, Repeat, Step, Tensors
from rnn_lowering.recurrence.sequence_lens import Lengths, up_to_longest, with_ended_rows
from rnn_lowering.recurrence.weights import (
    CellOperands,
    interleaved_gates,
    layered_operands,
    operands,
    side_by_side_operands,
    with_added_constants,
)

Finals = list[Tensors]
"""The final states by direction and state, each [1, batch, hidden]."""

OfDirection = Callable[[Ops, RecurrentSpec, CellOperands, Tensor, Tensors], Recurrence]
"""Returns the recurrence of one direction, given its operands, X of the node and the initial states."""

Turn = Callable[[Tensor], Tensor]
"""Reverses a tensor in time."""


@dataclass(frozen=True)
class NodeInputs:
    """The inputs of a node.

    Attributes:
        spec: The specification of the node.
        X: The input X, [seq, batch, input] or with layout 1 [batch, seq, input].
        init: The initial states by state and direction, each [1, batch, hidden].
        added: Of a layer above another, constants of size 1 or [hidden] to add to Y of that.
    """

    spec: RecurrentSpec
    X: Tensor
    init: list[Tensors]
    added: Sequence[Constant] = ()


def run_apart(
    op: Ops, nodes: Sequence[NodeInputs], repeat: Repeat, lengths: Lengths | None, recurrence: OfDirection
) -> list[tuple[Finals, Tensors]]:
    """Emit a loop for each direction of each node.

    Args:
        op: The emitter.
        nodes: The nodes and their inputs.
        repeat: The form that repeats the steps.
        lengths: Rows by sequence_lens; None if every sequence has full length.
        recurrence: Returns the recurrence of a direction.

    Returns:
        For each node, the final states; and Y by direction, each [seq, 1, batch, hidden], empty if Y is not
        connected.
    """
    results = []
    for node in nodes:
        spec, ks = node.spec, operands(op, node.spec)
        ended = lengths if spec.rounds else None
        X = node.X if ended is None else up_to_longest(op, node.X, ended)
        finals, stacked = [], []
        for n, (direction, k) in enumerate(zip(spec.directions, ks, strict=True)):
            with op.under(direction if len(ks) > 1 else ""):
                r = recurrence(op, spec, k, X, [states[n] for states in node.init])
                r = r if ended is None else with_ended_rows(op, r, ended, zeros=spec.gives_sequence)
                final, ys = repeat(op, replace(r, reverse=direction == "reverse"))
            finals.append(final)
            stacked += ys
        results.append((finals, stacked))
    return results


def of_cell(op: Ops, spec: RecurrentSpec, k: CellOperands, X: Tensor, init: Tensors) -> Recurrence:
    """Return the recurrence of a cell: X W of all steps is computed before the loop."""
    return Recurrence(init, input_products(op, spec, k, X), _step(op, spec, k))


_BOUNDED = frozenset(("Sigmoid", "HardSigmoid", "Tanh", "Softsign"))
"""Activations with which no state overflows: infinity times a zero of a block diagonal R would be NaN."""

OPEN_BATCH = 6
"""The batch size that is assumed if it is unknown."""

_MOST_NUMBERS = 544
"""Maximum of batch * width; above it, element-wise work on a joined state costs more than the saved operators."""

_MOST_TURNED = 384
"""The same maximum where rows of some directions are reversed, which copies them."""


def can_join(dialect: Dialect, opset: int, specs: Sequence[RecurrentSpec]) -> bool:
    """Return whether one loop computes all directions of nodes of the same T, batch and sequence_lens.

    The nodes must be alike, and so narrow that a product costs less than the other operators of a step.
    """
    first = specs[0]
    if sum(len(spec.directions) for spec in specs) < 2:
        return False
    if not all("R" in spec.constants and "R" not in spec.quantized and not spec.rounds for spec in specs):
        return False
    turns = len({direction for spec in specs for direction in spec.directions}) > 1
    if turns and not can_turn(dialect, opset, first):
        return False
    activations = {of_direction for spec in specs for of_direction in spec.activations}
    if len({_kind(spec) for spec in specs}) > 1 or len(activations) > 1:
        return False
    if any(activation.name not in _BOUNDED for activation in next(iter(activations))):
        return False
    width = sum(len(spec.directions) * spec.hidden_size for spec in specs)
    rows = OPEN_BATCH if first.batch_size is None else first.batch_size
    repeats = first.seq_length not in (0, 1)  # a single step shares no loop
    most = _MOST_TURNED if turns else _MOST_NUMBERS
    return repeats and 0 < width <= dialect.join_up_to and 0 < rows * width <= most


def can_turn(dialect: Dialect, opset: int, spec: RecurrentSpec) -> bool:
    """Return whether rows can be reversed before and after a loop."""
    if dialect.reverse_in_loop and spec.seq_length is None:
        return False
    return "sequence_lens" in spec.inputs or can_flip(opset, spec.seq_length)


def _kind(spec: RecurrentSpec) -> tuple[object, ...]:
    """Return the properties that joined nodes share, besides activations."""
    flags = spec.layout, spec.clip, spec.input_forget, spec.linear_before_reset, "P" in spec.inputs
    return spec.op_type, spec.dtype, spec.seq_length, spec.batch_size, *flags


@dataclass(frozen=True)
class _Part:
    """One direction of one node in a joined recurrence."""

    node: NodeInputs
    k: CellOperands
    init: Tensors
    reverse: bool


def run_joined(
    op: Ops, nodes: Sequence[NodeInputs], repeat: Repeat, lengths: Lengths | None
) -> list[tuple[Finals, Tensors]]:
    """Emit one loop for all directions of nodes that `can_join`; return what `run_apart` does."""
    turn = partial(flip, op) if lengths is None else partial(lengths.reverse, op)
    parts = [
        _Part(node, k, [states[n] for states in node.init], direction == "reverse")
        for node in nodes
        for n, (direction, k) in enumerate(zip(node.spec.directions, operands(op, node.spec), strict=True))
    ]
    backwards = all(part.reverse for part in parts)
    turned = [part.reverse and not backwards for part in parts]
    final, ys = repeat(op, replace(_joined(op, parts, turned, turn), reverse=backwards))
    sizes = [part.k.hidden_size for part in parts]
    by_state = [op.split(state, sizes) for state in final]
    Ys = op.split(ys[0], sizes) if ys else []
    left = iter(range(len(parts)))
    results = []
    for node in nodes:
        places = [next(left) for _ in node.spec.directions]
        wanted = places if "Y" in node.spec.outputs else []
        finals = [[states[n] for states in by_state] for n in places]
        results.append((finals, [turn(Ys[n]) if turned[n] else Ys[n] for n in wanted]))
    return results


def _joined(op: Ops, parts: Sequence[_Part], turned: Sequence[bool], turn: Turn) -> Recurrence:
    """Return directions as one recurrence of states [batch, sum of hidden sizes].

    Example: a bidirectional node of hidden size H has the states [h0, h1] of shape [batch, 2 * H]. The loop runs
    forward; X W of direction 1 is reversed in time before the loop, and its Y after the loop.

    Args:
        parts: The directions.
        turned: For each direction, whether it runs against the loop.
        turn: Reverses a tensor in time.
    """
    spec, sizes = parts[0].node.spec, [part.k.hidden_size for part in parts]
    k = side_by_side_operands(op, [part.k for part in parts])
    if not any(turned) and len({part.node.X.value for part in parts}) == 1:
        xs = input_products(op, spec, k, parts[0].node.X)
    else:
        each = [input_products(op, part.node.spec, part.k, part.node.X) for part in parts]
        flipped = [[turn(x) for x in xw] if against else xw for xw, against in zip(each, turned, strict=True)]
        xs = [interleaved_gates(op, of_group, sizes) for of_group in zip(*flipped, strict=True)]
    batch = op.dim(xs[0], 1)
    init = each_side_by_side(op, [part.init for part in parts], batch)
    outputs = {symbol: value for part in parts for symbol, value in part.node.spec.outputs.items()}
    return Recurrence(init, xs, _step(op, replace(spec, outputs=outputs), k))


def each_side_by_side(op: Ops, states: Sequence[Tensors], batch: Tensor) -> Tensors:
    """Return each state of several recurrences as one tensor."""
    return [_side_by_side(op, of_state, batch) for of_state in zip(*states, strict=True)]


def _side_by_side(op: Ops, states: Sequence[Tensor], batch: Tensor) -> Tensor:
    """Return initial states, [batch, hidden] or [1, batch, hidden], as one tensor: symbolic zeros if all are."""
    if any(not state.is_zero for state in states):
        ones = [op.constant([1])] * (states[0].rank - 2)
        sizes = [[*ones, batch, op.constant([state.shape[-1] or 0])] for state in states]
        states = [zeros(op, size) if s.is_zero else s for s, size in zip(states, sizes, strict=True)]
    return op.concat(states, -1)


def _step(op: Ops, spec: RecurrentSpec, k: CellOperands) -> Step:
    """Return the cell of the operator as the step of a recurrence."""
    cell, with_Y = STEPS[spec.op_type], "Y" in spec.outputs

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        new = cell(op, k, states, rows)
        return new, new[:1] if with_Y else []

    return step


def by_steps(op: Ops, spec: RecurrentSpec, x: Tensor) -> Tensor:
    """Return x as [seq, batch, ...]; with layout 1, x is [batch, seq, ...]."""
    return op.transpose(x, [1, 0, 2]) if spec.layout else x


def input_products(op: Ops, spec: RecurrentSpec, k: CellOperands, X: Tensor) -> Tensors:
    """Return X W^T + Wb + Rb of all steps by gate group, each [seq, batch, ...] (see `CellOperands.Rb` for Rbh)."""
    # onnxruntime's optimizer moves a float16 Transpose on to the products of the steps, and crashes there.
    if spec.dtype == ir.DataType.FLOAT16:
        product = input_product(op, spec, k, by_steps(op, spec, X))
    else:
        product = by_steps(op, spec, input_product(op, spec, k, X))
    xw = op.split(product, k.groups)
    for part in xw:
        op.name(XW=part)
    return xw


def input_product(op: Ops, spec: RecurrentSpec, k: CellOperands, X: Tensor) -> Tensor:
    """Return X W^T + Wb; with `matrix_product` and known sizes computed on [seq * batch, ...]."""
    if op.dialect.matrix_product and all(X.shape[:2]):  # not open, and not 0
        return op.reshape(k.product(op.flatten(X), k.W) + k.bias, (*X.shape[:2], *k.W.shape[1:]))
    if spec.dtype != ir.DataType.FLOAT16:
        return k.product(X, k.W) + k.bias
    # A float16 Transpose of [1, 0, 2], as exporters write before X, and a MatMul crash onnxruntime's optimizer.
    return op.squeeze(k.product(op.unsqueeze(X, [0]), k.W), [0]) + k.bias


# One loop for layers: each is one step behind the layer below, so a step of the loop computes one step of each.
# `can_stack` says which layers share a loop, `run_stack` how.


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
