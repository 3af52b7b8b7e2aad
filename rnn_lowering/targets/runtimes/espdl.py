"""esp-ppq, which quantizes models for ESP-DL on Espressif's chips (`pip install esp-ppq`), run in float.

It has no RNN, Scan or Loop. Of a GRU and an LSTM it ignores clip, input_forget and sequence_lens, it computes a
reverse GRU forwards, and gives a bidirectional one another shape.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rnn_lowering.facts.constants import constant_of
from rnn_lowering.facts.operators import default_opset
from rnn_lowering.facts.parameters import integers_of, parameter
from rnn_lowering.targets.target import KnownValue, Target

_ONE_AXIS = 13
"""The opset from which on a Softmax is of one axis; before, esp-ppq takes it for that too."""


def without_an_error(node: ir.Node, known: KnownValue) -> str:
    """Return how it computes a node wrongly without an error, or ""."""
    graph = node.graph
    imports = graph.opset_imports if isinstance(graph, ir.Graph) else {}
    return _WAYS[node.op_type](node, known, default_opset(imports)) if node.op_type in _WAYS else ""


def _gather(node: ir.Node, known: KnownValue, opset: int) -> str:
    return "wrongly along a negative axis" if node.attributes.get_int("axis", 0) < 0 else ""


def _conv_transpose(node: ir.Node, known: KnownValue, opset: int) -> str:
    pads = node.attributes.get_ints("pads", ())
    sides = {tuple(pads[axis :: len(pads) // 2]) for axis in range(len(pads) // 2)}
    return "with the pads of one axis at another" if len(sides) > 1 else ""


def _several_axes(node: ir.Node, known: KnownValue, opset: int) -> str:
    held = parameter(node, "axes", opset)
    tensor = constant_of(held, opset) if isinstance(held, ir.Value) else None
    given = tensor.numpy() if tensor is not None else held
    axes = [] if given is None or isinstance(given, ir.Value) else integers_of(given)
    return "wrongly with several axes, of which one is negative" if len(axes) > 1 and min(axes) < 0 else ""


def _softmax(node: ir.Node, known: KnownValue, opset: int) -> str:
    if node.op_type == "LogSoftmax":
        return "as -inf where a number is far below another"
    value, axis = node.inputs[0], node.attributes.get_int("axis", 1 if opset < _ONE_AXIS else -1)
    shape = None if value is None else known(value).shape
    last = axis == -1 or (shape is not None and axis == len(shape) - 1)
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


_WAYS: dict[str, Callable[[ir.Node, KnownValue, int], str]] = {
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

TARGET = Target(
    "espdl",
    "esp-ppq 1.3.12",
    ("unroll",),
    other_names=("espppq",),
    unsupported=("Softplus", "Softsign", "ThresholdedRelu"),
    lacks_types=(ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16),  # its Sub gives float32
    integer_products=False,
    misreads=without_an_error,
    empty_tensors=False,  # their copies are Identities
    loses_copies=True,  # it removes each Identity, and its output has another name
)
