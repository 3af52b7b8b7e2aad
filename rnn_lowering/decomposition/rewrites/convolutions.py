"""Convolutions that a runtime computes wrongly, or rejects with what is around them.

onnx2tf 2.6.9 writes a model that LiteRT rejects where a sum is both an operand of a sum and in a Concat before its
other operand: between both sums comes a Reshape to the same shape.

MNN 3.6.1 gives an output of the model that is a Conv along one axis an axis of 1 at its end.

onnxruntime-web 1.30 is wrong on WebGPU with a multiple of 3 input channels, but not of 4 nor 3 itself, and a
multiple of 4 output channels. With one more output channel, which is cut off, it is right. Measured with 1 to
10, 12, 13, 16, 33, 129 and 132 input channels, and 1 to 5, 8, 16 and 128 output channels: wrong are 6, 9, 33
and 129 with 4, 8, 16 and 128.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnn_lowering.decomposition.rewrites.inserting import Inserter
from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset, is_of_default_domain, operator_of, reached
from rnn_lowering.model.model_sizes import inferred_values
from rnn_lowering.model.replace import drop_unused
from rnn_lowering.model.scopes import standard_nodes
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


def set_sums_apart(model: ir.Model) -> int:
    """Put a Reshape between each Add and its operands that are sums which a Concat takes too, in place; return
    their number."""
    convolves = any(True for _ in standard_nodes(model, "Conv", "ConvTranspose"))
    adds = [node for _, node in standard_nodes(model, "Add")] if convolves else []
    known, inserter, count = inferred_values(model) if adds else {}, Inserter(model), 0
    for node in adds:
        for slot, value in enumerate(node.inputs):
            sizes = None if value is None else known.get(value, value).shape
            if value is None or sizes is None or len(sizes) <= _MATRIX or not sizes.is_static():
                continue
            if _is_joined_sum(value):
                shape = inserter.constant(node, list(sizes))
                node.replace_input_with(slot, inserter.before(node, "Reshape", [value, shape]))
                count += 1
    return count


_MATRIX = 2
"""The axes of a matrix, which no Conv takes."""


def _is_joined_sum(value: ir.Value) -> bool:
    """Whether a value follows element by element from a sum that a Concat takes, also element by element."""

    def before(value: ir.Value) -> Sequence[ir.Value | None]:
        node = value.producer()
        return node.inputs if node is not None and _passes(node) else ()

    def behind(value: ir.Value) -> list[ir.Value]:
        return [use.node.outputs[0] for use in value.uses() if _passes(use.node)]

    sums = [v for v in reached([value], before) if (node := v.producer()) is not None and node.op_type == "Add"]
    return any(use.node.op_type == "Concat" for v in reached(sums, behind) for use in v.uses())


def _passes(node: ir.Node) -> bool:
    return operator_of(node).elementwise and node.op_type != "Add"
