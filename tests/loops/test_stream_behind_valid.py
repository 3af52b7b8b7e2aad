"""Loops and Scans behind a convolution without padding, in a stream: it has more frames than they have steps."""

import re
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from stream_models import assert_at_every_length, chunked, expected_of, over, plan_of, random, rows, shown

import rnn_lowering as rl

STEP = "a = Add (h, x)  h2 = Tanh (a)  y = Neg (h2)"
SCAN = f"""hn, s = Scan <body = b (float[2, 3] h, float[2, 3] x) => (float[2, 3] h2, float[2, 3] y) {{ {STEP} }},
        num_scan_inputs = 1> (h0[2, 3], t)  z = Transpose <perm = [1, 2, 0]> (s)"""
LOOP = f"""hn, s = Loop <body = b (int64 i, bool c, float[2, 3] h) => (bool c2, float[2, 3] h2, float[2, 3] y)
        {{ c2 = Identity (c)  x = Gather (t, i)  {STEP} }}> (n, True, h0[2, 3])
        z = Transpose <perm = [1, 2, 0]> (s)"""
TURN = "t = Transpose <perm = [2, 0, 1]>"
COUNT = "u = Shape (t)  n = Gather (u, 0)"

RIGHT = rows(f"""
# float[2, 3, time] X
2 late, 2 short: state0[2, 3]  x[2, 3, 2]  t[1]
    c = Conv (X, K[3, 3, 3])  {TURN} (c)  {SCAN}  Y = Neg (z)
    c = Conv (X, K[3, 3, 3])  {TURN} (c)  {COUNT}  {LOOP}  Y = Neg (z)
    c = Conv (X, K[3, 3, 3])  {TURN} (c)  u = Shape (X)  w = Gather (u, 2)  n = Sub (w, 2)  {LOOP}  Y = Neg (z)
    c = Conv (X, K[3, 3, 3])  {TURN} (c)  {SCAN}  u = Shape (z)  n = Gather (u, [2])  m = Neg (n)
        x = Slice (X, m, far, [2])  Y = Add (x, z)
3 late, 3 short: state0[2, 3]  x[2, 3, 2]  t[1]  x[2, 3, 1]
    c = Conv (X, K[3, 3, 3])  {TURN} (c)  {SCAN}  Y = Conv (z, L[3, 3, 2])
2 late, 2 short: state0[2, 3]  t[1]
    c = Slice (X, [2], far, [2])  {TURN} (c)  {SCAN}  Y = Neg (z)
1 late, 1 short: state0[2, 3]  x[2, 3, 2]  t[1]
    c = Conv <strides = [2]> (X, K[3, 3, 3])  {TURN} (c)  {SCAN}  Y = Neg (z)
    c = Conv <strides = [2]> (X, K[3, 3, 3])  {TURN} (c)  {COUNT}  {LOOP}  Y = Neg (z)
0 late, 0 short: state0[2, 3]  x[2, 3, 2]  t[1]
    c = Conv (X, K[3, 3, 3])  {TURN} (c)  {SCAN}  Y = Identity (hn)
0 late, 0 short: state0[2, 3]
    c = Pad (X, [0, 0, 0, 0, 0, 2])  {TURN} (c)  {SCAN}  Y = Slice (z, [0], [-2], [2])
""")

REFUSED = rows(f"""
# float[2, 3, time] X
reads not as many frames as the stream has; pad it in front by the 2 frames
    c = Slice (X, [0], [-2], [2])  {TURN} (c)  {SCAN}  Y = Neg (z)
reads 2 frames more than the stream has
    c = Pad (X, [0, 0, 2, 0, 0, 0])  {TURN} (c)  {SCAN}  Y = Neg (z)
returns its last state, which comes 2 frames after the sequence has ended
    c = Pad (X, [0, 0, 0, 0, 0, 2])  {TURN} (c)  {SCAN}  Y = Identity (hn)
uses the number of frames, which a stream never knows, other than as a size
    c = Conv (X, K[3, 3, 3])  {TURN} (c)  u = Shape (X)  w = Gather (u, 2)  n = Sub (w, 3)  {LOOP}  Y = Neg (z)
""")


@pytest.mark.few(1)
@pytest.mark.parametrize(("head", "late", "nodes"), RIGHT)
def test_each_length_and_chunking_is_right(head: str, late: str, nodes: str) -> None:
    plan = assert_at_every_length(over(head, nodes), "time")
    assert f"{plan['delay'].get('Y', 0)} late, {plan['short'].get('Y', 0)} short: {shown(plan)}" == late


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("to", ["scan", "loop", "unroll"])
def test_each_form_is_right(to: Any, frames: int) -> None:
    model = over(RIGHT[0][0], RIGHT[1][2])
    stepped = rl.lower(model, to, stream={"time": frames}, delay=True)
    feed = {"X": random((2, 3, 24), 1)}
    expected = expected_of(plan_of(stepped), model, feed)["Y"]
    np.testing.assert_allclose(chunked(stepped, feed, [frames])["Y"], expected, rtol=0, atol=1e-5)
    assert frames > 1 or {"Scan", "Loop"}.isdisjoint(node.op_type for node in stepped.graph.node)


@pytest.mark.parametrize(("head", "said", "nodes"), REFUSED)
def test_other_numbers_of_steps_are_refused(head: str, said: str, nodes: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=re.escape(said)):
        rl.StreamPass("time", True)(ir.from_proto(over(head, nodes)))
