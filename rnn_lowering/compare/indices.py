"""Indices of the largest or smallest numbers: where numbers are equal, the index of either is right."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from rnn_lowering.compare.judgement import allowance, distance
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.facts.operators import DEFAULT_DOMAIN
from rnn_lowering.types import Array

_DEFAULT_AXES = {"TopK": -1, "ArgMax": 0, "ArgMin": 0}
"""By operator the default of its attribute `axis`."""

_PASSING = ("Cast", "Identity")


def picking_nodes(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the nodes that pick, by the output of the graph that is their indices."""
    makers = {name: node for node in graph.node if node.domain in DEFAULT_DOMAIN for name in node.output if name}
    nodes = {}
    for value in graph.output:
        name = value.name
        while name in makers and makers[name].op_type in _PASSING:
            name = makers[name].input[0]
        node = makers.get(name)
        if node is not None and node.op_type in _DEFAULT_AXES and node.output[-1] == name:
            nodes[value.name] = node
    return nodes


def as_right(
    node: onnx.NodeProto, values: Array, expected: Array, actual: Array, tolerance: Tolerance
) -> Array | None:
    """Return how far each index may be from the expected one: any distance if both pick numbers that are equal up
    to the tolerance, and no index is there twice; None if the shapes do not fit.

    Args:
        node: The node that picks.
        values: What it picks from.
        expected, actual: Its indices.
        tolerance: The tolerance of the numbers.
    """
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    axis = given.get("axis", _DEFAULT_AXES[node.op_type])
    if actual.shape != expected.shape or not expected.size or values.dtype.kind != "f":
        return None
    single = node.op_type != "TopK" and not given.get("keepdims", 1)
    first, second = (np.expand_dims(a, axis) if single else np.asarray(a) for a in (expected, actual))
    inside = (second >= 0) & (second < values.shape[axis])
    places = [np.where(inside, a, 0).astype(np.int64) for a in (first, second)]
    allowed = np.take_along_axis(allowance(values, tolerance), places[0], axis)
    near = distance(*(np.take_along_axis(np.asarray(values), each, axis) for each in places)) <= allowed
    once = (np.diff(np.sort(second, axis), axis=axis) != 0).all(axis=axis, keepdims=True)
    return np.where(near & inside & once, np.inf, 0.0).reshape(expected.shape)
