"""What esp-ppq computes wrongly without an error is replaced or refused."""

import numpy as np
import pytest
from cases import Case, model
from running import assert_close, operators, run
from texts import parse, random_feed

import rnn_lowering as rl

REPLACED = {
    "Gather": "(float[N, 4, 3] x) => (float[N, 4] y) <int64 i = {1}> { y = Gather <axis = -1> (x, i) }",
    "Squeeze": "(float[N, 1, 1] x) => (float[N] y) <int64[2] a = {-2, -1}> { y = Squeeze (x, a) }",
    "Unsqueeze": "(float[N, 4] x) => (float[N, 4, 1, 1] y) <int64[2] a = {-1, -2}> { y = Unsqueeze (x, a) }",
    "Squeeze at 11": "(float[N, 1, 1] x) => (float[N] y) { y = Squeeze <axes = [-2, -1]> (x) }",
    "Unsqueeze at 11": "(float[N, 4] x) => (float[N, 4, 1, 1] y) { y = Unsqueeze <axes = [-1, -2]> (x) }",
    "LogSoftmax": "(float[N, 4] x) => (float[N, 4] y) { y = LogSoftmax (x) }",
}
REFUSED = {
    "pads": "(float[1, 2, 4, 4] x) => (float[1, 2, a, b] y) <float[2, 2, 3, 3] W = {}>"
    " { y = ConvTranspose <pads = [2, 1, 2, 1]> (x, W) }",
    "Max node": "(float[N, 4] x) => (float[N, 4] y) { y = Max (x) }",
    "Split node": "(float[N, 3] x) => (float[N, 2] y, float[N, 1] z)"
    " { y, z = Split <axis = 1, num_outputs = 2> (x) }",
    "Shape node": "(float[N, 4] x) => (int64[1] y) { y = Shape <start = 1> (x) }",
}
OPSETS = {"Split node": 18}
FINE = {
    "Gather": "(float[N, 4, 3] x) => (float[N, 3] y) <int64 i = {1}> { y = Gather <axis = 1> (x, i) }",
    "Squeeze": "(float[N, 1] x) => (float[N] y) <int64[1] a = {-1}> { y = Squeeze (x, a) }",
    "Softmax": "(float[N, 4, 3] x) => (float[N, 4, 3] y) { y = Softmax <axis = 1> (x) }",
    "Identity": "(float[N, 4] x) => (float[N, 4] y) { a = Identity (x) y = Neg (a) }",
    "ConvTranspose": "(float[1, 2, 4, 4] x) => (float[1, 2, a, b] y) <float[2, 2, 3, 3] W = {}>"
    " { y = ConvTranspose <pads = [1, 1, 1, 1]> (x, W) }",
}


@pytest.mark.parametrize("name", REPLACED)
def test_negative_axes_become_others(name: str) -> None:
    original = parse(f"g {REPLACED[name]}", 11 if "11" in name else 17)
    lowered, report = rl.lower(original, target="espdl", full=True)
    assert [each.node.operator for each in report.replaced] == [name.split()[0]]
    assert rl.lower(lowered, target="espdl").SerializeToString() == lowered.SerializeToString()
    feed = random_feed(original, N=5)
    assert_close(run(lowered, feed), run(original, feed), "float32")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replaced_is_refused(name: str) -> None:
    original = parse(f"g {REFUSED[name]}", OPSETS.get(name, 17))
    with pytest.raises(rl.UnsupportedError, match=name):
        rl.lower(original, target="espdl")


def test_a_softmax_of_several_axes_is_that_of_rows() -> None:
    original = parse("g (float[N, 4, 3] x) => (float[N, 4, 3] y) { y = Softmax <axis = 1> (x) }", 11)
    lowered, feed = rl.lower(original, target="espdl"), random_feed(original, N=5)
    assert lowered.opset_import[0].version == 13
    assert_close(run(lowered, feed), run(original, feed))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FINE)
def test_others_stay(name: str) -> None:
    original = parse(f"g {FINE[name]}")
    assert rl.lower(original, target="espdl").SerializeToString() == original.SerializeToString()


def test_no_output_of_a_stream_is_an_identity() -> None:
    step = rl.lower(model(Case("stream", "GRU", x="length"), 17), target="espdl", stream="seq=1")
    made = {output: node.op_type for node in step.graph.node for output in node.output}
    assert "Identity" not in {made[output.name] for output in step.graph.output}
    assert "Max" in operators(step)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_are_refused(dtype: str) -> None:
    """A Sub of them is float32 there."""
    with pytest.raises(rl.UnsupportedError, match=f"espdl has no {np.dtype(dtype).name}"):
        rl.lower(model(Case("other", "LSTM", dtype=dtype), 17), target="espdl")
