"""Convolutions that a runtime computes wrongly, without an error.

MNN 3.6.1 gives an output of the model that is a Conv along one axis an axis of 1 at its end.

onnxruntime-web 1.30 is wrong on WebGPU with a multiple of 3 input channels, but not of 4 nor 3 itself, and a
multiple of 4 output channels. With one more output channel, which is cut off, it is right. Measured with 1 to
10, 12, 13, 16, 33, 129 and 132 input channels, and 1 to 5, 8, 16 and 128 output channels: wrong are 6, 9, 33
and 129 with 4, 8, 16 and 128.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_of_default_domain
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.types import Array

_FUSED = ("Clip", "LeakyRelu", "Relu")
"""Operators that MNN computes with the Conv before them."""

_MAX_OF_ANY = 8
"""The opset from which on Max takes any shape."""


def end_convolutions(model: ir.Model) -> int:
    """Put a Max behind each output of a model that is a Conv along one axis, in place; return their number."""
    inserter, count = Inserter(model), 0
    for value in list(model.graph.outputs) if default_opset(model.opset_imports) >= _MAX_OF_ANY else ():
        node = value.producer()
        while node is not None and node.op_type in _FUSED and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        if node is None or node.op_type not in ("Conv", "ConvTranspose"):
            continue
        weights = node.inputs[1]
        if weights is None or weights.shape is None or len(weights.shape) != 3:
            continue
        inserter.behind(value, "Max", [value], suffix="Conv")
        count += 1
    return count


_SLICE_OF_INPUTS = 10
"""The opset from which on the bounds of a Slice are inputs."""


def add_output_channels(model: ir.Model) -> int:
    """Add an output channel to such convolutions of constant weights, in place; return their number."""
    opset, inserter, count = default_opset(model.opset_imports), Inserter(model), 0
    for node in list(model.graph) if opset >= _SLICE_OF_INPUTS else ():
        if node.op_type != "Conv" or not is_of_default_domain(node):
            continue
        held = [None if value is None else constant_of(value, opset) for value in node.inputs[1:]]
        if None not in held and _is_wrong(node, held):
            _widen(node, [each.numpy() for each in held if each is not None], inserter)
            count += 1
    return count


def _is_wrong(node: ir.Node, held: list[ir.TensorProtocol | None]) -> bool:
    weights = held[0]
    assert weights is not None
    outputs, inputs = (int(size) for size in weights.shape.numpy()[:2])
    in_threes = inputs > 3 and inputs % 3 == 0 and inputs % 4 != 0
    return in_threes and outputs % 4 == 0 and node.attributes.get_int("group", 1) == 1


def _widen(node: ir.Node, held: list[Array], inserter: Inserter) -> None:
    """Give a Conv a last output channel of zeros, and cut it off."""
    given, count = list(node.inputs[1:]), len(held[0])
    for index, array in enumerate(held, 1):
        zeros = np.zeros((1, *array.shape[1:]), array.dtype)
        wide = np.concatenate([array, zeros])
        node.replace_input_with(index, inserter.constant(node, wide, array.dtype, "wide"))
    output = node.outputs[0]
    numbers = {"first": 0, "count": count, "axis": 1}
    bounds = [inserter.constant(node, [number], hint=hint) for hint, number in numbers.items()]
    inserter.behind(output, "Slice", bounds, suffix="wide")
    if output.shape is not None:
        output.shape = ir.Shape([count + 1 if axis == 1 else size for axis, size in enumerate(output.shape)])
    drop_unused([value for value in given if value is not None])
