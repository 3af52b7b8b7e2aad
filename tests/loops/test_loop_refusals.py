"""A damaged Loop or Scan is refused with one of the project's errors, which names it."""

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import helper, parser

import rnn_lowering as rl

Damage = Callable[[onnx.NodeProto], Any]

LOOP = """<ir_version: 8, opset_import: ["": 17]> g (float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y)
    <bool yes = {1}, int64 M = {5}> {
    p, Y = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o) {
        x = Gather (X, i) s1 = Add (s, x) o = Mul (s1, x) c1 = Identity (c) }> }"""

SCAN = """<ir_version: 8, opset_import: ["": 17]> g (float[2] a, float[5,2] X) => (float[2] p, float[T,2] Y) {
    p, Y = Scan <num_scan_inputs = 1, body = d (float[2] s, float[2] x) => (float[2] s1, float[2] o) {
        s1 = Add (s, x) o = Mul (s1, x) }> (a, X) }"""


def body(node: onnx.NodeProto) -> onnx.GraphProto:
    graph: onnx.GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    return graph


def set_ints(name: str, numbers: list[int]) -> Damage:
    return lambda node: node.attribute.append(helper.make_attribute(name, numbers))


DAMAGES: dict[str, tuple[str, Damage, str]] = {
    "no body": (LOOP, lambda node: node.attribute.pop(), "no body"),
    "a body with an input more": (
        LOOP,
        lambda node: body(node).input.add(name="more"),
        "has 4 inputs, but the node passes 3",
    ),
    "a body without outputs": (LOOP, lambda node: body(node).ClearField("output"), "but the node needs at least 3"),
    "more outputs than the body": (
        LOOP,
        lambda node: node.output.append("more"),
        "3 outputs, but the node needs at least 4",
    ),
    "no count of rows": (SCAN, lambda node: node.attribute.remove(node.attribute[0]), "num_scan_inputs"),
    "two axes for one input": (SCAN, set_ints("scan_input_axes", [0, 0]), "scan_input_axes has 2"),
    "an axis that does not exist": (SCAN, set_ints("scan_input_axes", [2]), "axis 2"),
    "a direction that does not exist": (SCAN, set_ints("scan_input_directions", [2]), "not 0 or 1"),
    "an output axis that does not exist": (SCAN, set_ints("scan_output_axes", [3]), "axis 3"),
}


@pytest.mark.parametrize("form", ["unroll", "loop", "scan"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_loop_is_refused(name: str, form: str) -> None:
    text, damage, message = DAMAGES[name]
    model = parser.parse_model(text)
    damage(model.graph.node[0])
    with pytest.raises((rl.InvalidNodeError, rl.UnsupportedError), match=message) as caught:
        rl.lower(model, form, loops=True)
    assert caught.value.node is not None
    assert caught.value.node.name == "-> p"
