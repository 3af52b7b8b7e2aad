"""What OpenVINO computes wrongly around recurrent nodes is written in another way, with the same numbers."""

from running import assert_close, operators, run
from texts import parse, random_feed

import rnn_lowering as rl

ROTARY = """g (float[N, T, 4] x, float[T, 1] p) => (float[N, T, 4] y)
    <int64[1] a = {0}, int64[1] b = {2}, int64[1] c = {4}, int64[1] last = {2}> {
    l = Slice (x, a, b, last) r = Slice (x, b, c, last) n = Neg (r) t = Concat <axis = -1> (n, l)
    cos = Cos (p) sin = Sin (p) u = Mul (x, cos) v = Mul (t, sin) y = Add (u, v)
}"""


def test_a_rotary_embedding_is_a_difference() -> None:
    """OpenVINO has a kernel for the sum, which reads beyond tables of one column, and rounds others by 0.005."""
    net = parse(ROTARY, 17)
    lowered, report = rl.lower(net, target="openvino", full=True)
    assert report.notes == ["openvino computes rotary embeddings wrongly: wrote 1 sums as differences"]
    assert "Add" not in operators(lowered)
    feed = random_feed(net, N=2, T=5)
    assert_close(run(lowered, feed), run(net, feed))
