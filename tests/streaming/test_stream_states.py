"""States of shifts, counters, sums and caches, the first frame, and initial states that are computed."""

from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from cases import Array
from stream_models import (
    assert_streams,
    chunked,
    expected_of,
    int64_at_run_time,
    net,
    plan_of,
    random,
    recurrent,
    streamed,
    whole,
)

import rnn_lowering as rl

X = {"X": random((2, 17, 3))}
NUMBERS: dict[str, Array] = {f"i{n}": np.array([n]) for n in (0, 1, 2, 3, 4)} | {
    **{f"s{n}": np.array(n) for n in (0, 1, 2)},
    **{"minus1": np.array([-1]), "minus2": np.array([-2]), "minus3": np.array([-3]), "far": np.array([2**63 - 1])},
    **{"pad1": np.array([0, 1, 0, 0, 0, 0]), "swap": np.array([0, 1, 0, 0, -1, 0])},
    **{"swap2": np.array([0, 2, 0, 0, -2, 0]), "front2": np.array([0, 2, 0, 0, 0, 0])},
    **{"zeros1": np.zeros((2, 1, 3), np.float32), "zero": np.array(0, np.float32)},
    **{
        "column": np.array([-1, 1]),
        "window": np.array([[0], [1], [2]]),
        "apart": np.array([[0], [2]]),
        "both": np.array([[0], [1]]),
    },
    **{"freq": random((1, 3), 5), "places": random((400, 3), 6)},
    **{"kernel": random((3, 3, 3), 8), "into_h": random((2, 4), 9), "late1": np.array([0, 0, 0, 0, 1, 0])},
}
T = "s = Shape (X)  t = Gather (s, s1)  tv = Unsqueeze (t, i0)"
COUNT = f"{T}  r = Range (s0, t, s1)"


def over_time(nodes: str, inputs: str = "", outputs: str = "float[p, q, r] Y", opset: int = 17) -> onnx.ModelProto:
    """A net over X [batch, time, 3]."""
    used = {name: array for name, array in NUMBERS.items() if f"{name}" in nodes}
    held = {**used, **(recurrent("GRU", 3, 4) if "GRU" in nodes else {})}
    return net(f"g (float[batch, time, 3] X{inputs}) => ({outputs}) {{ {nodes} }}", held, opset)


STATES: dict[str, tuple[str, list[str]]] = {
    "a cut and a padding": ("c = Slice (X, i0, minus1, i1)  Y = Pad (c, pad1)", ["x"]),
    "a padding of 1 and -1": ("Y = Pad (X, swap)", ["x"]),
    "a padding of 2 and -2": ("Y = Pad (X, swap2)", ["x"]),
    "zeros like the first frame": (
        """f = Slice (X, i0, i1, i1)  q = Shape (f)  z = ConstantOfShape (q)  c = Slice (X, i0, minus1, i1)
            Y = Concat <axis = 1> (z, c)""",
        ["x"],
    ),
    "zeros expanded": (
        """f = Slice (X, i0, i1, i1)  q = Shape (f)  z = Expand (zero, q)  c = Slice (X, i0, minus1, i1)
            Y = Concat <axis = 1> (z, c)""",
        ["x"],
    ),
    "a padding and a cut": ("p = Pad (X, pad1)  Y = Slice (p, i0, minus1, i1)", ["x"]),
    "the difference to the frame before": (
        "c = Slice (X, i0, minus1, i1)  b = Pad (c, pad1)  Y = Sub (X, b)",
        ["x"],
    ),
    "the first frame repeated": (
        """f = Slice (X, i0, i1, i1)  c = Slice (X, i0, minus1, i1)  b = Concat <axis = 1> (f, c)
            Y = Sub (X, b)""",
        ["t", "x"],
    ),
    "the first frame repeated by a Pad": (
        'p = Pad <mode = "edge"> (X, pad1)  Y = Slice (p, i0, minus1, i1)',
        ["t", "x"],
    ),
    "the first frame twice in front of a convolution": (
        """p = Pad <mode = "edge"> (X, front2)  q = Transpose <perm = [0, 2, 1]> (p)
            Y = Conv <kernel_shape = [3]> (q, kernel)""",
        ["t", "x"],
    ),
    "counted frames": (f"{COUNT}  c = Unsqueeze (r, i1)  f = Cast <to = 1> (c)  Y = Add (X, f)", ["t"]),
    "frames counted in floats": (
        f"""{T}  tf = Cast <to = 1> (t)  z = Cast <to = 1> (s0)  o = Cast <to = 1> (s1)  r = Range (z, tf, o)
            c = Reshape (r, column)  a = Mul (c, freq)  n = Sin (a)  Y = Add (X, n)""",
        ["t"],
    ),
    "frames counted from 1": (
        f"""{T}  n = Add (t, s1)  r = Range (s1, n, s1)  c = Unsqueeze (r, i1)  f = Cast <to = 1> (c)
            Y = Div (X, f)""",
        ["t"],
    ),
    "frames counted by twos": (
        f"{COUNT}  d = Mul (r, s2)  e = Add (d, s1)  c = Unsqueeze (e, i1)  f = Cast <to = 1> (c)  Y = Add (X, f)",
        ["t"],
    ),
    "counted twice": (
        f"""{COUNT}  c = Unsqueeze (r, i1)  f = Cast <to = 1> (c)  g = Neg (f)  h = Sqrt (f)  a = Add (X, g)
            Y = Add (a, h)""",
        ["t"],
    ),
    "rows of a table": (f"{COUNT}  p = Gather (places, r)  Y = Add (X, p)", ["t"]),
    "rows of a table for each row of the batch": (
        f"""{COUNT}  u = Unsqueeze (r, i0)  n = Gather (s, s0)  nv = Unsqueeze (n, i0)
            q = Concat <axis = 0> (nv, tv)  e = Expand (u, q)  p = Gather (places, e)  Y = Add (X, p)""",
        ["t"],
    ),
    "a table that is cut": (f"{T}  p = Slice (places, i0, tv, i0)  Y = Add (X, p)", ["t"]),
    "the sum so far": ("Y = CumSum (X, s1)", ["sum"]),
    "the sum of the frames before": ("Y = CumSum <exclusive = 1> (X, s1)", ["sum"]),
    "the sum of padded frames": (
        "p = Pad (X, front2)  c = CumSum (p, s1)  Y = Slice (c, i0, minus2, i1)",
        ["x", "sum"],
    ),
    "the mean so far": (
        f"""a = CumSum (X, s1)  {T}  n = Add (t, s1)  r = Range (s1, n, s1)  c = Unsqueeze (r, i1)
            f = Cast <to = 1> (c)  m = Div (a, f)  Y = Sub (X, m)""",
        ["t", "sum"],
    ),
    "the number of frames so far": (
        f"""{T}  q = Concat <axis = 0> (i1, tv, i1)  o = ConstantOfShape <value = float[1] {{1.0}}> (q)
            n = CumSum (o, s1)  a = CumSum (X, s1)  Y = Div (a, n)""",
        ["sum", "sum"],
    ),
    "windows by a table": (
        """p = Pad (X, front2)  q = Shape (p)  n = Gather (q, s1)  m = Sub (n, s2)  r = Range (s0, m, s1)
            u = Unsqueeze (r, i0)  w = Add (u, window)  g = Gather <axis = 1> (p, w)
            Y = ReduceMean <axes = [1], keepdims = 0> (g)""",
        ["x"],
    ),
    "windows by a table, dilated": (
        """p = Pad (X, front2)  q = Shape (p)  n = Gather (q, s1)  m = Sub (n, s2)  r = Range (s0, m, s1)
            u = Unsqueeze (r, i0)  w = Add (u, apart)  g = Gather <axis = 1> (p, w)
            Y = ReduceMean <axes = [1], keepdims = 0> (g)""",
        ["x"],
    ),
}


@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize("label", STATES)
def test_states_are_carried(label: str) -> None:
    nodes, kinds = STATES[label]
    plan = plan_of(assert_streams(over_time(nodes), "time", X))
    assert [s["state"] for s in plan["states"]] == kinds


CACHES: dict[str, tuple[str, str, str, list[str]]] = {
    "returned": (
        "c = Concat <axis = 1> (cache, X)  n = Slice (c, minus2, far, i1)  Y = Slice (c, i0, minus2, i1)",
        "float[batch, 2, 3] cache",
        "float[p, q, r] Y, float[batch, 2, 3] n",
        ["cache"],
    ),
    "turned before and behind": (
        """o = Transpose <perm = [0, 2, 1]> (cache)  x = Transpose <perm = [0, 2, 1]> (X)
            c = Concat <axis = 2> (o, x)  m = Slice (c, minus2, far, i2)  n = Transpose <perm = [0, 2, 1]> (m)
            Y = Slice (c, i0, minus2, i2)""",
        "float[batch, 2, 3] cache",
        "float[p, q, r] Y, float[batch, 2, 3] n",
        ["cache"],
    ),
    "not returned": (
        "c = Concat <axis = 1> (cache, X)  Y = Slice (c, i0, minus2, i1)",
        "float[batch, 2, 3] cache",
        "float[p, q, r] Y",
        ["past_frames_t", "past_c_x"],
    ),
    "of two layers in one input": (
        """a, b = Split <axis = 0, num_outputs = 2> (cache)  a1 = Squeeze (a, i0)  b1 = Squeeze (b, i0)
            c = Concat <axis = 1> (a1, X)  m = Slice (c, minus2, far, i1)
            h = Slice (c, i0, minus2, i1)  r = Relu (h)
            d = Concat <axis = 1> (b1, r)  o = Slice (d, minus2, far, i1)  Y = Slice (d, i0, minus2, i1)
            m1 = Unsqueeze (m, i0)  o1 = Unsqueeze (o, i0)  n = Concat <axis = 0> (m1, o1)""",
        "float[2, batch, 2, 3] cache",
        "float[p, q, r] Y, float[2, batch, 2, 3] n",
        ["cache"],
    ),
    "returned in another order": (
        """a, b = Split <axis = 0, num_outputs = 2> (cache)  a1 = Squeeze (a, i0)  b1 = Squeeze (b, i0)
            c = Concat <axis = 1> (a1, X)  m = Slice (c, minus2, far, i1)
            h = Slice (c, i0, minus2, i1)  r = Relu (h)
            d = Concat <axis = 1> (b1, r)  o = Slice (d, minus2, far, i1)  Y = Slice (d, i0, minus2, i1)
            m1 = Unsqueeze (m, i0)  o1 = Unsqueeze (o, i0)  n = Concat <axis = 0> (o1, m1)""",
        "float[2, batch, 2, 3] cache",
        "float[p, q, r] Y, float[2, batch, 2, 3] n",
        ["past_frames_t", "past_c_x", "past_d_x"],
    ),
}


@pytest.mark.parametrize("label", CACHES)
def test_caches_of_the_caller(label: str) -> None:
    nodes, given, outputs, names = CACHES[label]
    model = over_time(nodes, f", {given}", outputs, 18)
    shape = (2, 2, 2, 3) if "two" in label or "order" in label else (2, 2, 3)
    feed = {**X, "cache": random(shape, 1)}
    stepped = streamed(model, "time")
    assert [s["input"] for s in plan_of(stepped)["states"]] == names
    expected = whole(model, feed)
    states = {"cache": feed["cache"]} if names == ["cache"] else {}
    for sizes in ([1], [5], [3, 1, 4, 7, 2]):
        for name, array in chunked(stepped, feed, sizes, states).items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6, err_msg=f"{name} {sizes}")


INITIAL = {
    "from a side input": ("m = Gemm (side, into_h)  h = Tanh (m)  h0 = Unsqueeze (h, i0)", "float[batch, 2] side"),
    "a slice of an input that nobody returns": ("h0 = Slice (side, i0, i1, i0)", "float[3, batch, 4] side"),
    "from the number of rows": (
        """s = Shape (X)  n = Gather (s, s0)  r = Range (s0, n, s1)  f = Cast <to = 1> (r)  c = Unsqueeze (f, i1)
            d = Unsqueeze (c, i0)  h0 = Concat <axis = 2> (d, d, d, d)""",
        "",
    ),
}


@pytest.mark.parametrize("label", INITIAL)
def test_initial_states_that_are_computed(label: str) -> None:
    nodes, given = INITIAL[label]
    model = over_time(
        f"""{nodes}  x = Transpose <perm = [1, 0, 2]> (X)
            y = GRU <hidden_size = 4> (x, W, R, B, , h0)  Y = Squeeze (y, i1)""",
        f", {given}" if given else "",
    )
    side: dict[str, Any] = {} if not given else {"side": random((2, 2) if "2]" in given else (3, 2, 4), 3)}
    plan = plan_of(assert_streams(model, "time", {**X, **side}))
    assert [s["state"] for s in plan["states"]] == ["t", "h"]


REFUSED: dict[str, tuple[str, str]] = {
    "the sum from the last frame on": ("Y = CumSum <reverse = 1> (X, s1)", "sums from the last frame on"),
    "the last frame repeated": ('Y = Pad <mode = "edge"> (X, late1)', "pads with other frames .mode edge."),
    "windows that look ahead": (
        f"{COUNT}  u = Unsqueeze (r, i0)  w = Add (u, window)  Y = Gather <axis = 1> (X, w)",
        "Gather node '-> Y' in main graph: looks 2 frames ahead",
    ),
    "windows that look one frame ahead": (
        f"{COUNT}  u = Unsqueeze (r, i0)  w = Add (u, both)  Y = Gather <axis = 1> (X, w)",
        "Gather node '-> Y' in main graph: looks 1 frame ahead",
    ),
    "windows from behind": (
        f"{COUNT}  u = Sub (r, s1)  Y = Gather <axis = 1> (X, u)",
        "Gather node '-> Y' in main graph: picks a frame before the first one",
    ),
    "counted from the length on": (
        f"{T}  n = Add (t, t)  r = Range (t, n, s1)  f = Cast <to = 1> (r)  c = Unsqueeze (f, i1)  Y = Add (X, c)",
        "Range node '-> r'",
    ),
    "a counter that is an output": (
        f"{T}  Y = Range (s0, t, s1)",
        "Range node '-> Y' in main graph: counts frames in a way",
    ),
}


@pytest.mark.parametrize("label", REFUSED)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_what_a_chunk_cannot_tell_is_refused(label: str) -> None:
    nodes, message = REFUSED[label]
    outputs = "int64[n] Y" if "output" in label else "float[p, q, r] Y"
    with pytest.raises(rl.UnsupportedError, match=message):
        streamed(over_time(nodes, "", outputs), "time")


@pytest.mark.parametrize("cut", ["minus1", "minus2"])
def test_the_last_frames_behind_a_padding(cut: str) -> None:
    """Each chunk has one frame of the padding or of the chunk before, besides its own."""
    model = over_time(f"p = Pad (X, pad1)  Y = Slice (p, {cut}, far, i1)")
    stepped = streamed(model, "time")
    assert plan_of(stepped)["outputs"] == {"Y": None}
    for sizes in ([1], [5], [17]):
        np.testing.assert_array_equal(chunked(stepped, X, sizes)["Y"], whole(model, X)["Y"])


@pytest.mark.parametrize(
    "nodes", ["Y = Slice (X, minus2, far, i1)", "p = Pad (X, pad1)  Y = Slice (p, minus3, far, i1)"]
)
@pytest.mark.filterwarnings("ignore:no state is carried")
def test_more_of_the_last_frames_than_each_chunk_has_are_refused(nodes: str) -> None:
    with pytest.raises(
        rl.UnsupportedError, match="Slice node '-> Y' in main graph: picks frames by their position"
    ):
        streamed(over_time(nodes), "time")


def test_positions_as_an_output() -> None:
    model = over_time(f"{COUNT}  Y = Unsqueeze (r, i0)", "", "int64[one, n] Y")
    assert_streams(model, "time", X)


def test_an_opset_that_lacks_what_the_stream_needs_is_refused() -> None:
    head = "float[time, batch, 3] x, float[1, batch, 4] S"
    body = "h0 = Tanh (S) y = GRU <hidden_size = 4> (x, W, R, B, , h0) Y = Squeeze <axes = [1]> (y)"
    model = net(f"g ({head}) => (float[p, q, r] Y) {{ {body} }}", recurrent("GRU", 3, 4), 8)
    with pytest.raises(rl.UnsupportedError, match="needs Where, which opset 8 lacks; convert the model"):
        streamed(model, "time")


def test_states_in_branches() -> None:
    """A branch that the batch size chooses; the other one keeps all of its states."""
    body = """s = Shape (X)  t = Gather (s, s1)  r = Range (s0, t, s1)  c = Unsqueeze (r, i1)  f = Cast <to = 1> (c)
        a = CumSum (X, s1)  m = Add (a, f)  p = Pad <mode = "edge"> (m, pad1)  d = Slice (p, i0, minus1, i1)"""
    model = over_time(
        f"""z = Shape (X)  n = Gather (z, s0)  which = Equal (n, s2)  Y = If (which) <
            then_branch = left () => (float[d, e, f] y1) {{ {body}  y1 = Sub (m, d) }},
            else_branch = right () => (float[d, e, f] y2) {{ y2 = Neg (X) }}
        >"""
    )
    for batch in (2, 3):
        plan = plan_of(assert_streams(model, "time", {"X": random((batch, 11, 3))}))
        assert [s["state"] for s in plan["states"]] == ["t", "sum", "x"]


def test_a_branch_that_not_every_call_takes_is_refused() -> None:
    model = over_time(
        """f = Slice (X, minus1, far, i1)  m = ReduceMax <keepdims = 0> (f)  c = Greater (m, zero)
        Y = If (c) < then_branch = left () => (float[d, e, f] y1) { y1 = CumSum (X, s1) },
                     else_branch = right () => (float[d, e, f] y2) { y2 = Neg (X) } >"""
    )
    with pytest.raises(
        rl.UnsupportedError, match="If node '-> Y' in main graph: its condition depends on the stream"
    ):
        streamed(model, "time")


LATE = """q = Transpose <perm = [0, 2, 1]> (X)  c = Conv <kernel_shape = [3], pads = [1, 1]> (q, kernel)
    x = Transpose <perm = [2, 0, 1]> (c)  y = GRU <hidden_size = 4> (x, W, R, B)  Y = Squeeze (y, i1)"""
COUNTING = {label: nodes for label, (nodes, kinds) in STATES.items() if "t" in kinds} | {
    "a GRU behind a look ahead": LATE,
    "the mean of all frames": "Y = ReduceMean <axes = [1]> (X)",
    "the sum of all frames by their number": f"{T}  n = Cast <to = 1> (t)  a = ReduceSum (X, i1)  Y = Div (a, n)",
}


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("label", sorted(COUNTING.keys() - {"rows of a table for each row of the batch"}))
def test_on_webgpu_frames_are_counted_in_int32(label: str, frames: int) -> None:
    """WebGPU computes nothing in int64; the host makes the counter in the type that the metadata specify."""
    model, feed = over_time(COUNTING[label]), {"X": X["X"][:, :16]}
    lowering: Any = {"target": "onnxruntime-webgpu", "dims": {"batch": 2}, "delay": True}
    stepped = rl.lower(model, stream={"time": frames}, **lowering)
    assert {s["dtype"] for s in plan_of(stepped)["states"] if s["state"] == "t"} == {"int32"}
    assert not int64_at_run_time(stepped)
    expected = expected_of(plan_of(stepped), model, feed)
    for name, array in chunked(stepped, feed, [frames]).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)


def test_positions_that_a_node_needs_in_int64_are_refused_for_webgpu() -> None:
    model = over_time(STATES["rows of a table for each row of the batch"][0])
    said = "Expand node '-> e' in main graph: reads numbers of frames as int64, and the target counts .* in int32"
    with pytest.raises(rl.UnsupportedError, match=said):
        rl.lower(model, target="onnxruntime-webgpu", stream="time=1", dims={"batch": 2})
    with pytest.raises(rl.OptionError, match="count_type cannot be"):
        rl.StreamPass("time", count_type=onnx_ir.DataType.FLOAT)
