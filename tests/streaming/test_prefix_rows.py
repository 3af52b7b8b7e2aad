"""Attention over learned rows before the frames of the stream: a prefix or class token, prompts.

They are the first rows of keys and values, and positions count from them. The oracle is onnxruntime on the
original.
"""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from stream_models import assert_at_every_length, chunked, expected_of, over, plan_of, random
from stream_models import shown as states_of

import rnn_lowering as rl

WEIGHTS = {
    "one": random([1, 1, 4], 3),
    "two": random([1, 2, 4], 4),
    "positions": random([1, 60, 4], 5),
    "LOWER": np.tri(40, dtype=np.float32),
}
POSITIONS = (
    "sh = Shape (P)  n = Gather (sh, 1)  r = Range (0, n, 1)  i = Unsqueeze (r, [1])  j = Unsqueeze (r, [0])"
)
MASKS = {
    "all": "c = LessOrEqual (j, i)",
    "window": "d = Sub (i, j)  c0 = LessOrEqual (0, d)  c1 = Less (d, 5)  c = And (c0, c1)",
    "table": "ends = Unsqueeze (n, [0])  c0 = Slice (LOWER, [0], ends, [0])  c1 = Slice (c0, [0], ends, [1])"
    "  c = Cast <to = 9> (c1)",
    "ahead": "d = Sub (i, j)  c0 = LessOrEqual (-1, d)  c1 = Less (d, 5)  c = And (c0, c1)",
    "chunks": "p = Div (i, 3)  q = Div (j, 3)  c = LessOrEqual (q, p)",
}
NAMES = {1: "one", 2: "two"}


def net(mask: str, rows: int = 1, layers: int = 1, table: bool = False, end: str = "") -> Any:
    """A net that puts rows before the frames of X, and cuts them off behind its layers of attention."""
    nodes = f"""sx = Shape (X)  b = Slice (sx, [0], [1])  z = Concat <axis = 0> (b, [{rows}], [4])
        e = Expand ({NAMES[rows]}, z)  P = Concat <axis = 1> (e, X)  {POSITIONS}"""
    nodes += "  t = Unsqueeze (n, [0])  s = Slice (positions, [0], t, [1])  h0 = Add (P, s)" if table else ""
    nodes += f"  {MASKS[mask]}"
    h = "h0" if table else "P"
    for n in range(1, layers + 1):
        nodes += f"""  k{n} = Transpose <perm = [0, 2, 1]> ({h})  s{n} = MatMul ({h}, k{n})
            m{n} = Where (c, s{n}, -1e9)  w{n} = Softmax (m{n})  o{n} = MatMul (w{n}, {h})
            a{n} = Add (o{n}, {h})  h{n} = Tanh (a{n})"""
        h = f"h{n}"
    return over("float[batch, time, 4] X", f"{nodes}  {end or f'Y = Slice ({h}, [{rows}], far, [1])'}", WEIGHTS)


@pytest.mark.few(1)
@pytest.mark.parametrize("mask", ["all", "window", "table"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("layers", "table"), [(1, False), (2, True)])
def test_every_length_and_size_of_calls(mask: str, rows: int, layers: int, table: bool) -> None:
    model = net(mask, rows, layers, table)
    plan = assert_at_every_length(model, "time", 40 - rows if mask == "table" else 23)
    ends = [40] * (mask == "table") + [60] * table
    assert plan.get("max_frames") == (min(ends) - rows if ends else None)


@pytest.mark.parametrize("mask", ["all", "window"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("frames", [1, 3])
def test_fixed_shapes(mask: str, rows: int, frames: int) -> None:
    model = net(mask, rows, 2, True)
    stream = rl.lower(model, stream=f"time={frames}", max_frames=21)
    plan = plan_of(stream)
    for length in (3, 6, 21):
        feed = {"X": random([2, length, 4], length)}
        got, expected = chunked(stream, feed, [frames]), expected_of(plan, model, feed)
        np.testing.assert_allclose(got["Y"], expected["Y"], rtol=0, atol=1e-5)


def test_what_is_kept() -> None:
    """The last 4 rows of the window; the row before the frame, which each call computes again."""
    assert (
        states_of(plan_of(rl.lower(net("window"), stream="time=1")))
        == "x[batch, 1, 4]  k[batch, 4, 4]  v[batch, 4, 4]  t[1]"
    )


def test_the_comparison_finds_a_row_that_is_kept_twice() -> None:
    """The rows that come again in the next call are not among those that are kept."""
    model = net("all", 2, 2, True)
    stream = rl.lower(model, stream="time=1", max_frames=40)
    assert rl.verify_stream(model, stream).status == "verified"
    made = {name: node for node in stream.graph.node for name in node.output}
    cut = made[made["present_w1_k"].input[0]]
    for slot, name, number in ((1, "last_39", -39), (2, "to_the_end", 2**62)):
        cut.input[slot] = name
        stream.graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    assert rl.verify_stream(model, stream).status == "failed"


REFUSED = {
    "sees 1 frame ahead, and has 1 row before the frames of the stream": net("ahead"),
    "sees chunks of 3 frames, and has 2 rows before the frames of the stream": net("chunks", 2),
    "output 'Y' has 1 frame more than the stream": net("all", end="Y = Identity (h1)"),
    "joins values whose frames are not aligned": net(
        "all",
        end="""u = Transpose <perm = [0, 2, 1]> (P)  v = MatMul (X, u)  f = Slice (c, [1], far, [0])
            g = Where (f, v, -1e9)  l = Softmax (g)  Y = MatMul (l, P)""",
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(REFUSED[message], stream="time=1", delay=True)
    assert message in str(caught.value)
