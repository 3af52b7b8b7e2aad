"""A linear Resize along time in a stream: late where it reads a frame ahead, and right from the first frame on."""

import re

import onnx_ir as ir
import pytest
from stream_models import assert_at_every_length, over, rows, shown

import rnn_lowering as rl

TWICE, HALF = "(X, , [1.0, 1.0, 2.0])", "(X, , [1.0, 1.0, 0.5])"
LINEAR = 'Resize <mode = "linear"'
TORCH = f'{LINEAR}, coordinate_transformation_mode = "pytorch_half_pixel">'
SIZE = "s = Shape (X)  n = Gather (s, [2])"

RIGHT = rows(f"""
# float[2, 3, time] X
2 late: x[2, 3, 2]  t[1]
    Y = {LINEAR}> {TWICE}
    Y = {TORCH} {TWICE}
    {SIZE}  m = Mul (n, [2])  z = Concat <axis = 0> ([2, 3], m)  Y = {TORCH} (X, , , z)
2 late: x[2, 3, 1]
    Y = {LINEAR}, coordinate_transformation_mode = "asymmetric"> {TWICE}
4 late: x[2, 3, 2]  t[1]
    Y = {LINEAR}> (X, , [1.0, 1.0, 4.0])
2 late: x[2, 1, 3, 2]  t[1]
    a = Unsqueeze (X, [1])  r = {LINEAR}> (a, , [1.0, 1.0, 1.0, 2.0])  Y = Squeeze (r, [1])
2 late: x[2, 3, 2]  x[2, 3, 2]  t[1]
    c = Conv <pads = [2, 0]> (X, K[3, 3, 3])  r = {LINEAR}> (c, , [1.0, 1.0, 2.0])  Y = Neg (r)
4 late: x[2, 3, 2]  x[2, 3, 2]  t[1]
    c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  r = {LINEAR}> (c, , [1.0, 1.0, 2.0])  Y = Neg (r)
10 late: x[2, 3, 8]  x[2, 3, 2]  t[1]
    c = Conv <pads = [4, 4]> (X, K[3, 3, 9])  r = {LINEAR}> (c, , [1.0, 1.0, 2.0])  Y = Neg (r)
6 late, 4 short: x[2, 3, 2]  x[2, 3, 2]  t[1]
    c = Conv (X, K[3, 3, 3])  r = {LINEAR}> (c, , [1.0, 1.0, 2.0])  Y = Neg (r)
2 late: t[1]  h[1, 2, 4]  x[2, 3, 2]
    u = {LINEAR}> {TWICE}  t = Transpose <perm = [2, 0, 1]> (u)  v = GRU <hidden_size = 4> (t, W, R, B)
        w = Squeeze (v, [1])  Y = Transpose <perm = [1, 2, 0]> (w)
8 late: x[2, 3, 1]  x[2, 3, 1]  x[2, 3, 2]  t[1]  x[2, 3, 2]  x[2, 3, 2]  x[2, 3, 2]  x[2, 3, 8]
    c = Conv <strides = [2], pads = [1, 0]> (X, K[3, 3, 3])  d = Conv <strides = [2], pads = [1, 0]> (c, L[3, 3, 3])
        u = {LINEAR}> (d, , [1.0, 1.0, 2.0])  e = Add (u, c)  g = Conv <pads = [1, 1]> (e, M[3, 3, 3])
        v = {LINEAR}> (g, , [1.0, 1.0, 2.0])  Y = Add (v, X)
in time: none
    Y = {LINEAR}> {HALF}
    Y = {TORCH} {HALF}
    Y = {LINEAR}> (X, , [1.0, 1.0, 0.25])
    Y = {LINEAR}, coordinate_transformation_mode = "asymmetric"> {HALF}
    {SIZE}  m = Div (n, [2])  z = Concat <axis = 0> ([2, 3], m)  Y = {TORCH} (X, , , z)
1 late: x[2, 3, 2]  x[2, 3, 1]
    c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  r = {TORCH} (c, , [1.0, 1.0, 0.5])  Y = Neg (r)
""")

REFUSED = rows(f"""
# float[2, 3, time] X
interpolates between frames in a way that is not known; mode linear
    Y = {LINEAR}, coordinate_transformation_mode = "align_corners"> {TWICE}
    Y = {LINEAR}> (X, , [1.0, 1.0, 3.0])
    Y = {LINEAR}> (X, , [1.0, 1.0, 1.5])
    Y = {LINEAR}, antialias = 1> {HALF}
    c = Pad (X, [0, 0, 2, 0, 0, 0])  Y = {LINEAR}> (c, , [1.0, 1.0, 2.0])
    a = Unsqueeze (X, [0])  r = {LINEAR}> (a, , [1.0, 1.0, 2.0, 2.0])  Y = Squeeze (r, [0])
    a = Unsqueeze (X, [0])  r = Resize <mode = "cubic"> (a, , [1.0, 1.0, 1.0, 2.0])  Y = Squeeze (r, [0])
puts 1 frames at the end after the last 1 were cut off
    c = Slice (X, [0], [-1], [2])  u = {LINEAR}> (c, , [1.0, 1.0, 2.0])  Y = Pad (u, [0, 0, 2, 0, 0, 0])
""")


@pytest.mark.few(3)
@pytest.mark.parametrize(("head", "late", "nodes"), RIGHT)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_each_length_and_chunking_is_right(head: str, late: str, nodes: str) -> None:
    plan = assert_at_every_length(over(head, nodes), "time")
    delay, short = plan["delay"].get("Y"), plan["short"].get("Y")
    said = ", ".join([f"{delay} late"] * bool(delay) + [f"{short} short"] * bool(short)) or "in time"
    assert f"{said}: {shown(plan)}" == late


@pytest.mark.parametrize(("opset", "node"), [(9, "Upsample"), (10, "Resize")])
def test_old_versions_of_the_operator(opset: int, node: str) -> None:
    """Their coordinates are asymmetric."""
    nodes = f'Y = {node} <mode = "linear"> (X, [1.0, 1.0, 2.0])'
    plan = assert_at_every_length(over("float[2, 3, time] X", nodes, opset=opset), "time")
    assert shown(plan) == "x[2, 3, 1]"


@pytest.mark.parametrize(("nodes", "shortest"), [(f"Y = {LINEAR}> {HALF}", 2), (f"Y = {TORCH} {HALF}", 4)])
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_a_single_result_in_the_coordinates_of_torch_is_the_first_frame(nodes: str, shortest: int) -> None:
    plan = rl.StreamPass("time")(ir.from_proto(over("float[2, 3, time] X", nodes))).plan
    assert plan.shortest == shortest


@pytest.mark.parametrize(("head", "said", "nodes"), REFUSED)
def test_other_interpolations_are_refused(head: str, said: str, nodes: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=re.escape(said)):
        rl.StreamPass("time", True)(ir.from_proto(over(head, nodes)))
