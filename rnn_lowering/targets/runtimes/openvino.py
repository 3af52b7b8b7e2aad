"""OpenVINO (`pip install openvino`): it runs a Scan of an LSTM as its own operator where it recognizes the step.

Its own import of recurrent operators is wrong for layout 1, peepholes, input_forget and two nodes on one X. A
recognized Scan takes 0.97 to 1.02 of the node's time. Chunks of a LinearAttention run 7 times as fast as its steps
in a loop (128 steps, 4 heads of 64x64).

It recognizes one product of X and H together, all gates split equally in the order i, c, f, o, and a number that is
added to f. Source: in OpenVINO, src/common/transformations/src/transformations/
{common_optimizations/lstm_cell_fusion.cpp (the step), op_conversions/convert_ti_to_sequences.cpp (the loop)}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir

from rnn_lowering.emit.composites import equal_parts
from rnn_lowering.emit.constants import literal
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.nodes.rnn import RecurrentSpec
from rnn_lowering.nodes.spec import NodeSpec
from rnn_lowering.recurrence.directions import by_steps
from rnn_lowering.recurrence.equivalents import lower_rnn
from rnn_lowering.recurrence.forms import Lower, Recurrence, Tensors, scan
from rnn_lowering.recurrence.weights import CellOperands
from rnn_lowering.targets.misread import adds_a_window
from rnn_lowering.targets.native import COMMON, RESET_AFTER, RESET_BEFORE, Excluded, NativeRule, Speed, features
from rnn_lowering.targets.target import (
    COMPOSED,
    LOOP_DIALECT_OPSET,
    AttentionTraits,
    KnownValue,
    LoopTraits,
    ModelTraits,
    StreamTraits,
    Target,
)

_ACTIVATIONS = {"Relu", "Sigmoid", "Tanh"}
_SIZES = ("open T", "open N")

_NEXT_TO_NOTHING = 1e-30
"""Added in place of a zero, which OpenVINO would remove with its sum: too small to change any result."""


def _recognized_lstm(spec: NodeSpec, opset: int) -> Lower | None:
    """Return what emits a node such that OpenVINO recognizes it, if it can.

    The sizes must be known: of two such loops over one input of unknown sizes OpenVINO computes the first wrongly,
    as of two LSTM nodes (rnn_sequences_optimization.cpp: a Transpose becomes a Reshape for all its users).
    """
    if opset < LOOP_DIALECT_OPSET or not isinstance(spec, RecurrentSpec):
        return None
    constant = spec.constants.keys() - spec.quantized.keys()
    fits = (
        spec.op_type == "LSTM"
        and spec.dtype == ir.DataType.FLOAT
        and {"W", "R"} <= constant
        and ("B" not in spec.inputs or "B" in constant)
        and "P" not in spec.inputs
        and spec.clip is None
        and not spec.input_forget
        and None not in (spec.seq_length, spec.batch_size)
        and {activation.name for group in spec.activations for activation in group} <= _ACTIVATIONS
    )
    if not fits:
        return None
    return partial(lower_rnn, repeat=partial(scan, stack=_stacked, swap=_swapped), recurrence=_recurrence)


def _recurrence(op: Ops, spec: RecurrentSpec, k: CellOperands, X: Tensor, init: Tensors) -> Recurrence:
    """Return the recurrence of a direction, over the rows of X itself."""
    W, R, b = (_in_order(op, tensor, k.hidden_size) for tensor in (k.W, op.concat(k.R, -1), k.bias))
    WR = op.concat([W, R], 0)  # [input + hidden, 4*hidden]
    if b.is_zero:
        b = op.from_constant(literal(np.full(4 * k.hidden_size, _NEXT_TO_NOTHING), op.dtype, "bias"))

    def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
        (h, c), (x,) = states, rows
        gates = op.concat([x, h], -1) @ WR + b  # [batch, 4*hidden]
        i, g, f, o = equal_parts(op, gates, k.hidden_size, 4)
        it, ct, ft, ot = k.f(i), k.g(g), k.f(f + op.constant(_NEXT_TO_NOTHING)), k.f(o)
        Ct = it * ct + ft * c
        Ht = k.h(Ct) * ot
        op.name(it=it, ot=ot, ft=ft, ct=ct, Ct=Ct, Ht=Ht)
        return [Ht, Ct], [Ht] if "Y" in spec.outputs else []

    return Recurrence(init, [by_steps(op, spec, X)], step)


def _in_order(op: Ops, tensor: Tensor, H: int) -> Tensor:
    """Return [..., i, o, f, c] as [..., i, c, f, o]."""
    i, o, f, c = op.split(tensor, [H] * 4)
    return op.concat([i, c, f, o], -1)


def _stacked(op: Ops, ys: Tensors, _: Tensors) -> tuple[Tensors, Callable[[Tensors], Tensors]]:
    """Stack states by an Unsqueeze and a Squeeze, which OpenVINO removes: it computes an Unsqueeze alone
    wrongly."""
    return [op.squeeze(op.unsqueeze(y, [0]), [0]) for y in ys], lambda stacked: stacked


def _swapped(op: Ops, x: Tensor) -> Tensor:
    """Return x [a, b, n] as [b, a, n] by a Transpose of rank 4: where OpenVINO runs a loop as its own LSTM it makes
    a Reshape of one of rank 3, for all that use it (rnn_sequences_optimization.cpp)."""
    return op.squeeze(op.transpose(op.unsqueeze(x, [1]), [2, 1, 0, 3]), [1])


def _hard_sigmoid(op: Ops, x: Tensor, alpha: float, beta: float) -> Tensor | None:
    """Keep a HardSigmoid, or compose it if alpha or beta is 0: OpenVINO takes the default in place of a 0."""
    if np.float32(alpha) and np.float32(beta):
        return None
    return COMPOSED["HardSigmoid"](op, x, alpha, beta)  # type: ignore[no-any-return]


_DEFAULT_FOR_0 = {"HardSigmoid": ("alpha", "beta"), "Selu": ("alpha", "gamma")}
"""By operator the attributes of which it takes the default in place of a 0."""


def _misread(node: ir.Node, known: KnownValue) -> str:
    """Return how it computes a node wrongly; "" if it does not."""
    if node.op_type in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp") and "axes" in node.attributes:
        return "along all axes"
    if node.op_type == "Pad" and node.attributes.get_string("mode", "constant") == "wrap":
        return "in other modes only"
    if node.op_type == "Resize" and node.attributes.get_int("exclude_outside", 0) != 0:
        return "as if nothing outside were excluded"
    if node.op_type == "GlobalLpPool":
        shape = None if node.inputs[0] is None else known(node.inputs[0]).shape
        return "" if shape is not None and shape.is_static() else "of fixed sizes only"
    if node.op_type == "NegativeLogLikelihoodLoss":
        return "without ignore_index only"
    if node.op_type in ("AveragePool", "MaxPool"):
        return adds_a_window(node, known)
    if node.op_type == "BitShift" and node.inputs[0] is not None:
        return "" if known(node.inputs[0]).dtype == ir.DataType.UINT32 else "of uint32 only"
    zeros = [name for name in _DEFAULT_FOR_0.get(node.op_type, ()) if node.attributes.get_float(name, 1.0) == 0]
    return f"with the default of {' and '.join(zeros)}, not 0" if zeros else ""


RULE = NativeRule(
    "2026.4.1",
    "2026-11-28",
    features(
        "RNN, GRU, LSTM, forward, reverse, bidirectional, Sigmoid, Tanh, Relu, clip, P of zeros,"
        "linear_before_reset, linear_before_reset 0, sequence_lens, sequence_lens of T, initial state,"
        "constant initial state, no initial_h, initial_c without initial_h, initial_c of zeros or none,"
        "Y_c beside others, outputs without a name, written hidden_size, computed weights, quantized weights,"
        "I = 1, T = 1, N above 1, no activations, open T, open N, float, double, float16, in If,"
        "opset 7 to 21, opset 22, transposed X and Y"
    )
    | COMMON,
    (
        Excluded(
            ("a shared X",), "computes two nodes on one X wrongly, or a Transpose of X beside it"
        ),  # rnn_sequences_optimization.cpp
        Excluded(("activations of each direction",), "ignores the activations of the second direction"),
        Excluded(("input_forget",), "ignores input_forget"),
        Excluded(("P",), "ignores P"),
        *(Excluded(("sequence_lens", size), "computes sequence_lens with open sizes wrongly") for size in _SIZES),
        Excluded(("open N", "constant initial state"), "rejects a constant initial state if N is open"),
    ),
    (
        Speed(RESET_AFTER, 10, 1, {16: 1.04, 32: 1.03, 64: 1.12, 128: 0.86, 256: 0.82}),
        Speed(RESET_AFTER, 30, 1, {32: 1.1, 64: 0.96, 128: 0.83}),
        Speed(RESET_AFTER, 64, 1, {16: 1.28, 32: 1.28, 64: 0.99, 128: 0.78, 256: 0.67}),
        Speed(RESET_AFTER, 100, 1, {16: 1.38, 32: 1.44, 64: 1.28, 128: 0.92, 256: 0.76}),
        Speed(RESET_AFTER, 100, 8, {16: 3.28, 32: 1.63, 64: 3.09, 128: 1.39, 256: 1.03}),
        Speed(RESET_BEFORE, 100, 1, {16: 0.53, 32: 0.75, 64: 0.74, 128: 0.61, 256: 0.47}),
        Speed(RESET_BEFORE, 100, 8, {16: 0.44, 32: 0.56, 64: 1.05, 128: 0.93, 256: 0.83}),
        Speed(("LSTM",), 100, 1, {32: 0.92, 128: 0.93}),
        Speed(("LSTM",), 100, 8, {256: 1.02}),
        Speed(("RNN",), 100, 1, {32: 0.9, 128: 0.9}),  # runs gave 0.8 to 1.3
        Speed(RESET_AFTER, 1, 1, {32: 0.92, 128: 0.85}),
        Speed(RESET_AFTER, 50, 1, {8: 1.4, 32: 1.43, 64: 2.1}, nodes=2),
        Speed(RESET_AFTER, 50, 1, {8: 0.9, 32: 1.55}, nodes=4),
        Speed((*RESET_AFTER, "bidirectional"), 50, 1, {8: 0.91, 32: 1.46, 64: 1.56, 128: 0.94}),
        # With an open T, the lowest of several runs.
        Speed(("LSTM", "open T"), 100, 1, {32: 3.5, 128: 1.6}),
        Speed(("LSTM", "open T"), 50, 8, {32: 8.1, 128: 1.55}),
        Speed(("LSTM", "open T", "bidirectional"), 33, 1, {8: 3.5, 32: 3.6, 128: 3.7}),
        Speed((*RESET_AFTER, "open T"), 100, 1, {32: 3.0, 128: 1.5}),
        Speed((*RESET_AFTER, "open T"), 50, 8, {32: 4.7, 128: 2.0}),
        Speed((*RESET_AFTER, "open T", "bidirectional"), 33, 1, {4: 3.3, 16: 3.1, 32: 3.3, 64: 2.3, 128: 1.22}),
        Speed((*RESET_AFTER, "open T", "bidirectional"), 50, 8, {8: 2.7, 32: 1.37, 128: 1.54}),
        Speed((*RESET_BEFORE, "open T"), 100, 1, {32: 0.6, 128: 0.8}),
        Speed((*RESET_BEFORE, "open T"), 50, 8, {32: 1.1, 128: 1.4}),
        Speed((*RESET_BEFORE, "open T", "bidirectional"), 33, 1, {8: 0.24, 32: 0.73, 128: 0.43}),
        Speed(("RNN", "open T"), 100, 1, {32: 3.4, 128: 1.4}),
        Speed(("RNN", "open T"), 50, 8, {32: 3.3, 128: 2.2}),
        Speed(("RNN", "open T", "bidirectional"), 33, 1, {8: 2.8, 32: 2.9, 128: 2.56}),
    ),
)
"""Measured with 1,014 random nodes in it. One more differed by rounding that it amplified."""

OPENVINO = Target(
    "openvino",
    "2026.4.1",
    ("loop", "scan", "unroll"),
    attention=AttentionTraits(("loop", "scan", "unroll", "chunked")),
    loops=LoopTraits(
        exported_forms=("loop", "unroll"),  # a Scan whose rows no step uses has one step
        runs_exported=False,  # it rejects those of Keras and TensorFlow, or takes 30 times as long
        constants_in_scan=True,
        unroll_up_to=100,
        own_scan=_recognized_lstm,
    ),
    integer_products=True,
    streams=StreamTraits(
        growing_states=True,
        # It joins the products of an attention and their Softmax in one kernel, wrong for one query from 16 keys
        # on if their number grows; not with SNIPPETS_MODE=DISABLE, nor with CPU_RUNTIME_CACHE_CAPACITY=0.
        softmax_apart=True,
    ),
    # When a bias of one number per channel follows ReduceSum, it adds channel 0's number to every channel.
    unsupported=("ReduceSum",),
    instead=(("HardSigmoid", _hard_sigmoid),),
    model=ModelTraits(
        folds=True,
        adaptations=(
            "fused nodes",
            *("parts of sequences", "branches of one rank", "rotations by signs", "logarithms of Sigmoid"),
            *("excluding products", "open ends", "whole windows", "rows of indices", "rows of a Softmax"),
            "steps as Gather",
            *("several repeats apart", "columns cut off", "reductions without axes"),
            "vectors apart",
            *("slopes with axes", "no Dropout of inputs"),
        ),
        misreads=_misread,
    ),
    dialect=Dialect(dequantize_inside=True, join_up_to=128, stack_up_to=128),
    native=RULE,
)
