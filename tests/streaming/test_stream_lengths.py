"""What depends on the length of the whole sequence is refused, unless it is a size that grows with the frames."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from cases import Array
from stream_models import assert_streams, net, plan_of, random, recurrent, streamed

import rnn_lowering as rl

GRU = recurrent("GRU", 3, 4)
X = {"X": random((2, 23, 3))}
LAST = "x = Transpose <perm = [1, 0, 2]> (z)  y, h = GRU <hidden_size = 4> (x, W, R, B)  Y = Neg (h)"
NUMBERS = {f"i{n}": np.array([n]) for n in (0, 1, 2, 3, 4, 8, 20, 200, 300)} | {
    "minus1": np.array([-1]),
    "minus2": np.array([-2]),
    "far": np.array([2**63 - 1]),
    "s0": np.array(0),
    "s1": np.array(1),
    "pad1": np.array([0, 1, 0, 0, 0, 0]),
    "late1": np.array([0, 0, 0, 0, 1, 0]),
    "late2": np.array([0, 0, 0, 0, 2, 0]),
    "swap": np.array([0, 1, 0, 0, -1, 0]),
    "zeros": np.zeros((1, 1, 3), np.float32),
    "two": np.array([2]),
    "of_rows": np.array([1, -1, 5]),
    "halves": np.array([-1, 2]),
    "K": random((3, 3, 2), 1),
}
T = "s = Shape (X)  t = Gather (s, i1)"


def batch_first(nodes: str, weights: Mapping[str, Array] | None = None, inputs: str = "") -> onnx.ModelProto:
    """A net over X [batch, time, 3]."""
    used = {name: array for name, array in NUMBERS.items() if name in nodes}
    held = {**used, **(GRU if "GRU" in nodes else {}), **(weights or {})}
    outputs = "Y" if "Y =" in nodes else ""
    return net(f"g (float[batch, time, 3] X{inputs}) => (float[p, q, r] {outputs}) {{ {nodes} }}", held)


REFUSED: dict[str, tuple[str, str]] = {
    "the first 200 frames": (f"z = Slice (X, i0, i200, i1)  {LAST}", "Slice node '-> z'"),
    "the last 200 frames": (f"m = Neg (i200)  z = Slice (X, m, far, i1)  {LAST}", "Slice node '-> z'"),
    "if there are more than 300": (
        f"""{T}  c = Greater (t, i300)
            z = If (c) <then_branch = a () => (float[d, e, f] z1) {{ z1 = Neg (X) }},
                        else_branch = b () => (float[g, h, i] z2) {{ z2 = Identity (X) }}>  {LAST}""",
        "Greater node '-> c'",
    ),
    "padding to a multiple of 8": (
        f"""{T}  n = Neg (t)  m = Mod (n, i8)  p = Concat <axis = 0> (i0, m, i0, i0, i0, i0)
            z = Pad (X, p)  {LAST}""",
        "Mod node '-> m'",
    ),
    "the remainder of 4": (
        f"{T}  m = Mod (t, i4)  f = Cast <to = 1> (m)  z = Add (X, f)  {LAST}",
        "Mod node '-> m'",
    ),
    "at most 20": (f"{T}  m = Min (t, i20)  z = Slice (X, i0, m, i1)  {LAST}", "Min node '-> m'"),
    "how many times 200": (
        f"{T}  m = Div (t, i200)  f = Cast <to = 1> (m)  z = Add (X, f)  {LAST}",
        "Add node '-> z'",
    ),
    "at least 8": (f"{T}  m = Max (t, i8)  f = Cast <to = 1> (m)  z = Div (X, f)  {LAST}", "Max node '-> m'"),
    "clipped": (
        f"{T}  q = Squeeze (t, i0)  m = Clip (q, s1, far1)  f = Cast <to = 1> (m)  z = Div (X, f)  {LAST}",
        "Clip node '-> m'",
    ),
    "ones for all frames but the last, padded in front": (
        f"{T}  q = Concat <axis = 0> (i1, t, i1)  o = ConstantOfShape <value = float[1] {{1.0}}> (q)"
        f"  k = Slice (o, i0, minus1, i1)  p = Pad (k, pad1)  z = Mul (X, p)  {LAST}",
        "Pad node '-> p' in main graph: 'k' lacks 1 of the frames of each chunk",
    ),
    "ones for all frames but two, behind two zeros": (
        f"{T}  n = Sub (t, i2)  q = Concat <axis = 0> (i1, n, i3)"
        "  o = ConstantOfShape <value = float[1] {1.0}> (q)"
        f"  p = Concat <axis = 1> (zeros, zeros, o)  z = Mul (X, p)  {LAST}",
        "Concat node '-> p' in main graph: 'o' lacks 2 of the frames of each chunk",
    ),
    "the root of the length": (
        f"{T}  f = Cast <to = 1> (t)  m = Sqrt (f)  z = Div (X, m)  {LAST}",
        "Sqrt node '-> m'",
    ),
    "divided by the length": (
        f"{T}  f = Cast <to = 1> (t)  z = Div (X, f)  {LAST}",
        "Div node '-> z' in main graph: 'f' depends on the number of frames",
    ),
    "half of the frames": (f"{T}  m = Div (t, i2)  z = Slice (X, i0, m, i1)  {LAST}", "Slice node '-> z'"),
    "chosen by the length": (
        f"{T}  c = Equal (t, i20)  m = Where (c, i1, i2)  z = Slice (X, i0, m, i1)  {LAST}",
        "Equal node '-> c'",
    ),
    "as many as there are of another": (
        f"{T}  q = Squeeze (t, i0)  v, k = TopK <axis = 0> (table, t)  z = Add (X, v)  {LAST}",
        "TopK node '-> v'",
    ),
    "a table that the caller gives": (
        f"{T}  p = Slice (given, i0, t, i0)  z = Add (X, p)  {LAST}",
        "Slice node '-> p'",
    ),
    "how many of the first 200 there are": (
        f"""f = Slice (X, i0, i200, i1)  s = Shape (f)  n = Gather (s, i1)  d = Cast <to = 1> (n)
            z = Div (X, d)  {LAST}""",
        "Div node '-> z' in main graph: 'd' depends on the number of frames",
    ),
    "zeros like the first 200 that replace fewer": (
        f"""f = Slice (X, i0, i200, i1)  s = Shape (f)  o = ConstantOfShape (s)  c = Slice (X, i0, minus2, i1)
            z = Concat <axis = 1> (o, c)  {LAST}""",
        "Concat node '-> z' in main graph: 'o' has fewer frames in a shorter sequence",
    ),
    "zeros like the first 200 at the end": (
        f"""f = Slice (X, i0, i200, i1)  s = Shape (f)  o = ConstantOfShape (s)  c = Concat <axis = 1> (X, o)
            m = Neg (i200)  z = Slice (c, i0, m, i1)  {LAST}""",
        "Concat node '-> c' in main graph: 'o' has fewer frames in a shorter sequence",
    ),
    "an output that is the length": (f"{T}  Y = Cast <to = 1> (t)", "Cast node '-> Y'"),
}
TABLES = {"table": random((500,), 1), "far1": np.array(2**40)}


@pytest.mark.parametrize("label", REFUSED)
def test_what_depends_on_the_length_is_refused_by_name(label: str) -> None:
    nodes, message = REFUSED[label]
    tables = {name: array for name, array in TABLES.items() if name in nodes}
    inputs = ", float[rows, 3] given" if "given" in nodes else ""
    with pytest.raises(rl.UnsupportedError) as caught:
        streamed(batch_first(nodes, tables, inputs), "time")
    assert message in str(caught.value)


CAUSAL = "x = Transpose <perm = [1, 0, 2]> (z)  y = GRU <hidden_size = 4> (x, W, R, B)  Y = Squeeze (y, i1)"
SIZES = {
    "a target of Reshape": (
        f"{T}  n = Gather (s, i0)  k = Concat <axis = 0> (n, t, i3)  z = Reshape (X, k)  {CAUSAL}"
    ),
    "an end of Slice": f"{T}  z = Slice (X, i0, t, i1)  {CAUSAL}",
    "an end of Slice behind a padding": (f"{T}  p = Pad (X, late2)  z = Slice (p, i0, t, i1)  {CAUSAL}"),
    "an end that was added to and taken from": (
        f"{T}  a = Add (t, i3)  b = Sub (a, i3)  z = Slice (X, i0, b, i1)  {CAUSAL}"
    ),
    "a size of Expand": f"{T}  k = Concat <axis = 0> (i1, t, i3)  e = Expand (zeros, k)  z = Add (X, e)  {CAUSAL}",
    "a size of ConstantOfShape": (
        f"""{T}  n = Gather (s, i0)  k = Concat <axis = 0> (n, t, i3)
            e = ConstantOfShape <value = float[1] {{0.5}}> (k)  z = Add (X, e)  {CAUSAL}"""
    ),
    "the size that legacy exporters give to expand": (
        f"""{T}  k = Concat <axis = 0> (i1, t, i3)  r = Shape (k)  o = ConstantOfShape <value = int64[1] {{1}}> (r)
            m = Mul (o, minus1)  q = Equal (k, m)  w = Where (q, o, k)  e = Expand (zeros, w)
            z = Add (X, e)  {CAUSAL}"""
    ),
    "the size that dynamo gives to expand": (
        f"{T}  k = Concat <axis = 0> (i1, t, i3)  a = Abs (k)  e = Expand (zeros, a)  z = Add (X, e)  {CAUSAL}"
    ),
    "at least one": f"{T}  m = Max (t, i1)  z = Slice (X, i0, m, i1)  {CAUSAL}",
    "an If that the length cannot change": (
        f"""{T}  c = Greater (t, i0)
            z = If (c) <then_branch = a () => (float[d, e, f] z1) {{ z1 = Neg (X) }},
                        else_branch = b () => (float[g, h, i] z2) {{ z2 = Identity (X) }}>  {CAUSAL}"""
    ),
    "frames and batch merged and parted": (
        f"""{T}  n = Gather (s, i0)  p = Mul (n, t)  k = Concat <axis = 0> (p, i3)  f = Reshape (X, k)
            g = Tanh (f)  q = Concat <axis = 0> (n, t, i3)  z = Reshape (g, q)  {CAUSAL}"""
    ),
}


@pytest.mark.parametrize("label", SIZES)
def test_sizes_that_grow_with_the_frames_stream(label: str) -> None:
    assert_streams(batch_first(SIZES[label]), "time", X)


SHIFTS = {
    "cut, then padded": "c = Slice (X, i0, minus1, i1)  z = Pad (c, pad1)",
    "cut, an activation, then padded": "c = Slice (X, i0, minus1, i1)  a = Tanh (c)  z = Pad (a, pad1)",
    "padded, then cut": "c = Pad (X, pad1)  z = Slice (c, i0, minus1, i1)",
    "padded by 1 and -1": "z = Pad (X, swap)",
    "behind constants": "c = Slice (X, i0, minus1, i1)  z = Concat <axis = 1> (lead, c)",
    "behind zeros like the first frame": (
        """f = Slice (X, i0, i1, i1)  s = Shape (f)  o = ConstantOfShape (s)  c = Slice (X, i0, minus1, i1)
            z = Concat <axis = 1> (o, c)"""
    ),
    "behind expanded zeros": (
        """s = Shape (X)  n = Gather (s, i0)  k = Concat <axis = 0> (n, i1, i3)  o = Expand (zeros, k)
            c = Slice (X, i0, minus1, i1)  z = Concat <axis = 1> (o, c)"""
    ),
    "behind zeros like the first two frames": (
        """f = Slice (X, i0, i2, i1)  s = Shape (f)  o = ConstantOfShape (s)  c = Slice (X, i0, minus2, i1)
            z = Concat <axis = 1> (o, c)"""
    ),
    "twice": "z = Pad (X, swap)  v = Slice (z, i0, minus1, i1)  w = Pad (v, pad1)",
    "beside what is not shifted": "c = Slice (X, i0, minus1, i1)  w = Pad (c, pad1)  z = Sub (X, w)",
}


@pytest.mark.parametrize("label", SHIFTS)
def test_a_shift_is_a_state(label: str) -> None:
    nodes = SHIFTS[label]
    weights = {"lead": random((2, 1, 3), 9)} if "lead" in nodes else {}
    out = "w" if label == "twice" else "z"
    plan = plan_of(assert_streams(batch_first(f"{nodes}  Y = Neg ({out})", weights), "time", X))
    assert [state["state"] for state in plan["states"]] == ["x"] * (2 if label == "twice" else 1)


ENDS = {
    "zeros": "c = Slice (X, i0, minus2, i1)  z = Pad (c, late2)",
    "zeros joined": "c = Slice (X, i0, minus1, i1)  z = Concat <axis = 1> (c, lead)",
    "a convolution's padding": (
        "c = Slice (X, i0, minus1, i1)  t = Transpose <perm = [0, 2, 1]> (c)"
        "v = Conv <pads = [1, 1]> (t, K)  z = Transpose <perm = [0, 2, 1]> (v)"
    ),
    "a transposed convolution": (
        "c = Slice (X, i0, minus1, i1)  t = Transpose <perm = [0, 2, 1]> (c)"
        "v = ConvTranspose (t, K)  z = Transpose <perm = [0, 2, 1]> (v)"
    ),
}


@pytest.mark.parametrize("label", ENDS)
def test_frames_that_are_cut_off_are_not_replaced_by_others(label: str) -> None:
    nodes = ENDS[label]
    weights = {"lead": random((2, 1, 3), 9)} if "lead" in nodes else {}
    with pytest.raises(rl.UnsupportedError, match=r"at the end after the last . were cut off"):
        streamed(batch_first(f"{nodes}  Y = Neg (z)", weights), "time")


def with_state(nodes: str, outputs: str = "float[time, one, batch, 4] Y", lens: bool = False) -> onnx.ModelProto:
    inputs = "float[time, batch, 3] X" + (", int32[batch] lens" if lens else ", float[1, batch, 4] h0")
    squares = {name: random((1, 4, 4)) for name in ("Wr", "Rr")}
    used = {name: array for name, array in (NUMBERS | squares).items() if name in nodes}
    return net(f"g ({inputs}) => ({outputs}) {{ {nodes} }}", {**GRU, **used})


READ_TOO = {
    "a sum": ("y, h = GRU <hidden_size = 4> (X, W, R, B, , h0)  Y = Add (y, h0)", "Add node '-> Y'"),
    "an output": (
        "Y, h = GRU <hidden_size = 4> (X, W, R, B, , h0)  Z = Identity (h0)",
        "'h0' is a state and an output",
    ),
    "through others": (
        "y, h = GRU <hidden_size = 4> (X, W, R, B, , h0)  c = Squeeze (h0, i0)  d = Tanh (c)  Y = Add (y, d)",
        "Tanh node '-> d' in main graph: reads 'h0', a state",
    ),
    "another node's weights": (
        "Y, h = GRU <hidden_size = 4> (X, W, R, B, , h0)  q = Transpose <perm = [1, 0, 2]> (h0)  w, Z = RNN "
        "<hidden_size = 4> (q, Wr, Rr)",
        "RNN node '-> w'",
    ),
}


@pytest.mark.parametrize("label", READ_TOO)
def test_a_state_that_something_else_reads_is_refused(label: str) -> None:
    nodes, message = READ_TOO[label]
    outputs = "float[time, one, batch, 4] Y" + (", float[a, b, c] Z" if "Z" in nodes else "")
    model = with_state(nodes, outputs)
    with pytest.raises(rl.UnsupportedError) as caught:
        streamed(model, "time")
    assert message in str(caught.value)


LENGTHS_READ = {
    "a divisor": (
        """y = GRU <hidden_size = 4> (X, W, R, B, lens)  f = Cast <to = 1> (lens)  u = Unsqueeze (f, i1)
            Y = Div (y, u)""",
        "reads 'lens', the sequence lengths",
    ),
    "clamped": (
        "one = Cast <to = 6> (i1)  m = Max (lens, one)  Y = GRU <hidden_size = 4> (X, W, R, B, m)",
        "Max node '-> m'",
    ),
    "sorted": (
        """s = Shape (lens)  f = Cast <to = 1> (lens)  v, order = TopK <axis = 0> (f, s)
            x = Gather <axis = 1> (X, order)  l = Cast <to = 6> (v)  Y = GRU <hidden_size = 4> (x, W, R, B, l)""",
        "TopK node '-> v'",
    ),
    "the order of rows": (
        """s = Shape (lens)  f = Cast <to = 1> (lens)  v, order = TopK <axis = 0> (f, s)
            x = Gather <axis = 1> (X, order)  Y = GRU <hidden_size = 4> (x, W, R, B, lens)""",
        "TopK node '-> v' in main graph: reads 'lens'",
    ),
}


@pytest.mark.parametrize("label", LENGTHS_READ)
def test_lengths_that_are_read_as_data_are_refused(label: str) -> None:
    nodes, message = LENGTHS_READ[label]
    with pytest.raises(rl.UnsupportedError) as caught:
        streamed(with_state(nodes, lens=True), "time")
    assert message in str(caught.value)


def test_lengths_of_all_frames_stream() -> None:
    nodes = """s = Shape (X)  t = Gather (s, i0)  n = Gather (s, i1)  e = Expand (t, n)  l = Cast <to = 6> (e)
        Y = GRU <hidden_size = 4> (X, W, R, B, l)"""
    used = {name: array for name, array in NUMBERS.items() if name in nodes}
    text = f"g (float[time, batch, 3] X) => (float[time, one, batch, 4] Y) {{ {nodes} }}"
    assert_streams(net(text, {**GRU, **used}), "time", {"X": random((23, 2, 3))})


def test_a_folded_length_of_1_is_said_of_the_reshape() -> None:
    nodes = "x = Reshape (X, of_rows)  Y = GRU <hidden_size = 4> (x, W, R, B, , h)"
    weights = {**recurrent("GRU", 5, 4), "h": random((1, 2, 4)), "of_rows": NUMBERS["of_rows"]}
    model = net(f"g (float[time, 2, 5] X) => (float[p, q, r, s] Y) {{ {nodes} }}", weights)
    with pytest.raises(rl.UnsupportedError, match=r"Reshape node '-> x'.*did the exporter fix a length of 1"):
        streamed(model, "time")


def test_mean_variance_normalization_of_each_frame() -> None:
    model = net(
        """g (float[batch, 3, time, 8] X) => (float[a, b, c, d] Y) {
            v = MeanVarianceNormalization <axes = [1, 3]> (X)  Y = Neg (v) }"""
    )
    with pytest.warns(rl.RnnLoweringWarning, match="no state"):
        assert_streams(model, "time", {"X": random((2, 3, 17, 8))})
