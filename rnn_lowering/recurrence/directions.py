"""The directions of a node, or of several nodes side by side: one loop for each, or one loop that computes all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.constants import Constant
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.run_time_sizes import can_flip, flip, zeros
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.recurrence.cells import CELLS
from rnn_lowering.recurrence.openvino_lstm import recognized_step
from rnn_lowering.recurrence.recurrence import Recurrence, Repeat, Step, Tensors
from rnn_lowering.recurrence.sequence_lens import Lengths, ragged, up_to_longest, with_ended_rows
from rnn_lowering.recurrence.weights import Operands, interleaved, joined, operands, stacked, with_added
from rnn_lowering.spec.rnn import RecurrentSpec

Finals = list[Tensors]
"""The final states by direction and state, each [1, batch, hidden]."""

Flip = Callable[[Tensor], Tensor]
"""Reverses a tensor in time."""

STATES = {"RNN": ("h",), "GRU": ("h",), "LSTM": ("h", "c")}


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


def run_directions(
    op: Ops, nodes: Sequence[NodeInputs], repeat: Repeat, lengths: Lengths | None
) -> list[tuple[Finals, Tensors]]:
    """Emit the recurrence of a node, or of several that `can_join`.

    Args:
        nodes: The nodes and their inputs.
        repeat: The form that repeats the steps.
        lengths: Rows by sequence_lens; None if every sequence has full length.

    Returns:
        For each node, the final states; and Y by direction, each [seq, 1, batch, hidden], empty if Y is not
        connected.
    """
    specs = [node.spec for node in nodes]
    if lengths is not None:
        outputs = {symbol for spec in specs for symbol in spec.outputs}
        repeat = ragged(repeat, lengths, [f"Y_{s}" in outputs for s in STATES[specs[0].op_type]])
    if can_join(op.dialect, op.opset, specs):
        turn = partial(flip, op) if lengths is None else partial(lengths.reverse, op)
        return _run_joined(op, nodes, repeat, turn)
    return [_run_apart(op, node, repeat, lengths) for node in nodes]


def _run_apart(op: Ops, node: NodeInputs, repeat: Repeat, lengths: Lengths | None) -> tuple[Finals, Tensors]:
    """Emit a loop for each direction of a node."""
    spec, ks = node.spec, operands(op, node.spec)
    X = up_to_longest(op, node.X, lengths) if spec.rounds and lengths is not None else node.X
    finals, stacked = [], []
    for n, (direction, k) in enumerate(zip(spec.directions, ks, strict=True)):
        with op.under(direction if len(ks) > 1 else ""):
            recurrence = _recurrence(op, spec, k, X, [states[n] for states in node.init])
            if spec.rounds and lengths is not None:
                recurrence = with_ended_rows(op, recurrence, lengths, zeros=spec.gives_sequence)
            final, ys = repeat(op, replace(recurrence, reverse=direction == "reverse"))
        finals.append(final)
        stacked += ys
    return finals, stacked


def _recurrence(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor, init: Tensors) -> Recurrence:
    """Return the recurrence of one direction."""
    if op.dialect.recognized_lstm:
        return Recurrence(init, [_by_steps(op, spec, X)], recognized_step(op, spec, k))
    return Recurrence(init, _projected(op, spec, k, X), _step(op, spec, k))


_BOUNDED = frozenset(("Sigmoid", "HardSigmoid", "Tanh", "Softsign"))
"""Activations with which no state overflows: infinity times a zero of a block diagonal R would be NaN."""

_OPEN_BATCH = 6
"""The batch size that is assumed where it is not known."""

_MOST_NUMBERS = 544
"""The most numbers of a joined state: with more rows, what is element-wise costs more than an operator."""

_MOST_TURNED = 384
"""The same where rows of some directions are reversed, which copies them."""


def can_join(dialect: Dialect, opset: int, specs: Sequence[RecurrentSpec]) -> bool:
    """Return whether one loop computes all directions of nodes of the same T, batch and sequence_lens.

    The nodes must be alike, and so narrow that a product costs less than the other operators of a step.
    """
    first = specs[0]
    if sum(len(spec.directions) for spec in specs) < 2 or dialect.recognized_lstm:
        return False
    if not all("R" in spec.constants and "R" not in spec.quantized and not spec.rounds for spec in specs):
        return False
    turns = len({direction for spec in specs for direction in spec.directions}) > 1
    if turns and not _can_turn(dialect, opset, first):
        return False
    activations = {of_direction for spec in specs for of_direction in spec.activations}
    if len({_kind(spec) for spec in specs}) > 1 or len(activations) > 1:
        return False
    if any(activation.name not in _BOUNDED for activation in next(iter(activations))):
        return False
    width = sum(len(spec.directions) * spec.hidden_size for spec in specs)
    rows = _OPEN_BATCH if first.batch_size is None else first.batch_size
    repeats = first.seq_length not in (0, 1)  # a single step shares no loop
    most = _MOST_TURNED if turns else _MOST_NUMBERS
    return repeats and 0 < width <= dialect.join_up_to and 0 < rows * width <= most


def _can_turn(dialect: Dialect, opset: int, spec: RecurrentSpec) -> bool:
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
    k: Operands
    init: Tensors
    reverse: bool


def _run_joined(op: Ops, nodes: Sequence[NodeInputs], repeat: Repeat, flip: Flip) -> list[tuple[Finals, Tensors]]:
    """Emit one loop for all directions of nodes."""
    parts = [
        _Part(node, k, [states[n] for states in node.init], direction == "reverse")
        for node in nodes
        for n, (direction, k) in enumerate(zip(node.spec.directions, operands(op, node.spec), strict=True))
    ]
    backwards = all(part.reverse for part in parts)
    turned = [part.reverse and not backwards for part in parts]
    final, ys = repeat(op, replace(_joined(op, parts, turned, flip), reverse=backwards))
    sizes = [part.k.hidden_size for part in parts]
    by_state = [op.split(state, sizes) for state in final]
    Ys = op.split(ys[0], sizes) if ys else []
    left = iter(range(len(parts)))
    found = []
    for node in nodes:
        places = [next(left) for _ in node.spec.directions]
        wanted = places if "Y" in node.spec.outputs else []
        finals = [[states[n] for states in by_state] for n in places]
        found.append((finals, [flip(Ys[n]) if turned[n] else Ys[n] for n in wanted]))
    return found


def _joined(op: Ops, parts: Sequence[_Part], turned: Sequence[bool], flip: Flip) -> Recurrence:
    """Return directions as one recurrence of states [batch, sum of hidden sizes].

    Example: a bidirectional node of hidden size H has the states [h0, h1] of shape [batch, 2 * H]. The loop runs
    forward; X W of direction 1 is reversed in time before the loop, and its Y after the loop.

    Args:
        parts: The directions.
        turned: For each direction, whether it runs against the loop.
        flip: Reverses a tensor in time.
    """
    spec, sizes = parts[0].node.spec, [part.k.hidden_size for part in parts]
    k = joined(op, [part.k for part in parts])
    if not any(turned) and len({part.node.X.value for part in parts}) == 1:
        xs = _projected(op, spec, k, parts[0].node.X)
    else:
        each = [_projected(op, part.node.spec, part.k, part.node.X) for part in parts]
        flipped = [[flip(x) for x in xw] if turn else xw for xw, turn in zip(each, turned, strict=True)]
        xs = [interleaved(op, of_group, sizes) for of_group in zip(*flipped, strict=True)]
    batch = op.dim(xs[0], 1)
    init = [_side_by_side(op, states, batch) for states in zip(*(part.init for part in parts), strict=True)]
    outputs = {symbol: value for part in parts for symbol, value in part.node.spec.outputs.items()}
    return Recurrence(init, xs, _step(op, replace(spec, outputs=outputs), k))


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
    if first.directions == ("reverse",) and not _can_turn(dialect, opset, first):
        return False
    rows = _OPEN_BATCH if first.batch_size is None else first.batch_size
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
        X = _by_steps(op, self.specs[0], layers[0].X)
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

        xs = op.split(_sum(op, first, k, X), k.groups)
        states = zip(*([op.unsqueeze(s, [0]) for s in of_layer] for of_layer in self.states), strict=True)
        init = [_side_by_side(op, of_state, op.dim(X, 1)) for of_state in states]
        return Recurrence(init, xs, step)


def _with_W(k: Operands, W: Tensor, h: Tensor) -> Operands:
    """Return operands of a GRU that adds h W to its hidden gate last: one kernel with tanh in onnxruntime."""
    return replace(
        k,
        f=lambda x: k.f(k.clip(x)),
        g=lambda x: k.g(k.clip(k.product(h, W) + x)),
        clip=lambda x: x,
    )


def _side_by_side(op: Ops, states: Sequence[Tensor], batch: Tensor) -> Tensor:
    """Return initial states, each [1, batch, hidden], as one tensor: symbolic zeros if all of them are."""
    if any(not state.is_zero for state in states):
        one, sizes = op.constant([1]), [op.constant([state.shape[-1] or 0]) for state in states]
        states = [zeros(op, [one, batch, n]) if s.is_zero else s for s, n in zip(states, sizes, strict=True)]
    return op.concat(states, -1)


def _step(op: Ops, spec: RecurrentSpec, k: Operands) -> Step:
    """Return the cell of the operator as the step of a recurrence."""
    cell, with_Y = CELLS[spec.op_type], "Y" in spec.outputs

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        new = cell(op, k, states, rows)
        return new, new[:1] if with_Y else []

    return step


def _by_steps(op: Ops, spec: RecurrentSpec, x: Tensor) -> Tensor:
    """Return x as [seq, batch, ...]; with layout 1, x is [batch, seq, ...]."""
    return op.transpose(x, [1, 0, 2]) if spec.layout else x


def _projected(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor) -> Tensors:
    """Return X W^T + Wb + Rb of all steps by gate group, each [seq, batch, ...] (see `Operands.Rb` for Rbh)."""
    xw = op.split(_by_steps(op, spec, _sum(op, spec, k, X)), k.groups)
    for part in xw:
        op.name(XW=part)
    return xw


def _sum(op: Ops, spec: RecurrentSpec, k: Operands, X: Tensor) -> Tensor:
    """Return X W^T + Wb; with `matrix_product` and known sizes computed on [seq * batch, ...]."""
    if op.dialect.matrix_product and all(X.shape[:2]):  # not open, and not 0
        return op.reshape(k.product(op.flatten(X), k.W) + k.Wb, (*X.shape[:2], *k.W.shape[1:]))
    if spec.dtype != ir.DataType.FLOAT16:
        return k.product(X, k.W) + k.Wb
    # A float16 Transpose of [1, 0, 2], as exporters write before X, and a MatMul crash onnxruntime's optimizer.
    return op.squeeze(k.product(op.unsqueeze(X, [0]), k.W), [0]) + k.Wb
