"""onnxruntime (`pip install onnxruntime`) and onnxruntime-web (`npm install onnxruntime-web`): all operators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.draft import WEIGHTS, add_weights
from rnn_lowering.emit.ops import Ops
from rnn_lowering.targets.native import COMMON, Excluded, NativeRule, Speed, features
from rnn_lowering.targets.target import Target


def gemms(op: Ops, outputs: Sequence[ir.Value]) -> None:
    """Replace Add(MatMul(a, b), c) with Gemm(a, b, c) in a body, where the product has rank 2 and no other
    node uses it: onnxruntime runs one kernel for both, with the activation as FusedGemm."""
    if not op.in_body:
        return
    replaced: set[ir.Node] = set()
    for node in op.nodes:
        product = _product(node, outputs, op.matrices)
        if product is None:
            continue
        a, b, c = *product.inputs, node.inputs[1]
        node.op_type = "Gemm"
        add_weights(node, product.metadata_props.get(WEIGHTS, "").split(","))
        node.name = op.unique_name("Gemm")
        node.resize_inputs(3)
        for index, value in enumerate((a, b, c)):
            node.replace_input_with(index, value)
        for index in range(2):
            product.replace_input_with(index, None)
        replaced.add(product)
    op.nodes[:] = [node for node in op.nodes if node not in replaced]


def _product(node: ir.Node, outputs: Collection[ir.Value], matrices: Collection[ir.Value]) -> ir.Node | None:
    """Return the MatMul that is the first term of an Add and can be merged into a Gemm with it."""
    value = node.inputs[0] if node.op_type == "Add" else None
    if value is None or value not in matrices or value in outputs:
        return None
    return value.producer() if len(value.uses()) == 1 else None


_JOINED = Dialect(join_up_to=128, stack_up_to=128)
_BY_LENGTH = replace(_JOINED, by_length=True)

ONNXRUNTIME = Target(
    "onnxruntime",
    "1.32.0",
    ("scan", "loop", "unroll"),
    other_names=("ort",),
    attention=("chunked", "scan", "loop", "unroll"),
    growing_states=True,
    integer_products=True,
    loops_of_chunks=True,
    dialect=_BY_LENGTH,
    loop_dialect=replace(_BY_LENGTH, gemm_per_activation=True, stack_outside=True),
    loop_finish=(gemms,),
)

WEB_RULE = NativeRule(
    "1.30.0",
    "2026-11-23",
    features(
        "RNN, GRU, LSTM, forward, reverse, bidirectional, Sigmoid, Tanh, Relu, Affine, LeakyRelu, ThresholdedRelu,"
        "ScaledTanh, HardSigmoid, Elu, Softsign, activations of each direction, activations in lower case,"
        "no activations, clip, input_forget, P, P of zeros, linear_before_reset, linear_before_reset 0,"
        "sequence_lens, sequence_lens of T, initial state, constant initial state, no initial_h,"
        "initial_c without initial_h, initial_c of zeros or none, Y_c beside others, outputs without a name,"
        "written hidden_size, transposed X and Y, a shared X, a constant X, computed weights, I = 1, T = 1,"
        "N above 1, open T, open N, float, in If, opset 7 to 21, opset 22"
    )
    | COMMON,
    (Excluded(("Softplus",), "computes Softplus as infinite from 89 on"),),
    (
        Speed(("LSTM",), 1, 1, {32: 1.2}),
        Speed(("LSTM",), 10, 1, {32: 3.4}),
        Speed(("LSTM",), 100, 1, {16: 10.3, 64: 3.3, 128: 1.8, 256: 1.34}),
        Speed(("LSTM",), 30, 8, {64: 1.31, 256: 1.1}),
        Speed(("LSTM",), 50, 1, {8: 5.3, 32: 3.3}, nodes=4),
        Speed(("LSTM", "bidirectional"), 50, 1, {32: 4.2}),
        Speed(("GRU",), 1, 1, {32: 1.2}),
        Speed(("GRU",), 10, 1, {32: 3.6}),
        Speed(("GRU",), 100, 1, {16: 10.7, 64: 3.6, 128: 1.9, 256: 1.43}),
        Speed(("GRU",), 30, 8, {64: 1.46, 256: 1.03}),
        Speed(("GRU",), 50, 1, {8: 4.9, 32: 4.1}, nodes=4),
        Speed(("GRU", "bidirectional"), 50, 1, {32: 4.4}),
        Speed(("RNN",), 1, 1, {32: 1.05}),
        Speed(("RNN",), 10, 1, {32: 1.58}),
        Speed(("RNN",), 100, 1, {16: 3.0, 64: 1.15, 128: 0.77, 256: 0.58}),
        Speed(("RNN",), 30, 8, {64: 0.61, 256: 0.84}),
        Speed(("RNN",), 50, 1, {8: 1.69, 32: 1.18}, nodes=4),
        Speed(("RNN", "bidirectional"), 50, 1, {32: 1.47}),
    ),
)
"""Measured with 150 random nodes in it, on WebAssembly."""

WEB = Target(
    "onnxruntime-web",
    "1.30.0",
    ("scan", "loop", "unroll"),
    other_names=("ortweb",),
    attention=("scan", "loop", "unroll", "chunked"),
    integer_products=True,
    dialect=_JOINED,
    native=WEB_RULE,
)
