"""Runtimes for phones and chips: LiteRT, esp-ppq for ESP-DL, and ncnn. MNN has a module of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from rnn_lowering.emit.composites import as_sum_with_zero, as_transpose, max_of_outputs
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor, static
from rnn_lowering.facts.constants import constant_of, integers_at
from rnn_lowering.facts.operators import parameter
from rnn_lowering.targets.misread import by_operator, einsum_of_several, reduces
from rnn_lowering.targets.target import STATIC, KnownValue, ModelTraits, Target

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
    return "without a reduction only" if reduces(node) else ""


_IN_LITERT = {
    "ReverseSequence": _reverse_sequence,
    "ScatterND": _scatter,
    "ScatterElements": _scatter,
    "Einsum": einsum_of_several,
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
            *("parts of sequences", "no sequences", "no lone operands", "outputs as sums", "computed copies"),
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
            *("parts of sequences", "no sequences", "rounding of floats", "no products of integers"),
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
