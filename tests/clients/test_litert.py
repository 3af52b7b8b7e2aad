"""What is special to LiteRT: onnx2tf takes a minute to convert a large net."""

from pathlib import Path

import pytest
from paths import MODELS
from texts import parse

from clients.driving import assert_lowered_right, drive, judge, with_feeds
from clients.trials import lowered, real_original, real_truth

GTCRN = "github/Xiaobin-Rong__gtcrn/gtcrn_simple_v4.onnx"


@pytest.mark.shared
@pytest.mark.environments("litert")
@pytest.mark.skipif(not (MODELS / GTCRN).exists(), reason="the stored models are not there")
def test_gtcrn_computes_a_frame(tmp_path: Path) -> None:
    job = lowered(real_original(GTCRN, "auto0"), "litert")
    got = drive("litert", {"a frame": job}, tmp_path, seconds=400)["a frame"]
    assert judge(got, real_truth(GTCRN, "auto0")) == ("right", "")


SUMS = """g (float[2, 3, 6, 6] x, float[2, 2, 6, 6] g) => (float[a, b, c, d] y)
    <float[2, 3, 3, 3] v = {}, float[2, 5, 3, 3] e = {}, float[2, 2, 3, 3] w = {}, float[4] s = {1, 1, 2, 2}> {
    h = Conv <pads = [1, 1, 1, 1]> (x, v)  t = Add (g, h)  q = Concat <axis = 1> (t, x)
    r = Conv <pads = [1, 1, 1, 1]> (q, e)  BEHIND }"""
JOINED_SUMS = {
    "before a Conv": "a = Add (t, r)  y = Conv (a, w)",
    "in front of an activation": "p = Add (r, t)  a = Tanh (p)  y = MaxPool <kernel_shape = [2, 2]> (a)",
    "behind an activation": "u = Tanh (t)  a = Add (u, r)  y = AveragePool <kernel_shape = [2, 2]> (a)",
    "in a Resize": 'a = Add (t, r)  y = Resize <mode = "linear"> (a, , s)',
}


@pytest.mark.environments("litert")
def test_a_sum_of_a_sum_that_is_joined_too(tmp_path: Path) -> None:
    """As networks that refine what they estimate have it, such as RAFT."""
    nets = {name: parse(SUMS.replace("BEHIND", text), 17) for name, text in JOINED_SUMS.items()}
    assert_lowered_right("litert", with_feeds(nets), tmp_path)


READERS = ("Relu (h)", "Clip (h, none, six)", "Max (h, none)", "Identity (h)", "Dropout (h)", "Reshape (h, same)")


@pytest.mark.environments("litert")
def test_outputs_that_nodes_read(tmp_path: Path) -> None:
    """As a voice detector has its states, which its head reads behind a Relu."""
    text = """g (float[2, 3] x) => (float[2, 3] h, float[2, 3] y)
        <float none = {0}, float six = {6}, int64[2] same = {2, 3}> { h = Mul (x, x)  r = READER  y = Neg (r) }"""
    nets = {reader: parse(text.replace("READER", reader), 17) for reader in READERS}
    assert_lowered_right("litert", with_feeds(nets), tmp_path)


@pytest.mark.environments("litert")
def test_nodes_of_a_single_tensor(tmp_path: Path) -> None:
    """Also where their results are outputs of the model."""
    text = "g (float[2, 3] x) => (float[2, 3] h, float[2, 3] y) { h = Neg (x)  r = NODE (h)  y = Tanh (r) }"
    nets = {node: parse(text.replace("NODE", node), 17) for node in ("Concat <axis = 0>", "Max", "Sum", "Mean")}
    returned = "g (float[2, 3] x) => (float[2, 3] y) { h = Neg (x)  y = Sum (h) }"
    assert_lowered_right("litert", with_feeds({**nets, "an output": parse(returned, 17)}), tmp_path)


EINSUM = """g (float[2, 3, 4] x, float[4, 5] w, float[2, 6, 5] z) => (float[2, 3, 6] y)
    { y = Einsum <equation = "bxi,ij,byj->bxy"> (x, w, z) }"""
SIGNAL = """g (float[2, 3, 9] x) => (float[2, 4, 7] y) <uint8[4, 3, 3] w = {W}, uint8 z = {7}> {
    q, s, a = DynamicQuantizeLinear (x)  c = ConvInteger (q, w, a, z)  y = Cast <to = 1> (c) }"""


@pytest.mark.environments("litert")
def test_nodes_that_onnx2tf_has_in_part(tmp_path: Path) -> None:
    """It has an Einsum of two operands, and a ConvInteger of images."""
    texts = {"three operands": EINSUM, "a signal": SIGNAL.replace("W", ", ".join(map(str, range(20, 56))))}
    assert_lowered_right("litert", with_feeds({name: parse(text, 17) for name, text in texts.items()}), tmp_path)
