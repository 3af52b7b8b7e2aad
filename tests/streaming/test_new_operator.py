"""Operators that the package has never seen: a row or one function lets them into streams.

They are made up: Turned computes what Neg does, and Blurred what an AveragePool of two frames does.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.defs import OpSchema
from stream_models import CHUNKINGS, chunked, net, plan_of, random, whole

import rnn_lowering as rl
from rnn_lowering.facts import axes
from rnn_lowering.facts.operators import OPERATORS, Operator
from rnn_lowering.streaming.flow import Flow
from rnn_lowering.streaming.follow_frames import ALONG_FRAMES
from rnn_lowering.streaming.frames import Frames, Framing
from rnn_lowering.streaming.operators.windows import Window, read_window, set_attributes

STANDS_FOR = {"Turned": "Neg", "Blurred": "AveragePool"}
KINDS = OpSchema.AttrType
ATTRIBUTES = {"kernel_shape": KINDS.INTS, "pads": KINDS.INTS, "count_include_pad": KINDS.INT}


def infer_shapes(context: Any) -> None:
    """A Blurred without padding returns a frame fewer."""
    output, pads = onnx.TypeProto(), context.get_attribute("pads")
    output.CopyFrom(context.get_input_type(0))
    if context.get_attribute("kernel_shape") is not None and (pads is None or not any(pads.ints)):
        output.tensor_type.shape.dim[-1].Clear()
    context.set_output_type(0, output)


@pytest.fixture(autouse=True)
def known_to_onnx() -> Iterator[None]:
    for name in STANDS_FOR:
        schema = OpSchema(
            name,
            "",
            1,
            inputs=[OpSchema.FormalParameter("X", "T")],
            outputs=[OpSchema.FormalParameter("Y", "T")],
            type_constraints=[("T", ["tensor(float)"], "")],
            attributes=[OpSchema.Attribute(key, kind, required=False) for key, kind in ATTRIBUTES.items()],
        )
        schema.set_type_and_shape_inference_function(infer_shapes)
        onnx.defs.register_schema(schema)
    yield
    for name in STANDS_FOR:
        onnx.defs.deregister_schema(name, 1, "")


def runnable(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        node.op_type = STANDS_FOR.get(node.op_type, node.op_type)
    return model


def model(node: str) -> onnx.ModelProto:
    """Of a convolution behind it, a state is carried in any case."""
    nodes = f"a = Tanh (X) b = {node} Y = Conv <pads = [2, 0]> (b, K[3, 3, 3])"
    return net(f"g (float[2,3,time] X) => (float[2,3,time] Y) {{ {nodes} }}")


TURNED = "Turned (a)"
BLURRED = "Blurred <kernel_shape = [2], pads = [1, 0], count_include_pad = 1> (a)"


def assert_streamed(given: onnx.ModelProto, states: int) -> None:
    stepped = runnable(rl.lower(given, stream="time"))
    assert len(plan_of(stepped)["states"]) == states
    feed = {"X": random((2, 3, 19), 1)}
    expected = whole(runnable(given), feed)["Y"]
    for sizes in CHUNKINGS:
        np.testing.assert_allclose(chunked(stepped, feed, sizes)["Y"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("node", [TURNED, BLURRED])
def test_an_unknown_operator_is_refused_by_name(node: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=f"{node.split()[0]} node"):
        rl.lower(model(node), stream="time")


def test_a_row_is_enough_for_an_operator_that_acts_on_each_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "Turned", Operator(axes.broadcast, elementwise=True))
    assert_streamed(model(TURNED), 1)


def blurred(flow: Flow, node: ir.Node, framing: Frames) -> list[Framing]:
    """The state has the frame before the chunk, in place of the padding."""
    flow.change(node, set_attributes, {"pads": None})
    return read_window(flow, node, framing, Window(span=1, left=1))


def test_a_function_is_enough_for_an_operator_that_acts_along_the_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALONG_FRAMES, "Blurred", blurred)
    assert_streamed(model(BLURRED), 2)
