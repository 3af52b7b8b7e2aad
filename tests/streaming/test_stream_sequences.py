"""Sequences in a stream: a list of parts, of which the exporter does not know the length."""

import onnx_ir as ir
import pytest
from stream_models import assert_at_every_length, over, rows

import rnn_lowering as rl

NETS = rows("""
# float[batch, time, 3] X
right
    q = SplitToSequence <axis = 2> (X, [1, 2])  a = SequenceAt (q, 0)  b = SequenceAt (q, 1)
        s = Sigmoid (a)  Y = Mul (b, s)
    q = SplitToSequence <axis = 2> (X, 2)  a = SequenceAt (q, 0)  b = SequenceAt (q, -1)  Y = Sub (a, b)
    q = SplitToSequence <axis = -1> (X)  a = SequenceAt (q, 0)  b = SequenceAt (q, -1)  Y = Sub (a, b)
    q = SplitToSequence <axis = 2, keepdims = 0> (X)  a = SequenceAt (q, 0)  b = SequenceAt (q, 2)  Y = Sub (a, b)
    q = SplitToSequence <axis = 2> (X, [1, 2])  Y = ConcatFromSequence <axis = 2> (q)
    n = Neg (X)  q = SequenceConstruct (X, n)  Y = SequenceAt (q, 1)
    n = Neg (X)  q = SequenceConstruct (X, n)  Y = ConcatFromSequence <axis = 2, new_axis = 1> (q)
    e = SequenceEmpty ()  n = Neg (X)  q = SequenceInsert (e, X)  r = SequenceInsert (q, n, 0)
        o = SequenceErase (r, -2)  Y = SequenceAt (o, 0)
    q = SplitToSequence <axis = 2> (X, [1, 2])  a = SequenceAt (q, 1)  t = Transpose <perm = [0, 2, 1]> (a)
        p = Pad (t, [0, 0, 2, 0, 0, 0])  Y = Conv (p, K[4, 2, 3])
""")

REFUSED = rows("""
# float[2, 12, 3] X
SplitToSequence node '-> q' in main graph: is not known to act on each frame alone
    q = SplitToSequence <axis = 1> (X, 12)  a = SequenceAt (q, 0)  Y = Neg (a)
    q = SplitToSequence <axis = 1> (X, [12])  a = SequenceAt (q, 0)  Y = Neg (a)
    q = SplitToSequence <axis = 1> (X)  a = SequenceAt (q, -1)  Y = Sub (X, a)
    q = SplitToSequence <axis = 1> (X)  a = ConcatFromSequence <axis = 1> (q)  Y = Neg (a)
    q = SplitToSequence <axis = 1> (X)  n = SequenceLength (q)  f = Cast <to = 1> (n)  Y = Div (X, f)
    q = SplitToSequence <axis = 2> (X)  Y = SequenceAt (q, 3)
""")


@pytest.mark.few(5)
@pytest.mark.parametrize("opset", [12, 18])
@pytest.mark.parametrize("nodes", [nodes for _, _, nodes in NETS])
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_each_reader_gets_its_element(nodes: str, opset: int) -> None:
    assert_at_every_length(over(NETS[0][0], nodes, opset=opset), "time")


@pytest.mark.parametrize(("head", "said", "nodes"), REFUSED)
def test_parts_of_time_are_refused(head: str, said: str, nodes: str) -> None:
    """Also where the exporter fixed the number of frames, and so the length of the list."""
    with pytest.raises(rl.UnsupportedError, match=said):
        rl.StreamPass("X:1", True)(ir.from_proto(over(head, nodes)))


@pytest.mark.filterwarnings("ignore:no state is carried")
def test_a_list_may_be_longer_than_what_is_unrolled() -> None:
    nodes = "q = SplitToSequence <axis = 2> (X, 1)  a = SequenceAt (q, 0)  b = SequenceAt (q, 599)  Y = Sub (a, b)"
    work = ir.from_proto(over("float[batch, time, 600] X", nodes))
    rl.StreamPass("time")(work)
    assert [node.op_type for node in work.graph] == ["Split", "Sub"]
