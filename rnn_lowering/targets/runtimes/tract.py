"""tract (`pip install tract`): reverse and other activations of its own operators go wrong; no Loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.facts.constants import constant_of, never_negative
from rnn_lowering.targets.misread import (
    aligns_corners,
    labels_of,
    of_large_numbers,
    opset_of,
    rounds_a_size,
    sums_all_of_one,
)
from rnn_lowering.targets.native import (
    COMMON,
    OTHER_ACTIVATIONS,
    RESET_AFTER,
    RESET_BEFORE,
    Excluded,
    NativeRule,
    Speed,
    features,
)
from rnn_lowering.targets.target import (
    AttentionTraits,
    KnownValue,
    LoopTraits,
    ModelTraits,
    StreamTraits,
    Target,
)

_MOST_ROWS = 4
"""Maximum batch size; above it, a Split behind a Reshape is slower than a Split alone."""


def _rows_of_split(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor] | None:
    """Split x [N, count * size] of few rows into equal parts behind a Reshape to [N, count, size], or to
    [count, 1, size] where N is 1.

    tract computes a product of which there are parts once for each part; behind a Reshape it is one product. With a
    part of rank 3 it multiplies a product in one kernel, and adds to it.
    """
    N, count = x.shape[0], len(sizes)
    if N is None or not 0 < N <= _MOST_ROWS or x.rank != 2 or axis != 1 or len(set(sizes)) > 1:
        return None
    shape, axis = ((count, 1, sizes[0]), 0) if N == 1 else ((N, count, sizes[0]), 1)
    return [op.squeeze(row, [axis]) for row in op.split(op.reshape(x, shape), [1] * count, axis)]


_APART = {"Conv", "Gemm", "MatMul"}
"""Nodes across which it joins nothing."""


def _softmax_of_integers(node: ir.Node) -> str:
    """Return how it computes a Softmax between a DequantizeLinear and a QuantizeLinear, or "".

    It computes what lies between these for each of the 256 integers, once, as if all of it were elementwise. Some
    nodes end that, but not an Add of zeros, so each one counts that is not in _APART.
    """
    if node.op_type not in ("Softmax", "LogSoftmax"):
        return ""
    between = _meets(node, "DequantizeLinear", ir.Node.predecessors) and _meets(
        node, "QuantizeLinear", ir.Node.successors
    )
    return "wrongly between DequantizeLinear and QuantizeLinear" if between else ""


_OF_FLOATS = ("Einsum", "MatMul", "ReduceSumSquare")
"""Operators of which it crashes at integers, or rejects them."""


def _has_others(node: ir.Node) -> bool:
    """Whether an Einsum has axes without a label, of which tract takes none."""
    return "..." in "".join(labels_of(node)[0])


def _misread(node: ir.Node, known: KnownValue) -> str:
    """Return how tract computes a node wrongly, or "". It makes an operator of floats of a square."""
    first = node.inputs[0] if node.inputs else None
    dtype = None if first is None else known(first).dtype
    if node.op_type in ("IsInf", "IsNaN") and dtype == ir.DataType.DOUBLE:
        return "in float32 only"
    if dtype is not None and dtype.is_integer() and (node.op_type in _OF_FLOATS or _is_square(node)):
        return "of floats only"
    floors = node.op_type == "Mod" and not node.attributes.get_int("fmod", 0)
    if floors and dtype is not None and dtype.is_integer() and not never_negative(first, opset_of(node)):
        return "with the sign of the dividend"
    if node.op_type == "Equal" and dtype == ir.DataType.BOOL:
        return "of numbers only"
    if node.op_type == "Pad" and node.attributes.get_string("mode", "constant") == "wrap":
        return "in other modes only"
    if node.op_type == "Resize" and aligns_corners(node) and rounds_a_size(node, known):
        return "with corners of the sizes before they are rounded"
    if node.op_type == "GatherND" and node.attributes.get_int("batch_dims", 0) != 0 and _is_one_place(node):
        return "without its batches"
    if node.op_type == "Slice" and "axes" in node.attributes and _is_open(node, known):
        return "of known sizes only"
    if node.op_type == "GlobalLpPool":
        return "with another power"
    if node.op_type == "Einsum" and (how := "without its ..." * _has_others(node) or sums_all_of_one(node)):
        return how
    if node.op_type == "Softplus" or (node.op_type == "Celu" and node.attributes.get_float("alpha", 1.0) != 1):
        return "as infinity from 89 on" if node.op_type == "Softplus" else "with alpha = 1 only"
    return of_large_numbers(node) or _softmax_of_integers(node)


def _is_one_place(node: ir.Node) -> bool:
    """Whether a GatherND takes one place, by constants."""
    places = constant_of(node.inputs[1], opset_of(node))
    return places is not None and places.size == places.shape[-1]


def _is_open(node: ir.Node, known: KnownValue) -> bool:
    """Whether an axis of a Slice that has its axes as an attribute may be of open size."""
    shape = None if node.inputs[0] is None else known(node.inputs[0]).shape
    axes = node.attributes.get_ints("axes", ())
    return shape is None or not all(isinstance(shape[axis], int) for axis in axes)


_SQUARE = 2


def _is_square(node: ir.Node) -> bool:
    if node.op_type == "Pow":
        exponent = constant_of(node.inputs[1], opset_of(node))
        return exponent is not None and exponent.size == 1 and exponent.numpy().item() == _SQUARE
    return node.op_type == "Mul" and node.inputs[0] is node.inputs[1]


def _meets(start: ir.Node, operator: str, next_to: Callable[[ir.Node], Iterable[ir.Node]]) -> bool:
    """Whether a way from a node to its neighbours and theirs meets an operator."""
    seen, found = {start}, [start]
    while found:
        for node in next_to(found.pop()):
            if node.op_type == operator:
                return True
            if node not in seen and node.op_type not in _APART:
                seen.add(node)
                found.append(node)
    return False


RULE = NativeRule(
    "0.23.9",
    "2026-11-28",
    features(
        "RNN, GRU, LSTM, forward, bidirectional, linear_before_reset, linear_before_reset 0, P, P of zeros,"
        "sequence_lens of T, initial state, constant initial state, no initial_h, initial_c without initial_h,"
        "initial_c of zeros or none, Y_c beside others, outputs without a name, no hidden_size, a shared X,"
        "computed weights, quantized weights, I = 1, T = 1, N above 1, no activations, open T, float, in If,"
        "opset 7 to 21, opset 22, flipped X and Y, transposed X and Y"
    )
    | COMMON,
    (
        Excluded(("flipped X and Y", "open T"), "computes reverse forwards, and loses an open T in a flip"),
        *(Excluded((name,), f"ignores {name}") for name in ("clip", "input_forget")),
        *(Excluded((name,), "ignores activations") for name in OTHER_ACTIVATIONS),
        Excluded(("linear_before_reset", "I = 1"), "fails at run time with I = 1 and linear_before_reset"),
        Excluded(("sequence_lens",), "rejects sequence_lens, or ignores them"),
        Excluded(("open N",), "ends the process if N is open"),
        Excluded(
            ("LSTM", "forward", "Y_c beside others", "no initial_h", "initial_c of zeros or none", "N above 1"),
            "fails at run time with Y_c beside other outputs, N above 1 and no initial state",
        ),
        Excluded(("in Scan",), "computes it wrongly in a Scan"),
    ),
    (
        Speed(("LSTM",), 1, 1, {32: 0.95, 128: 0.8}),
        Speed(("LSTM",), 10, 1, {16: 1.27, 32: 1.24, 64: 1.2, 128: 1.13, 256: 1.05}),
        Speed(("LSTM",), 100, 1, {16: 1.53, 32: 1.45, 64: 1.33, 128: 1.27, 256: 1.07}),
        Speed(("LSTM",), 10, 8, {16: 1.41, 32: 1.13, 64: 1.3, 128: 1.11}),
        Speed(("LSTM",), 100, 8, {16: 1.7, 32: 1.08, 64: 1.51, 128: 0.97, 256: 0.96}),
        Speed(("LSTM",), 50, 1, {8: 0.95, 32: 1.0, 64: 1.01}, nodes=2),
        Speed(("LSTM",), 50, 1, {8: 0.54, 32: 0.88}, nodes=4),
        Speed(("LSTM", "bidirectional"), 50, 1, {8: 0.9, 32: 0.99, 64: 1.08, 128: 1.39}),
        Speed(("LSTM", "bidirectional"), 50, 8, {8: 0.88, 32: 1.3, 128: 1.16}),
        Speed(RESET_AFTER, 1, 1, {32: 1.07, 128: 1.05}),
        Speed(RESET_AFTER, 10, 1, {16: 1.88, 32: 1.88, 64: 1.59, 128: 1.32, 256: 1.32}),
        Speed(RESET_AFTER, 100, 1, {16: 4.33, 32: 4.05, 64: 2.62, 128: 1.71, 256: 1.18}),
        Speed(RESET_AFTER, 10, 8, {16: 1.72, 32: 1.63, 64: 1.41, 128: 1.02}),
        Speed(RESET_AFTER, 100, 8, {16: 1.81, 32: 1.29, 64: 1.49, 128: 0.67, 256: 0.64}),
        Speed(RESET_AFTER, 50, 1, {8: 3.14, 32: 2.79, 64: 2.06}, nodes=2),
        Speed(RESET_AFTER, 50, 1, {8: 1.66, 32: 1.73}, nodes=4),
        Speed((*RESET_AFTER, "bidirectional"), 50, 1, {8: 2.7, 32: 2.48, 64: 1.7, 128: 1.7}),
        Speed((*RESET_AFTER, "bidirectional"), 50, 8, {8: 1.49, 32: 1.93, 128: 0.97}),
        Speed(RESET_BEFORE, 10, 1, {16: 0.97, 32: 0.88, 64: 0.84, 128: 0.86, 256: 0.98}),
        Speed(RESET_BEFORE, 100, 1, {16: 0.95, 32: 0.8, 64: 0.8, 128: 0.75, 256: 0.98}),
        Speed(RESET_BEFORE, 10, 8, {16: 0.97, 32: 0.99, 64: 0.97, 128: 0.97}),
        Speed((*RESET_BEFORE, "bidirectional"), 50, 1, {8: 0.63, 32: 0.5, 64: 0.6}),
        Speed(("RNN",), 10, 1, {16: 1.0, 32: 1.0, 64: 0.99, 128: 1.0, 256: 1.01}),
        Speed(("RNN",), 100, 8, {16: 1.04, 32: 1.03, 64: 0.97, 128: 0.92, 256: 0.79}),
        Speed(("RNN",), 50, 1, {8: 0.68, 32: 0.7, 64: 0.68}, nodes=2),
        Speed(("RNN",), 50, 1, {8: 0.45, 32: 0.49}, nodes=4),
        Speed(("RNN", "bidirectional"), 50, 1, {8: 0.62, 32: 0.69, 64: 0.65, 128: 1.05}),
        Speed(("RNN", "bidirectional"), 50, 8, {8: 0.67, 32: 1.01, 64: 0.94, 128: 1.0}),
        # Each within what several runs gave: 1.3 to 1.65, and 0.9 to 1.25.
        Speed(("LSTM", "open T"), 100, 1, {32: 1.45, 128: 1.05}),
        Speed((*RESET_AFTER, "open T"), 100, 1, {32: 1.45, 128: 1.05}),
    ),
)
"""Measured with 837 random nodes, and 894 with others on X and Y, layers above, transposed or flipped ones."""

TRACT = Target(
    "tract",
    "0.23.9",
    ("scan", "unroll"),
    attention=AttentionTraits(("scan", "unroll", "chunked")),
    streams=StreamTraits(growing_states=True),
    loops=LoopTraits(
        # A Scan in a Scan goes on from the states that it ended with, or the analysis fails. Steps that are
        # unrolled in the body of a Scan kept the analysis busy for more than a minute.
        nested_scans=False,
        runs_no_steps=False,
        strict_scans=True,
    ),
    unsupported=("Softplus",),
    integer_products=True,
    model=ModelTraits(
        adaptations=(
            "only operators of ONNX",
            "wide sizes",
            "bounded choices",
            "parts of sequences",
            "no sequences",
            "channels of signals",
            "repeats as Gather",
            "steps and flips as Gather",
            "strides as Gather",
            "no two vectors",
            "sizes of corners",
            "taken steps",
            "held rows",
            "axes as scalars",
            "Flatten as Reshape",
            "chosen branches",
            "branches of one rank",
            "crops as Slice",
            "pads of all axes",
            "logarithms of Sigmoid",
            "indices of GatherND, ScatterND",
            "numbers of sizes",
            "repeated fills",
            "typed fills",
            "biases of halves",
            "no declared shapes",
        ),
        folds=True,
        misreads=_misread,
    ),
    # It does not see that a Slice with step -1 keeps an unknown length.
    dialect=Dialect(reverse_in_loop=True, gates_apart=True, matrix_product=True, join_up_to=128, stack_up_to=128),
    instead=(("Split", _rows_of_split),),
    native=RULE,
)
