"""How a step is repeated over time: by a Scan, by a Loop, or unrolled.

All folds have one signature, that of `jax.lax.scan`:

    fold(op, step, init, xs, reverse) -> (final, ys)

* init, final: the states before and after, each [1, batch, hidden];
* xs: the inputs of all steps, each [seq, batch, ...]; a step gets one row of each;
* ys: the outputs of all steps, each [seq, 1, batch, hidden]; a step returns one row of each;
* reverse: run from the last row to the first; row t of ys is still the output of row t of xs;
* step(states, rows) -> (states, rows): its tensors have rank 2 in a Scan or Loop and rank 3 or 2 unrolled.

Operators: https://onnx.ai/onnx/operators/onnx__Scan.html and onnx__Loop.html.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import onnx_ir as ir

from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.emit.versions import since

Tensors = list[Tensor]
Step = Callable[[Tensors, Tensors], "tuple[Tensors, Tensors]"]
Fold = Callable[[Ops, Step, Sequence[Tensor], Sequence[Tensor], bool], "tuple[Tensors, Tensors]"]


@since(9)
def scan(
    op: Ops, step: Step, init: Sequence[Tensor], xs: Sequence[Tensor], reverse: bool
) -> tuple[Tensors, Tensors]:
    """Emit a Scan, not that of opset 8, which has a batch axis. In reverse the rows are flipped before and after,
    which every runtime supports; where `can_flip` is false (opset 9 and unknown length), and of unknown length with
    `reverse_in_loop`, the Scan's direction attributes are used instead."""
    by_directions = reverse and _runs_in_reverse(op, xs[0])
    flipped = reverse and not by_directions
    rows = [op.flip(x) for x in xs] if flipped else list(xs)
    states = _carried(op, init, xs[0])
    with op.body():
        inputs = [
            *(op.body_input(f"state{n}", s.dtype, s.shape) for n, s in enumerate(states)),
            *(op.body_input(f"Xt{n}", x.dtype, x.shape[1:]) for n, x in enumerate(xs)),
        ]
        new, ys = step(inputs[: len(states)], inputs[len(states) :])
        ys, assemble = _stackable(op, ys, new)
        body = op.body_graph(inputs, [*new, *ys])
    attributes: dict[str, object] = {"body": body, "num_scan_inputs": len(xs)}
    by_axis_1 = op.dialect.recognized_lstm
    if by_axis_1:
        rows = [_seq_and_batch_swapped(op, x) for x in rows]
        attributes |= {"scan_input_axes": [1] * len(xs), "scan_output_axes": [1] * len(ys)}
    if by_directions:
        attributes |= {"scan_input_directions": [1] * len(xs), "scan_output_directions": [1] * len(ys)}
    attributes = {name: value for name, value in attributes.items() if value != []}  # an empty list has no type
    T = xs[0].shape[0]
    ys_shapes = [(y.shape[0], T, *y.shape[1:]) if by_axis_1 else (T, *y.shape) for y in ys]
    types = [*(s.dtype for s in states), *(y.dtype for y in ys)]
    outputs = op.emit("Scan", [*states, *rows], [*(s.shape for s in states), *ys_shapes], types, **attributes)
    final = [op.unsqueeze(s, [0]) for s in outputs[: len(states)]]
    collected = [_seq_and_batch_swapped(op, y) if by_axis_1 else y for y in outputs[len(states) :]]
    stacked = [_rank_4(op, y) for y in assemble(collected)]
    return final, [op.flip(y) for y in stacked] if flipped else stacked


def loop(
    op: Ops, step: Step, init: Sequence[Tensor], xs: Sequence[Tensor], reverse: bool
) -> tuple[Tensors, Tensors]:
    """Emit a Loop. In reverse the rows are flipped before and after; where `can_flip` is false, and of unknown
    length with `reverse_in_loop`, the Loop reads the rows from the last to the first and its outputs are put in
    order by a Gather."""
    length = op.dim(xs[0], 0)
    counts_down = reverse and _runs_in_reverse(op, xs[0])
    flipped = reverse and not counts_down
    rows = [op.flip(x) for x in xs] if flipped else list(xs)
    states = _carried(op, init, xs[0])
    last = op.squeeze(length - op.constant([1]), [0]) if counts_down else None
    with op.body():
        i, going = op.loop_inputs()
        carried = [op.body_input(f"state{n}", s.dtype, s.shape) for n, s in enumerate(states)]
        position = i if last is None else last - i
        new, ys = step(carried, [op.take(x, position) for x in rows])
        ys, assemble = _stackable(op, ys, new)
        counts = [position] if counts_down and ys else []
        body = op.body_graph([i, going, *carried], [going, *new, *ys, *counts])
    shapes = [*(s.shape for s in states), *((xs[0].shape[0], *y.shape) for y in [*ys, *counts])]
    types = [s.dtype for s in [*states, *ys, *counts]]
    outputs = op.emit("Loop", [op.squeeze(length, [0]), op.true(), *states], shapes, types, body=body)
    op.declare(outputs)
    final = [op.unsqueeze(s, [0]) for s in outputs[: len(states)]]
    stacked = [_rank_4(op, y) for y in assemble(outputs[len(states) : len(states) + len(ys)])]
    if counts:
        stacked = [op.take(y, outputs[-1]) for y in stacked]
    elif flipped:
        stacked = [op.flip(y) for y in stacked]
    return (final, stacked) if xs[0].shape[0] is not None else _if_empty(op, final, stacked, init, xs[0])


def _runs_in_reverse(op: Ops, x: Tensor) -> bool:
    """Return whether a reverse loop over x reads its rows backwards, so that they need not be flipped."""
    return not op.can_flip(x) or (op.dialect.reverse_in_loop and x.shape[0] is None)


def _if_empty(
    op: Ops, final: Tensors, ys: Tensors, init: Sequence[Tensor], like: Tensor
) -> tuple[Tensors, Tensors]:
    """Correct the results for a sequence length of 0: the recurrent operators' final states are then zero, but a
    Loop's are its initial ones; and the empty output of a Loop has no batch size."""
    ran = op.less(op.constant([0]), op.dim(like, 0))
    final = [s if i.is_zero else op.zero_unless(ran, s) for s, i in zip(final, init, strict=True)]
    if ys and ys[0].shape[2] is None:
        hidden = ys[0].shape[3]
        assert hidden is not None
        # Both at run time: onnxruntime would turn a single unknown size into -1, which fails on an empty tensor.
        sizes = [op.dim(like, 0), op.constant([1]), op.dim(like, 1), op.constant([hidden])]
        ys = [op.reshape(y, y.shape, sizes) for y in ys]
    return final, ys


def unroll(
    op: Ops, step: Step, init: Sequence[Tensor], xs: Sequence[Tensor], reverse: bool
) -> tuple[Tensors, Tensors]:
    """Emit every step; the length of xs must be known. The tensors of a step are [1, batch, ...], or with
    `matrix_steps` and a known batch size [batch, ...]."""
    T, batch = xs[0].shape[:2]
    assert T is not None
    N = batch if op.dialect.matrix_steps else None
    if N:
        rows = [op.split(op.flatten(x), [N] * T, axis=0) for x in xs]
        states = [op.squeeze(s, [0]) for s in init]
    else:
        rows, states = [op.split(x, [1] * T, axis=0) for x in xs], list(init)
    stacked: list[Tensors] = [[] for _ in range(T)]
    middle = (T // 2 - 1, T // 2)  # all steps are like these two
    for t in reversed(range(T)) if reverse else range(T):
        with op.step(t, described=t in middle) if T > 1 else nullcontext():
            states, stacked[t] = step(states, [x[t] for x in rows])
    ys = [op.concat(list(y), axis=0) for y in zip(*stacked, strict=True)]
    if N:
        return [op.unsqueeze(s, [0]) for s in states], [op.reshape(y, (T, 1, N, y.shape[-1])) for y in ys]
    return states, [_rank_4(op, y) for y in ys]


def _stackable(op: Ops, ys: Tensors, states: Tensors) -> tuple[Tensors, Callable[[Tensors], Tensors]]:
    """Return the values that a body outputs in place of its ys, and a function that computes ys from them after the
    loop.

    A state cannot be output again as y: onnxruntime computes a body that lists a value twice wrongly, and tract one
    that uses a value which it also stacks. So y is output through an Unsqueeze, which optimisers keep (they would
    remove an Identity) and which is needed after the loop otherwise. With `stack_outside` the operands of a sum or
    product are output, which is then computed once after the loop. OpenVINO removes an Unsqueeze and a Squeeze, and
    computes an Unsqueeze alone wrongly where it runs the loop as its own LSTM.
    """
    if op.dialect.recognized_lstm:
        return [op.squeeze(op.unsqueeze(y, [0]), [0]) for y in ys], lambda stacked: stacked
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
        return [op.emit(o, p, [p[0].shape])[0] if o else p[0] for p, o in parts]

    return stacked, assemble


def _stackable_terms(op: Ops, y: Tensor, states: Tensors) -> tuple[Tensors, str]:
    """Return values that are not states, and the operator that computes y from them; "" if the one value is y."""
    if all(y.value is not state.value for state in states):
        return [y], ""
    producer = y.value.producer() if isinstance(y.value, ir.Value) else None
    if producer is None or not y.terms or any(term.shape != y.shape for term in y.terms):
        return [op.unsqueeze(y, [0])], ""
    return list(y.terms), producer.op_type


def _seq_and_batch_swapped(op: Ops, x: Tensor) -> Tensor:
    """Return x [a, b, n] as [b, a, n] by a Transpose of rank 4: where OpenVINO runs a loop as its own LSTM it makes
    a Reshape of one of rank 3, for all that use it (rnn_sequences_optimization.cpp)."""
    return op.squeeze(op.transpose(op.unsqueeze(x, [1]), [2, 1, 0, 3]), [1])


def _rank_4(op: Ops, y: Tensor) -> Tensor:
    """Return [seq, batch, hidden] as [seq, 1, batch, hidden]."""
    return y if len(y.shape) == 4 else op.unsqueeze(y, [1])


def _carried(op: Ops, states: Sequence[Tensor], like: Tensor) -> Tensors:
    """Return the initial states of a Scan or Loop, [batch, hidden].

    All symbolic zeros share one tensor, whose batch size is that of axis 1 of `like`; with `zeros_apart` each
    state has its own.
    """
    shared: Tensor | None = None
    carried = []
    for state in states:
        if not state.is_zero:
            carried.append(op.squeeze(state, [0]))
            continue
        hidden = state.shape[-1]
        assert hidden is not None
        if shared is None or op.dialect.zeros_apart:
            shared = op.zeros([op.dim(like, 1), op.constant([hidden])])
        carried.append(shared)
    return carried
