"""Random inputs: sizes and values that models accept which take more than any."""

import numpy as np
import onnx
import pytest
from texts import parse

import rnn_lowering as rl

pytestmark = pytest.mark.usefixtures("workers_here")

VOICE = """
main (float[?,?] samples, float[2,?,4] state, int64 rate) => (float[?,?,?] Y_h, float[?,?,?] h0) <
    int64[4] ends = {0, 0, 0, 64}, int64 fast = {16000}, int64 zero = {0}, int64 one = {1}, int64[1] first = {0},
    int64[1] last = {2}, float[1,16,1] W = {}, float[1,16,4] R = {}
> {
    padded = Pad <mode="reflect"> (samples, ends)
    turned = Transpose <perm=[1, 0]> (padded)
    X = Unsqueeze (turned, last)
    is_fast = Equal (rate, fast)
    h = Gather <axis=0> (state, zero)
    c = Gather <axis=0> (state, one)
    h0 = If (is_fast) <
        then_branch = yes () => (float[?,?,?] yes_h) { yes_h = Unsqueeze (h, first) },
        else_branch = no () => (float[?,?,?] no_h) { twice = Add (h, h) no_h = Unsqueeze (twice, first) }
    >
    c0 = Unsqueeze (c, first)
    [lstm] , Y_h = LSTM <hidden_size=4> (X, W, R, "", "", h0, c0)
}
"""
"""As voice detectors: both states in one input of any batch size, a reflecting Pad, a number that decides."""


def test_a_state_of_any_batch_size_and_samples_to_reflect() -> None:
    original = parse(VOICE)
    found = rl.verify(original, rl.lower(original))
    assert str(found).startswith("verified (onnxruntime): 3 runs")


@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
def test_both_branches_of_a_comparison_run(branch: str) -> None:
    original = parse(VOICE)
    lowered = rl.lower(original)
    (node,) = (node for node in lowered.graph.node if node.output[0] == "h0")
    (body,) = (attribute.g for attribute in node.attribute if attribute.name == branch)
    body.node[-1].output[0] = "before"
    body.initializer.append(onnx.numpy_helper.from_array(np.array(1.1, np.float32), f"{branch}_factor"))
    body.node.append(onnx.helper.make_node("Mul", ["before", f"{branch}_factor"], [body.output[0].name]))
    assert rl.verify(original, lowered).status == "failed"
