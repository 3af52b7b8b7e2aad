"""Runtimes for phones and chips: MNN, LiteRT, esp-ppq for ESP-DL, and ncnn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.composites import as_sum_with_zero, as_transpose, by_columns, max_of_outputs
from rnn_lowering.emit.constants import zeros_of
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.facts.constants import constant_of, integers_at
from rnn_lowering.facts.operators import parameter
from rnn_lowering.targets.misread import AXES_OF_COMPOSED, by_operator
from rnn_lowering.targets.native import (
    COMMON,
    OTHER_ACTIVATIONS,
    RESET_AFTER,
    Excluded,
    NativeRule,
    Speed,
    features,
)
from rnn_lowering.targets.target import (
    STATIC,
    AttentionTraits,
    KnownValue,
    LoopTraits,
    ModelTraits,
    Target,
)
from rnn_lowering.types import Dims

# MNN (`pip install MNN`): no Scan; its own recurrent operators are wrong with most attributes.


def _zeros_of_float32(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    """Emit ConstantOfShape in float32 and cast it: in float16 it stays unset."""
    value = zeros_of(ir.DataType.FLOAT, (1,)).tensor("")
    made = op.emit("ConstantOfShape", [shape], dims, ir.DataType.FLOAT, value=value)
    return op.cast(made, op.dtype)


def _conv_of_images(op: Ops, x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Emit a Conv of one row of pixels: an output that a Conv of rank 3 computes has a fourth axis in MNN."""
    (N, C, frames), k = x.shape, weight.shape[-1]
    rows, weights = op.unsqueeze(x, [2]), op.unsqueeze(weight, [2])
    shape = (N, C, 1, None if frames is None or k is None else frames - (k - 1) * dilation)
    inputs = [rows, weights] if bias.is_zero else [rows, weights, bias]
    sizes = {"group": C, "kernel_shape": [1, k], "dilations": [1, dilation]}
    return op.squeeze(op.emit("Conv", inputs, shape, **sizes), [2])


_MNN_RULE = NativeRule(
    "3.6.1",
    "2026-11-23",
    features(
        "RNN, GRU, LSTM, forward, bidirectional, linear_before_reset, initial state, constant initial state,"
        "no initial_h, initial_c without initial_h, initial_c of zeros or none, Y_c beside others,"
        "named outputs, written hidden_size, a shared X, I = 1, T = 1, N above 1, no activations, open T,"
        "open N, float, opset 7 to 21, opset 22, flipped X and Y, transposed X and Y"
    )
    | COMMON,
    (
        Excluded(("flipped X and Y", "open T"), "computes reverse wrongly, and flips an open T wrongly"),
        *(Excluded((name,), f"ignores {name}") for name in ("clip", "input_forget", "P", "sequence_lens")),
        *(Excluded((name,), "ignores activations") for name in OTHER_ACTIVATIONS),
        Excluded(("linear_before_reset 0",), "computes linear_before_reset 0 wrongly"),
        Excluded(("GRU", "open T"), "computes a GRU wrongly if T is open"),
        Excluded(("LSTM", "open T", "initial state"), "crashes with an initial state of an LSTM if T is open"),
        Excluded(("T = 1", "initial_c without initial_h"), "crashes with initial_c and no initial_h if T is 1"),
        Excluded(("computed weights",), "rejects weights that are no constants"),
    ),
    (
        Speed(("LSTM",), 100, 1, {16: 0.18, 32: 0.23, 64: 0.71, 128: 0.78, 256: 0.86}),
        Speed(("LSTM",), 10, 8, {16: 0.29, 32: 0.39, 64: 0.63, 128: 1.16, 256: 1.41}),
        Speed(RESET_AFTER, 100, 1, {16: 0.47, 32: 0.23, 64: 0.48, 128: 0.81, 256: 0.84}),
        Speed(RESET_AFTER, 10, 8, {16: 0.27, 32: 0.37, 64: 0.59, 128: 1.09, 256: 1.31}),
        Speed(("LSTM",), 1, 1, {32: 0.95}),
        Speed(RESET_AFTER, 1, 1, {32: 0.95}),
        Speed(("RNN",), 1, 1, {32: 1.01, 128: 1.0}),
        Speed(("RNN",), 10, 1, {16: 1.15, 32: 1.18, 64: 1.27, 128: 2.87, 256: 1.75}),
        Speed(("RNN",), 100, 8, {16: 2.07, 32: 1.84, 64: 1.64, 128: 1.83, 256: 1.92}),
        Speed(("RNN",), 50, 1, {8: 1.02, 32: 1.12, 64: 1.84}, nodes=2),
        Speed(("RNN",), 50, 1, {8: 0.5, 32: 0.6}, nodes=4),
        Speed(("RNN", "bidirectional"), 50, 1, {8: 2.08, 32: 1.24, 64: 1.07, 128: 2.13}),
        Speed(("RNN", "bidirectional"), 50, 8, {8: 1.21, 32: 1.51, 64: 2.85, 128: 2.32}),
        Speed(("RNN", "open T"), 100, 1, {16: 2.0, 32: 3.01, 64: 2.79, 128: 3.76, 256: 3.15}),
        Speed(("RNN", "open T"), 100, 8, {16: 2.9, 32: 3.04, 64: 3.28, 128: 1.84, 256: 1.61}),
        Speed(("LSTM", "open T"), 100, 1, {32: 0.75, 128: 1.0}),  # runs gave 0.7 to 0.8, and 0.8 to 1.2
    ),
)
"""Measured with 897 random nodes in it. An output without a name makes others wrong, so each gets one."""


def _reduces(node: ir.Node) -> bool:
    return node.attributes.get_string("reduction", "none") != "none"


_OF_PLANES = ("AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")

_AXES_OF_VOLUMES, _PAIR = 5, 2
"""The axes of a tensor with three of space; the operands of an Einsum that it takes."""


def _misread(node: ir.Node, known: KnownValue) -> str:
    """Return how MNN computes a node wrongly, or "".

    It keeps what follows a Conv in another order of axes, which its ReverseSequence does not know.
    """
    if node.op_type == "ReverseSequence":
        return "wrongly behind a Conv"
    if node.op_type == "Gelu" and node.attributes.get_string("approximate", "none") == "none":
        return "by its approximation with Tanh"
    if node.op_type in AXES_OF_COMPOSED:
        return "along all axes, or without the axes of size 1"
    if node.op_type in ("ScatterElements", "ScatterND") and _reduces(node):
        return "without its reduction"
    if node.op_type == "Einsum" and len(node.inputs) > _PAIR:
        return "of two operands only"
    if node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") == "cubic":
        return "wrongly if it is cubic"
    if node.op_type == "LogSoftmax" and "axis" not in node.attributes:
        return "only if its axis is written"
    shape = known(node.inputs[0]).shape if node.op_type in _OF_PLANES and node.inputs[0] is not None else None
    if shape is not None and len(shape) >= _AXES_OF_VOLUMES:
        return "wrongly along three axes"
    bytes_made = node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.UINT8
    return "wrongly, or crashes" if bytes_made or node.op_type == "DequantizeLinear" else ""


MNN = Target(
    "mnn",
    "3.6.1",
    ("unroll", "loop"),
    attention=AttentionTraits(("unroll", "loop", "chunked")),
    unsupported=("Softplus",),
    integer_products=False,
    model=ModelTraits(
        # QuantizeLinear is computed by the range of the data, whatever the scale is; DequantizeLinear with many
        # scales is 0, and with one it is wrong as the weight of a Conv, and of computed integers.
        adaptations=(
            *("rounding of floats", "no products of integers", "tables of floats", "differences of floats"),
            *("inputs with elements", "rows of sequences", "typed fills", "constants as tensors"),
            *("no vectors", "crops as Slice", "spelled strides", "ended convolutions", "parted outputs"),
            *("plain scatters", "exact Gelu", "Resize of rank 4", "norms apart"),
        ),
        folds=True,
        # It loses an output that a Relu reads. An output of Reshape, Squeeze or Unsqueeze loses its shape if
        # an activation, Abs, Neg, Exp or Clip reads it.
        outputs_apart=as_transpose,
        misreads=_misread,
    ),
    loops=LoopTraits(loop_from=128),
    # It computes a Slice with step -1 of unknown length wrongly.
    dialect=Dialect(reverse_in_loop=True, join_up_to=128, stack_up_to=128),
    # Products of a batch are 1.3 to 60 times faster by columns; those of one row are not.
    instead=(
        ("MatMul", partial(by_columns, least=1, batch=2)),
        ("ConstantOfShape", _zeros_of_float32),
        ("Conv", _conv_of_images),
    ),
    # It fuses Relu with Add, Sub, Mul, Div, Max, Min or Softsign before it, and loses what these compute ("Can't
    # find output"): the cell state of Keras' LSTM(activation="relu").
    finish=(max_of_outputs,),
    native=_MNN_RULE,
)


# LiteRT, formerly TensorFlow Lite (`pip install onnx2tf`, with Python 3.12 or later; it needs no TensorFlow).
# onnx2tf 2.6.9 ignores alpha of Elu, and computes Softplus as Log(Exp(x) + 1), which is infinite from x = 89 on.
# It lets a Flatten read the input of an Unsqueeze instead of its output, but keeps the axis of the Flatten. It
# has no bfloat16, and turns inputs of float16 into float32. LiteRT has no Slice above rank 5 and no Add of
# float64.


MOST_AXES = 5
"""The highest rank of a Slice in LiteRT; onnx2tf makes Slices of a Split."""


def _split_of_rank_3(op: Ops, x: Tensor, sizes: Sequence[int], axis: int) -> list[Tensor] | None:
    """Split x of more than 5 axes as [before, size, behind]."""
    if x.rank <= MOST_AXES:
        return None
    before, behind = (math.prod(static(part)) for part in (x.shape[:axis], x.shape[axis + 1 :]))
    parts = op.split(op.reshape(x, (before, sum(sizes), behind)), sizes, axis=1)
    return [op.reshape(part, x.shape_with(axis, n)) for part, n in zip(parts, sizes, strict=True)]


def _einsum(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "of two operands only" if len(node.inputs) > _PAIR else ""


_AXES_OF_IMAGES = 4


def _conv_of_integers(node: ir.Node, known: KnownValue, opset: int) -> str:
    """onnx2tf takes groups of one channel, or no groups."""
    x, weights = node.inputs[:2]
    shape = None if x is None else known(x).shape
    tensor = constant_of(weights, opset)
    if shape is None or len(shape) != _AXES_OF_IMAGES or tensor is None:
        return "of images only, with constant weights"
    grouped = node.attributes.get_int("group", 1) > 1 and tensor.shape.numpy()[1] > 1
    return "wrongly in groups of several channels" if grouped else ""


def _log_softmax(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "infinite where it is below -104"


def _of_doubles(node: ir.Node, known: KnownValue, opset: int) -> str:
    value = node.inputs[0]
    return "in float32 only" if value is not None and known(value).dtype == ir.DataType.DOUBLE else ""


def _reverse_sequence(node: ir.Node, known: KnownValue, opset: int) -> str:
    value = node.inputs[0]
    return "of numbers only" if value is not None and known(value).dtype == ir.DataType.BOOL else ""


def _scatter(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "without a reduction only" if _reduces(node) else ""


_IN_LITERT = {
    "ReverseSequence": _reverse_sequence,
    "ScatterND": _scatter,
    "ScatterElements": _scatter,
    "Einsum": _einsum,
    "ConvInteger": _conv_of_integers,
    "LogSoftmax": _log_softmax,
    "IsInf": _of_doubles,
    "IsNaN": _of_doubles,
}

LITERT = Target(
    "litert",
    "onnx2tf 2.6.9, ai-edge-litert 2.1.2",
    ("unroll",),
    other_names=("tflite", "tensorflowlite", "onnx2tf"),
    unsupported=("Elu", "Flatten", "Softplus"),
    lacks_types=(ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16),
    sizes=STATIC,  # with an open batch size XNNPACK rejects some
    integer_products=True,
    # Sixteen steps on [batch, hidden] take 0.8 to 0.9 of the time of those on [1, batch, hidden].
    dialect=Dialect(matrix_product=True, matrix_steps=True),
    instead=(("Split", _split_of_rank_3),),
    # It fuses a Relu with the Add, Sub, Mul or Div before it, and loses what these compute, also where it is an
    # output; of a Transpose that moves nothing it loses the output.
    finish=(max_of_outputs,),
    model=ModelTraits(
        outputs_apart=as_sum_with_zero,
        adaptations=(
            *("rows of sequences", "no sequences", "no lone operands", "outputs as sums", "computed copies"),
            *("constants as tensors", "sums apart"),
        ),
        misreads=by_operator(_IN_LITERT),
    ),
)


# esp-ppq, which quantizes models for ESP-DL on Espressif's chips (`pip install esp-ppq`), run in float. It has no
# RNN, Scan or Loop. Of a GRU and an LSTM it ignores clip, input_forget and sequence_lens, it computes a reverse
# GRU forwards, and gives a bidirectional one another shape.


_ONE_AXIS = 13
"""The opset from which on a Softmax is of one axis; before, esp-ppq takes it for that too."""


def _is_last(axis: int, value: ir.Value | None, known: KnownValue) -> bool:
    shape = None if value is None else known(value).shape
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _gather(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "wrongly along a negative axis" if node.attributes.get_int("axis", 0) < 0 else ""


def _conv_transpose(node: ir.Node, known: KnownValue, opset: int) -> str:
    pads = node.attributes.get_ints("pads", ())
    sides = {tuple(pads[axis :: len(pads) // 2]) for axis in range(len(pads) // 2)}
    return "with the pads of one axis at another" if len(sides) > 1 else ""


def _several_axes(node: ir.Node, known: KnownValue, opset: int) -> str:
    axes = integers_at(node, "axes", opset) or []
    return "wrongly with several axes, of which one is negative" if len(axes) > 1 and min(axes) < 0 else ""


def _softmax(node: ir.Node, known: KnownValue, opset: int) -> str:
    if node.op_type == "LogSoftmax":
        return "as -inf where a number is far below another"
    last = _is_last(node.attributes.get_int("axis", 1 if opset < _ONE_AXIS else -1), node.inputs[0], known)
    return "" if last or opset >= _ONE_AXIS else "of one axis, where that opset has it of several"


def _largest(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "wrongly with one input" if len(node.inputs) == 1 else ""


def _split(node: ir.Node, known: KnownValue, opset: int) -> str:
    """ESP-DL divides the size by the number of parts; a rest would be one part more."""
    if parameter(node, "split", opset) is not None or node.inputs[0] is None:
        return ""
    shape = known(node.inputs[0]).shape
    size = None if shape is None else shape[node.attributes.get_int("axis", 0)]
    return "with other sizes than those of the node" if isinstance(size, int) and size % len(node.outputs) else ""


def _part_of_shape(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "whole, without its start and end" if {"start", "end"} & node.attributes.keys() else ""


_IN_ESPDL = {
    "ConvTranspose": _conv_transpose,
    "Gather": _gather,
    "LogSoftmax": _softmax,
    "Max": _largest,
    "Min": _largest,
    "Shape": _part_of_shape,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _several_axes,
    "Unsqueeze": _several_axes,
}

ESPDL = Target(
    "espdl",
    "esp-ppq 1.3.12",
    ("unroll",),
    other_names=("espppq",),
    unsupported=("Softplus", "Softsign", "ThresholdedRelu"),
    lacks_types=(ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16),  # its Sub gives float32
    integer_products=False,
    model=ModelTraits(
        misreads=by_operator(_IN_ESPDL),
        # It removes each Identity, and its output has another name; copies without elements are Identities.
        adaptations=("computed copies", "inputs with elements", "constants as tensors"),
    ),
)


# ncnn, with models that pnnx converts (`pip install ncnn pnnx`): no recurrent ONNX operator, Scan or Loop. pnnx
# runs a model on uninitialized integers. It leaves in a model what it cannot convert, and ncnn loads none such.


def _layer_norm(node: ir.Node, known: KnownValue, opset: int) -> str:
    last = _is_last(node.attributes.get_int("axis", -1), node.inputs[0], known)
    return "" if last and len(node.inputs) > 2 else "along the last axis only, with scale and bias"


def _group_norm(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "with a scale for each channel, not each group" if opset < _OF_CHANNELS else ""


_OF_CHANNELS = 21
"""The first opset at which a GroupNormalization has a scale for each channel."""


def _resize(node: ir.Node, known: KnownValue, opset: int) -> str:
    mode = node.attributes.get_string("mode", "nearest")
    of = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest" and (of, node.attributes.get_string("nearest_mode", "")) != ("asymmetric", "floor"):
        return "with asymmetric coordinates, rounded down, only"
    return (
        "with coordinates of half pixels or aligned corners only" if (mode, of) == ("linear", "asymmetric") else ""
    )


def _depth_to_space(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "" if node.attributes.get_string("mode", "DCR") == "CRD" else "in the order CRD only"


def _space_to_depth(node: ir.Node, known: KnownValue, opset: int) -> str:
    shape = None if node.inputs[0] is None else known(node.inputs[0]).shape
    return "" if shape is not None and shape[1] == 1 else "of one channel only"


def _lp_pool(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "along some axes only"


_IN_NCNN = {
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "GlobalLpPool": _lp_pool,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "Resize": _resize,
}


NCNN = Target(
    "ncnn",
    "pnnx 20261020",
    ("unroll",),
    other_names=("pnnx",),
    newest_opset=26,
    lacks_types=(ir.DataType.DOUBLE,),
    unsupported=("Softplus", "Softsign", "ThresholdedRelu", "Less", "Gather", "ReduceSum"),
    lacks=(("LinearAttention", "its tensors have at most 4 axes"),),
    sequence_lens=False,
    # Masks from a table crash too: pnnx runs the model on uninitialized integers, and Gather reads them.
    why_no_lengths="pnnx converts no arithmetic of integers",
    integer_products=False,
    model=ModelTraits(
        # pnnx has no QuantizeLinear, and crashes at inputs and outputs without elements.
        adaptations=(
            *("rows of sequences", "no sequences", "rounding of floats", "no products of integers"),
            *("tables of floats", "computed copies", "bounded lookups", "crops as Slice", "spelled pads"),
            *("spelled splits", "spelled orders", "vectors as biases", "rank 4", "clipped norms"),
            *(
                "inputs with elements",
                "axes of reductions",
                "integers as indices",
                "at most 4 axes",
                "batches apart",
            ),
        ),
        misreads=by_operator(_IN_NCNN),
        refuses_lacking=True,
        outputs_apart=as_transpose,  # pnnx aborts at an Identity of an output of the model
    ),
    dialect=Dialect(matrix_product=True, matrix_steps=True),
)
