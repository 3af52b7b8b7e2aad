"""MNN (`pip install MNN`): no Scan; its own recurrent operators are wrong with most attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import onnx_ir as ir

from rnn_lowering.emit.composites import by_columns
from rnn_lowering.emit.constants import zeros_of
from rnn_lowering.emit.dialect import Dialect
from rnn_lowering.emit.ops import Ops
from rnn_lowering.emit.tensor import Tensor
from rnn_lowering.targets.target import Target
from rnn_lowering.types import Dims


def zeros_of_float32(op: Ops, shape: Tensor, dims: Dims) -> Tensor:
    """Emit ConstantOfShape in float32 and cast it: in float16 it stays unset."""
    value = zeros_of(ir.DataType.FLOAT, (1,)).tensor("")
    made = op.emit("ConstantOfShape", [shape], dims, ir.DataType.FLOAT, value=value)
    return op.cast(made, op.dtype)


def conv_of_images(op: Ops, x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Emit a Conv of one row of pixels: an output that a Conv of rank 3 computes has a fourth axis in MNN."""
    (N, C, frames), k = x.shape, weight.shape[-1]
    rows, weights = op.unsqueeze(x, [2]), op.unsqueeze(weight, [2])
    shape = (N, C, 1, None if frames is None or k is None else frames - (k - 1) * dilation)
    inputs = [rows, weights] if bias.is_zero else [rows, weights, bias]
    sizes = {"group": C, "kernel_shape": [1, k], "dilations": [1, dilation]}
    return op.squeeze(op.emit("Conv", inputs, shape, **sizes), [2])


def max_of_outputs(op: Ops, outputs: Sequence[ir.Value]) -> None:
    """Replace Relu with Max(x, 0) if x is an output; before opset 8, where Max does not broadcast, with Clip.

    MNN fuses Relu with Add, Sub, Mul, Div, Max, Min or Softsign before it, and loses what these compute ("Can't
    find output"): the cell state of Keras' LSTM(activation="relu").
    """
    nodes = op.nodes[:]
    op.nodes.clear()
    for node in nodes:
        if node.op_type == "Relu" and node.inputs[0] in outputs:
            node.op_type = "Max" if op.opset >= 8 else "Clip"
            node.name = op.unique_name(node.op_type)
            if node.op_type == "Max":
                node.resize_inputs(2)
                node.replace_input_with(1, op.value(op.from_constant(zeros_of(op.dtype, ()))))
            else:
                bounds = ir.AttrFloat32("min", 0.0), ir.AttrFloat32("max", math.inf)
                node.attributes.update({bound.name: bound for bound in bounds})
        op.nodes.append(node)


TARGET = Target(
    "mnn",
    "3.6.1",
    ("unroll", "loop"),
    attention=("unroll", "loop", "chunked"),
    unsupported=("Softplus",),
    integer_products=False,
    loop_from=128,
    # It computes a Slice with step -1 of unknown length wrongly.
    dialect=Dialect(reverse_in_loop=True, join_up_to=128, stack_up_to=128),
    # Products of a batch are 1.3 to 60 times faster by columns; those of one row are not.
    instead=(
        ("MatMul", partial(by_columns, least=1, batch=2)),
        ("ConstantOfShape", zeros_of_float32),
        ("Conv", conv_of_images),
    ),
    finish=(max_of_outputs,),
    # MNN loses an output that a Relu reads, as above. An output of Reshape, Squeeze or Unsqueeze loses its shape if
    # an activation, Abs, Neg, Exp or Clip reads it.
    outputs_apart=True,
)
