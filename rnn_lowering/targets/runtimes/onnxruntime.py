"""onnxruntime and its builds: for browsers, for WebGPU, and for the HTP of a phone (QNN).

onnxruntime (`pip install onnxruntime`) and onnxruntime-web (`npm install onnxruntime-web`) have all operators.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import onnx_ir as ir

from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.draft import WEIGHTS, add_weights
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.native import COMMON, Excluded, NativeRule, Speed, features
from rnn_lowering.targets.target import (
    STATIC,
    AttentionTraits,
    KnownValue,
    LoopTraits,
    ModelTraits,
    StreamTraits,
    Target,
)


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
    attention=AttentionTraits(("chunked", "scan", "loop", "unroll"), loops_of_chunks=True),
    streams=StreamTraits(growing_states=True),
    integer_products=True,
    dialect=_BY_LENGTH,
    loops=LoopTraits(dialect=replace(_BY_LENGTH, gemm_per_activation=True, stack_outside=True), finish=(gemms,)),
)

_WEB_RULE = NativeRule(
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
    attention=AttentionTraits(("scan", "loop", "unroll", "chunked")),
    integer_products=True,
    dialect=_JOINED,
    native=_WEB_RULE,
)


# onnxruntime-web on WebGPU (`npm install onnxruntime-web`): no node runs on the CPU, so graphs can be captured.


_MOST_PARTS = 7
"""Outputs of a Split: a shader has 8 storage buffers on every device, and one is the input."""


def _split_in_groups(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor] | None:
    """Split x into groups, and these again, where there are more parts than a shader can write."""
    if len(sizes) <= _MOST_PARTS:
        return None
    count = -(-len(sizes) // _MOST_PARTS)  # parts in a group
    groups = [sizes[start : start + count] for start in range(0, len(sizes), count)]
    parts = op.split(x, [sum(group) for group in groups], axis)
    return [found for part, group in zip(parts, groups, strict=True) for found in op.split(part, group, axis)]


_WEBGPU_RULE = NativeRule(
    "1.30.0",
    "2026-11-23",
    features(
        "GRU, LSTM, forward, reverse, bidirectional, Sigmoid, Tanh, Relu, activations of each direction,"
        "activations in lower case, no activations, clip, input_forget, P, P of zeros, linear_before_reset,"
        "linear_before_reset 0, sequence_lens, sequence_lens of T, initial state, constant initial state,"
        "no initial_h, initial_c without initial_h, initial_c of zeros or none, Y_c beside others,"
        "outputs without a name, written hidden_size, transposed X and Y, a shared X, a constant X,"
        "computed weights, I = 1, T = 1, N above 1, open T, open N, float, in If, opset 7 to 21"
    )
    | COMMON,
    (
        Excluded(("RNN",), "has no RNN"),
        Excluded(("opset 22",), "has GRU and LSTM up to opset 21"),
        Excluded(("P", "clip"), "clips what P is multiplied with"),
    ),
    simulated=True,
)

WEBGPU = Target(
    "onnxruntime-webgpu",
    "onnxruntime-web 1.30.0",
    ("unroll",),
    other_names=("webgpu", "ortwebgpu"),
    newest_opset=21,
    oldest_opset=11,
    unsupported=("Softsign",),
    lacks_types=(ir.DataType.DOUBLE,),  # nor does the language of its shaders
    sizes=STATIC,
    model=ModelTraits(adaptations=("wide convolutions", "inputs with elements")),
    integer_products=False,
    dialect=Dialect(index_type=ir.DataType.INT32),  # int64 has no arithmetic on WebGPU
    instead=(("Split", _split_in_groups),),
    native=_WEBGPU_RULE,
)


# onnxruntime's QNN execution provider (`pip install onnxruntime-qnn`): the HTP of a phone, in float16. Measured
# in the simulator of the HTP, with no node on the CPU.


_FLAT = 88.0
"""Beyond it, and its negative, exp(x) is infinite or next to 0 in float32, and far earlier in float16."""


def _bounded_exp(op: Ops, x: Tensor) -> Tensor:
    """Clip before Exp: the HTP's is 131008 at -300."""
    return op.emit("Exp", [op.clip(x, _FLAT)], x.shape)


_MOST_AXES_OF_HALVES = 4


def _misread_by_qnn(node: ir.Node, known: KnownValue) -> str:
    """Return how it computes a MatMul or Pad wrongly without an error, or ""."""
    if node.op_type == "MatMul" and _is_wide_product_of_halves(node, known):
        return "wrongly with float16 tensors of 5 axes"
    if node.op_type == "Pad" and _pads_with_the_largest(node, known):
        return "wrongly behind a negative zero point: quantize activations to unsigned integers"
    return ""


def _is_wide_product_of_halves(node: ir.Node, known: KnownValue) -> bool:
    """Whether a MatMul has two float16 tensors of 5 axes, neither of them a constant."""
    given = [known(value) for value in node.inputs if value is not None]
    halves = all(value.dtype == ir.DataType.FLOAT16 and value.const_value is None for value in given)
    return halves and any(len(value.shape or ()) > _MOST_AXES_OF_HALVES for value in given)


def _pads_with_the_largest(node: ir.Node, known: KnownValue) -> bool:
    """Whether a Pad without a value as its input has integers whose zero point is negative, or unknown."""
    padded, value = node.inputs[0], [*node.inputs, None, None][2]
    source = None if padded is None else padded.producer()
    if value is not None or source is None or source.op_type != "DequantizeLinear":
        return False
    zero = [*source.inputs, None][2]
    tensor = None if zero is None else known(zero).const_value
    return zero is not None and (tensor is None or bool((tensor.numpy() < 0).any()))


_QNN_RULE = NativeRule(
    "2.7.0",
    "2026-11-23",
    features(
        "GRU, forward, reverse, bidirectional, no activations, linear_before_reset, linear_before_reset 0,"
        "initial state, constant initial state, no initial_h, named outputs, written hidden_size,"
        "transposed X and Y, a shared X, computed weights, I = 1, T = 1, N above 1, float, opset 7 to 21, opset 22"
    )
    | COMMON,
    (
        Excluded(("LSTM",), "computes an LSTM ten times less exactly than its basic operators"),
        Excluded(("RNN",), "has no RNN"),
        Excluded(("clip",), "rejects clip"),
    ),
    simulated=True,
)
"""Measured with 600 random nodes in it. Of an LSTM, h and c are off by 0.01 where lowered ones are by 0.001; with
input_forget it is wrong. Activations that are no defaults, and sequence_lens, are rejected."""

QNN = Target(
    "qnn",
    "onnxruntime-qnn 2.7.0",
    ("unroll",),
    other_names=("onnxruntimeqnn",),
    attention=AttentionTraits(("chunked",)),  # steps have 6 axes
    dialect=Dialect(states_apart=True),  # else it joins the outputs of two chunks wrongly, without an error
    unsupported=("Softplus", "Softsign"),
    sizes=STATIC,
    most_axes=5,
    model=ModelTraits(adaptations=("inputs with elements",), misreads=_misread_by_qnn),
    integer_products=False,
    instead=(("Exp", _bounded_exp),),
    streams=StreamTraits(signed_activations=False),
    native=_QNN_RULE,
)
