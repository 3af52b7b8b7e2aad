"""What onnxruntime's optimizer fuses is written as operators of ONNX for runtimes that have only these."""

from typing import Any

import onnx
import pytest
from running import assert_close, run
from texts import parse, random_feed

import rnn_lowering as rl

HEAD = """g (float[N, 4, 9] x, float[N, 6, 9] z) => (float[N, 6, 9] y)
    <float[6, 4, 3] w = {}, float[6] b = {}> { y = com.microsoft.FusedConv <ATTRIBUTES> (x, w, bINPUTS) }"""
CONV = "kernel_shape = [3], pads = [1, 1]"
MATRICES = "g (float[N, 4, 3] x) => (float[N, A, B] y) <float[N1, 5, 4] m = {}> { y = com.microsoft.FusedMatMul"
NETS = {
    **{
        f"a Conv and {activation}": HEAD.replace(
            "ATTRIBUTES", f'{CONV}, activation = "{activation}"{numbers}'
        ).replace("INPUTS", inputs)
        for activation, numbers, inputs in (
            ("Relu", "", ""),
            ("Relu", "", ", z"),
            ("Tanh", "", ""),
            ("LeakyRelu", ", activation_params = [0.3]", ", z"),
            ("Clip", ", activation_params = [-0.25, 0.5]", ""),
            ("HardSigmoid", ", activation_params = [0.3, 0.4]", ""),
        )
    },
    "a Gemm": """g (float[N, 4] x) => (float[N, 5] y) <float[5, 4] w = {}, float[5] b = {}> {
        y = com.microsoft.FusedGemm <transB = 1, alpha = 0.5, activation = "LeakyRelu", activation_alpha = 0.3>
        (x, w, b) }""",
    "a MatMul": """g (float[N, 4, 3] x) => (float[N, 3, 5] y) <float[4, 5] w = {}> {
        y = com.microsoft.FusedMatMul <transA = 1, alpha = 0.5> (x, w) }""",
    "a product with itself": """g (float[N, 4, 3] x) => (float[N, 4, 4] y) {
        y = com.microsoft.FusedMatMul <transB = 1> (x, x) }""",
    **{
        operator: "g (float[N, 4] x) => (float[N, 4] y) <float[4] b = {}>"
        f" {{ y = com.microsoft.{operator} ({inputs}) }}"
        for operator, inputs in (("Gelu", "x"), ("BiasGelu", "x, b"), ("FastGelu", "x, b"), ("QuickGelu", "x"))
    },
}


def net(name: str) -> onnx.ModelProto:
    return parse(NETS[name], domains=', "com.microsoft": 1')


@pytest.mark.parametrize("target", ["tract", "openvino", "opencv", "mnn"])
@pytest.mark.parametrize("name", NETS)
def test_fused_nodes_are_written(name: str, target: Any) -> None:
    model = net(name)
    lowered = rl.lower(model, target=target)
    assert {node.domain for node in lowered.graph.node} == {""}
    feed = random_feed(model, N=2)
    assert_close(run(lowered, feed), run(model, feed))


def test_they_stay_for_onnxruntime() -> None:
    model = net("a Gemm")
    assert rl.lower(model, target="onnxruntime").SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize("target", ["tract", "opencv", "mnn"])
def test_others_are_refused(target: Any) -> None:
    text = "g (float[N, 4] x) => (float[N, 4] y) { y = com.microsoft.BiasSplitGelu (x, x) }"
    with pytest.raises(rl.UnsupportedError, match=f"{target} has only operators of ONNX; let onnxruntime optimize"):
        rl.lower(parse(text, domains=', "com.microsoft": 1'), target=target)
