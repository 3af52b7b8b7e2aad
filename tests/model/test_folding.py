"""What follows from constants is folded as onnxruntime computes it, or stays where it may be computed otherwise."""

import numpy as np
import onnx_ir as ir
import pytest
from running import assert_close, operators, run
from texts import parse

import rnn_lowering as rl
from rnn_lowering.model.folding import with_constants

CONSTANTS = """int64[2, 3] x = {5, -3, 2, 0, 7, -1}, int64[6] v = {3, 1, 1, 2, 1, 3}, bool[3] b = {1, 0, 1},
    int64[1] one = {1}, int64[1] four = {4}, int64 last = {-1}, int64[1] axis = {-1}, int64[2] onoff = {-1, 5},
    int64[4] pads = {1, 2, 0, 3}, int64[4] few = {1, 2, 0, 1}, int64[2] pads1 = {1, 2}, int64 nine = {9},
    int64[2] size = {3, 4}, int64[2, 2] at = {0, 2, -1, 1}, int64[3] rows = {2, 1, 2}"""
FOLDED = {
    "ArgMax": "y = ArgMax <axis = -1, keepdims = 0> (v)",
    "ArgMax, the last": "y = ArgMax <axis = 0, select_last_index = 1> (v)",
    "ArgMin": "y = ArgMin <axis = 0> (v)",
    "CenterCropPad": "y = CenterCropPad (x, size)",
    "Compress": "y = Compress <axis = -1> (x, b)",
    "Compress without an axis": "y = Compress (v, b)",
    "CumSum along a vector": "y = CumSum <reverse = 1, exclusive = 1> (x, one)",
    "EyeLike": "y = EyeLike <k = 1> (x)",
    "GatherElements": "y = GatherElements <axis = 1> (x, at)",
    "MatMul": "t = Transpose (x) y = MatMul (x, t)",
    "NonZero": "y = NonZero (x)",
    "OneHot": "y = OneHot (x, four, onoff)",
    "OneHot along the first axis": "n = Squeeze (four) y = OneHot <axis = 0> (x, n, onoff)",
    "Pad": "y = Pad (x, pads, nine)",
    "Pad of some axes": "y = Pad (x, pads1, , axis)",
    "Pad by edges": 'y = Pad <mode = "edge"> (x, pads)',
    "Pad by reflection": 'y = Pad <mode = "reflect"> (x, few)',
    "Pad by wrapping": 'y = Pad <mode = "wrap"> (x, few)',
    "ReverseSequence": "y = ReverseSequence <batch_axis = 1, time_axis = 0> (x, rows)",
    "ScatterElements": 'y = ScatterElements <axis = 1, reduction = "add"> (x, at, at)',
    "TopK": "i, y = TopK <axis = 0> (v, four)",
    "TopK of the smallest": "i, y = TopK <largest = 0> (x, one)",
    "Where of an Equal": "m = Equal (x, last) y = Where (m, one, x)",
}


@pytest.mark.parametrize("name", FOLDED)
def test_integers_are_folded_as_they_are_computed(name: str) -> None:
    net = parse(f"g (float[1] z) => (int64 y) <{CONSTANTS}> {{ {FOLDED[name]} }}", 18)
    net.graph.output[0].type.tensor_type.ClearField("shape")
    copy = with_constants(ir.from_proto(net))
    assert copy is not None
    folded = ir.to_proto(copy)
    assert operators(folded) == {"Identity"}
    given = {"z": np.zeros(1, np.float32)}
    assert_close(run(folded, given), run(net, given, optimize=False))


STAY = {
    "TopK in any order": "i, y = TopK <axis = -2, sorted = 0> (x, one)",
    "NonZero of a number": "y = NonZero (nine)",
    "TopK of what is no number": "f = Cast <to = 1> (v) z0 = Sub (f, f) n = Div (z0, z0) i, y = TopK (n, one)",
}


@pytest.mark.parametrize("name", STAY)
def test_what_may_be_computed_otherwise_stays(name: str) -> None:
    net = parse(f"g (float[1] z) => (int64 y) <{CONSTANTS}> {{ {STAY[name]} }}", 18)
    copy = with_constants(ir.from_proto(net))
    assert copy is None or name.split()[0] in {node.op_type for node in copy.graph}


def test_pads_of_integers_decide_how_often_a_loop_runs() -> None:
    """As a dilated convolution of Keras has them: a Loop that they count can be unrolled."""
    net = parse(
        """g (float[N, 4] x) => (float[N, 4] y) <int64[1] two = {2}, int64[2] pads = {0, 1}, bool yes = {1},
        int64 first = {0}> {
        padded = Pad (two, pads) n = Gather (padded, first)
        y = Loop <body = b (int64 i, bool on, float[N, 4] s) => (bool go, float[N, 4] t) {
        go = Identity (on) t = Add (s, s) }> (n, yes, x) }""",
        17,
    )
    lowered = rl.lower(net, target="opencv")
    assert "Loop" not in operators(lowered)
    given = {"x": np.ones((2, 4), np.float32)}
    assert_close(run(lowered, given), run(net, given))
