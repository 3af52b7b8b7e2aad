"""Refusals that no other test of streams has: a model for each, as docs/streaming.md lists them."""

import re

import numpy as np
import onnx
import onnx_ir
import pytest
from stream_models import net, random, recurrent

import rnn_lowering as rl

CONV, ROWS = "float[2, 3, time] X", "float[time, batch, 3] X"
WEIGHTS = {
    **recurrent("GRU", 3, 4),
    "K": random((3, 3, 3)),
    "K2": random((3, 3, 2)),
    "K33": random((3, 3, 3, 3)),
    "lead": random((2, 3, 1)),
    "window": random((4,)),
    "scalar": np.zeros((), np.int64),
    "one": np.ones((), np.int64),
    "front": np.array([0, 0, 4, 0, 0, 0]),
    "row": np.array([1, 0, 0, 0]),
    "above": np.array([1, 0, 0, 0, 0, 0]),
    "block": np.array([1, 2]),
    "image": np.array([1, 6]),
    "flat": np.array([-1, 3]),
    "sequence": np.array([-1, 1, 3]),
    **{name: np.array([n]) for name, n in {"minus1": -1, "i0": 0, "i1": 1, "i2": 2, "i3": 3, "i4": 4}.items()},
    "axes": np.array([1, 2]),
    "zeros": np.array([0, 0]),
}
LATE = "c = Conv <pads = [1, 1]> (X, K)  x = Transpose <perm = [2, 0, 1]> (c)"
IMAGE = "s = Shape (X)  n = Slice (s, i2, i3)"


def scan(frames: str, read: str, directions: str = "0", more: str = "") -> tuple[str, str]:
    """A Scan over frames, whose step adds what it reads to its state."""
    step = f"m = ReduceMax <keepdims = 0> ({read})  t = Add (s, m)  y = Add (x, t)"
    given = f"(float[batch, 3] s, float[batch, 3] x) => (float[batch, 3] t, float[batch, 3] y) {{ {step} }}"
    kinds = f"num_scan_inputs = 1, scan_input_directions = [{directions}]"
    return f"{ROWS}, float[batch, 3] S", f"{more}  F, Y = Scan <{kinds}, body = b {given}> (S, {frames})"


def choice(kind: str, first: str, second: str, more: str = "") -> str:
    """An If whose branches compute y."""
    then = f"left () => ({kind} y{more}) {{ {first}{'  z = ReduceMax <keepdims = 0> (K)' * bool(more)} }}"
    return f"If (c) < then_branch = {then}, else_branch = right () => ({kind} y) {{ {second} }} >"


REFUSED: dict[str, tuple[str, ...]] = {
    "a stride of 2 over time does not fit the frames that are cut off before it": (
        CONV,
        "s = Slice (X, i0, minus1, i2)  Y = Conv <strides = [2], pads = [3, 0]> (s, K)",
    ),
    "its signal is not the stream, or its frames have no constant length and step": (
        "float[time, 16, 1] X",
        "Y = STFT (X, one, window)",
        "float[p, q, r, s] Y",
    ),
    "its frames are merged with another axis, or its weights depend on them": (
        CONV,
        "m = GlobalMaxPool (X)  Y = Conv (X, m)",
    ),
    "returns positions, which would restart in each chunk": (
        CONV,
        "Y, Z = MaxPool <kernel_shape = [2], pads = [1, 0]> (X)",
        "float[p, q, r] Y, int64[p, q, r] Z",
    ),
    "ceil_mode, output_shape or a missing kernel_shape do not fit chunks": (
        CONV,
        "Y = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1> (X)",
    ),
    "its paddings depend on the sizes of its result": (
        CONV,
        'Y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2]> (X, K)',
    ),
    "its paddings depend on a size that is not fixed": (
        "float[2, 3, time, width] X",
        'Y = Conv <auto_pad = "SAME_UPPER", strides = [1, 2]> (X, K33)',
        "float[p, q, r, s] Y",
    ),
    "its columns are not the frames, or its sizes are not known": (
        "float[time, 4, 5] X",
        "Y = Col2Im (X, image, block)",
        "float[p, q, r, s] Y",
    ),
    "adds its columns along several axes, or cuts some of the result off": (
        "float[1, 4, time] X",
        f"{IMAGE}  m = Sub (n, i1)  i = Concat <axis = 0> (i1, m)  Y = Col2Im <pads = [0, 1, 0, 1]> (X, i, block)",
        "float[p, q, r, s] Y",
    ),
    "its size is not that of all its columns together": (
        "float[1, 4, time] X",
        f"{IMAGE}  m = Add (n, i3)  i = Concat <axis = 0> (i1, m)  Y = Col2Im (X, i, block)",
        "float[p, q, r, s] Y",
    ),
    "pads frames that are merged with another axis": (
        ROWS,
        "r = Reshape (X, flat)  Y = Pad (r, row)",
        "float[p, q] Y",
    ),
    "repeats or cuts off the first frame of a value that comes late": (
        CONV,
        'c = Conv <pads = [1, 1]> (X, K)  Y = Pad <mode = "edge"> (c, front)',
    ),
    "pads the frames with a number that is not constant": (f"{CONV}, float v", "Y = Pad (X, front, v)"),
    "joins frames with others along the time axis": (CONV, "r = Relu (X)  Y = Concat <axis = 2> (X, r)"),
    "joins the frames of the stream with others and with constants": (
        f"{CONV}, float[2, 3, 1] g",
        "Y = Concat <axis = 2> (lead, g, X)",
    ),
    "starts or ends are not constant": (f"{CONV}, int64[1] end", "Y = Slice (X, i0, end, i2)"),
    "cuts other axes by the number of frames": (
        "float[2, wide, time] X",
        f"{IMAGE}  Y = Slice (X, i0, n, i1)",
    ),
    "cuts frames and an axis of another size that is not fixed": (
        f"{CONV}, float[k] Z",
        "k = Shape (Z)  e = Concat <axis = 0> (k, minus1)  Y = Slice (X, zeros, e, axes)",
    ),
    "picks frames at another rate than that of its table": (
        CONV,
        f"{IMAGE}  m = Squeeze (n, i0)  r = Range (scalar, m, one)  t = Mul (r, i2)  Y = Gather <axis = 2> (X, t)",
    ),
    "its weights depend on the stream": (
        ROWS,
        "m = ReduceMax (X)  w = Mul (W, m)  Y = GRU <hidden_size = 4> (X, w, R)",
    ),
    "its frames are merged with another axis": (
        "float[batch, time, 3] X",
        "r = Reshape (X, sequence)  Y = GRU <hidden_size = 4> (r, W, R)",
        "float[p, q, r, s] Y",
    ),
    "its frames are its batch, but its initial states or lengths have a fixed batch size": (
        "float[5, time, 3] X, float[1, n, 4] h",
        "Y = GRU <hidden_size = 4> (X, W, R, , , h)",
        "float[p, q, r, s] Y",
    ),
    "has sequence_lens, and reads frames that come 1 late": (
        f"{CONV}, int32[2] lens",
        f"{LATE}  Y = GRU <hidden_size = 4> (x, W, R, , lens)",
        "float[p, q, r, s] Y",
    ),
    "has sequence_lens, in a stream that looks ahead": (
        f"{CONV}, int32[2] lens",
        f"{LATE}  t = Transpose <perm = [2, 0, 1]> (X)  Y = GRU <hidden_size = 4> (t, W, R, , lens)  Z = Neg (x)",
        "float[p, q, r, s] Y, float[a, b, c] Z",
    ),
    "its sequence_lens are computed from the stream": (
        "float[time, 1, 3] X",
        "m = ReduceMax (X)  f = Reshape (m, minus1)  l = Cast <to = 6> (f)"
        "  Y = GRU <hidden_size = 4> (X, W, R, , l)",
        "float[p, q, r, s] Y",
    ),
    "its sequence_lens count other frames than those of the stream": (
        f"{CONV}, int32[2] lens",
        "c = Conv <strides = [2]> (X, K2)  x = Transpose <perm = [2, 0, 1]> (c)"
        "  Y = GRU <hidden_size = 4> (x, W, R, , lens)",
        "float[p, q, r, s] Y",
    ),
    "'lens', the sequence lengths, is also an output, but differs in a chunk": (
        f"{ROWS}, int32[batch] lens",
        "l = Identity (lens)  Y = GRU <hidden_size = 4> (X, W, R, , l)",
        "float[p, q, r, s] Y, int32[n] l",
    ),
    "its initial states or lengths have frames, but its input does not": (
        "float[1, time, 4] X, float[5, n, 3] Z",
        "Y = GRU <hidden_size = 4> (Z, W, R, , , X)",
        "float[p, q, r, s] Y",
    ),
    "initial_h depends on the size of an axis": (
        ROWS,
        "s = Shape (X)  b = Slice (s, i1, i2)  f = Cast <to = 1> (b)  o = Concat <axis = 0> (i1, b, i4)"
        "  h = Expand (f, o)  Y = GRU <hidden_size = 4> (X, W, R, , , h)",
        "float[p, q, r, s] Y",
    ),
    "shares the initial state in input 'h' with another node": (
        f"{ROWS}, float[1, batch, 4] h",
        "Y = GRU <hidden_size = 4> (X, W, R, , , h)  Z = GRU <hidden_size = 4> (X, W, R, , , h)",
        "float[p, q, r, s] Y, float[a, b, c, d] Z",
    ),
    "the frames of its branches differ in axis, rate or position": (
        f"{CONV}, bool c",
        f"Y = {choice('float[a, b, n]', 'y = Slice (X, i0, minus1, i2)', 'y = Neg (X)')}",
    ),
    "its branches have different numbers of frames": (
        f"{CONV}, bool c",
        f"{IMAGE}  z = {choice('float[d]', 'y = ConstantOfShape (n)', 'm = Add (n, i1)  y = ConstantOfShape (m)')}"
        "  Y = Add (X, z)",
    ),
    "its branches depend on the number of frames in different ways": (
        f"{CONV}, bool c",
        f"{IMAGE}  z = {choice('int64[1]', 'y = Neg (n)', 'y = Abs (n)')}  Y = Slice (X, i0, z, i2)",
    ),
    "If node '-> Y' in main graph: its branches have different numbers of outputs": (
        f"{CONV}, bool c",
        f"Y = {choice('float[a, b, n]', 'y = Neg (X)', 'y = Neg (X)', more=', float z')}",
    ),
    "goes backwards: it starts at the last frame, which a stream has not seen yet": scan("X", "x", "1"),
    "does not read one frame for each of the stream": scan("l", "x", more="l = Pad (X, above)"),
    "reads the first frame of the stream, 'f', in every step": scan("X", "f", more="f = Slice (X, i0, i1, i0)"),
    "reads 'X', which has all frames of the stream or depends on them, in every step": scan("X", "X"),
    "output 'Y' holds the frames of several rows, one row after another": (
        "float[batch, time, 3] X",
        "Y = Reshape (X, flat)",
        "float[p, q] Y",
    ),
    "elements: a state cannot have that size": (
        "float[time, a, 3] X, float[time, b, 3] Z",
        "x = Concat <axis = 1> (X, Z)  Y = GRU <hidden_size = 4> (x, W, R)",
        "float[p, q, r, s] Y",
    ),
    "the size of axis 1 of 'x' is not known: a state cannot have that size": (
        "float[time, a, 3] X, float[b, 3] Z",
        "x = Add (X, Z)  Y = GRU <hidden_size = 4> (x, W, R)",
        "float[p, q, r, s] Y",
    ),
    "a call may skip a state in its branches": (
        "float[time, a, 3] X, float[b, 3] Z",
        f"""x = Add (X, Z)  m = Shape (x)  n = Shape (X)  d = Sub (m, n)  e = ReduceSum <keepdims = 0> (d)
        c = Cast <to = 9> (e)  {choice("float[p, q, r]", "y = Neg (x)", "y = CumSum (x, scalar)")}""".replace(
            "If (c)", "Y = If (c)"
        ),
    ),
    "weighs all frames, after some were padded, cut or moved": (
        CONV,
        "p = Pad (X, front)  w = Softmax <axis = 2> (p)  m = Mul (w, p)  Y = ReduceSum (m, i2)",
    ),
    "pools frames of type int64": (
        CONV,
        "i = Cast <to = 7> (X)  Y = ReduceMean <axes = [2]> (i)",
        "int64[p, q, r] Y",
    ),
    "spreads a value that is known only after the last frame over all frames": (
        CONV,
        "m = GlobalMaxPool (X)  s = Shape (X)  Y = Expand (m, s)",
    ),
    "takes a size from the stream: 'i'": (
        CONV,
        "m = GlobalMaxPool (X)  f = Reshape (m, minus1)  i = Cast <to = 7> (f)  Y = Expand (lead, i)",
        "float[a, b, c, d, e, f] Y",
    ),
    "looks beyond its frame: it acts along axis 2, which holds the frames": (CONV, "Y = LogSoftmax <axis = 2> (X)"),
}
GRU = "Y = GRU <hidden_size = 4> (x, W, R)"
OPSETS: dict[str, tuple[int, str, str, str]] = {
    "a stream with sequence_lens needs opset 9": (
        8,
        f"{ROWS}, int32[batch] l",
        "Y = GRU <hidden_size = 4> (X, W, R, , l)",
        "time",
    ),
    "a stream that looks ahead needs opset 9": (8, CONV, f"{LATE}  {GRU}", "time=1"),
    "a stream that looks ahead, with any number of frames in a call, needs opset 11": (
        10,
        CONV,
        f"{LATE}  {GRU}",
        "time",
    ),
}


def given(head: str, nodes: str, outputs: str, opset: int) -> onnx.ModelProto:
    """A model with those of the weights that its nodes read."""
    used = {name: array for name, array in WEIGHTS.items() if re.search(rf"\b{name}\b", nodes)}
    return net(f"g ({head}) => ({outputs}) {{ {nodes} }}", used, opset)


def refusal(model: onnx.ModelProto, stream: str = "time") -> str:
    """The error, which has a hint, and after which the model is what it was."""
    held = onnx_ir.from_proto(model)
    before = onnx_ir.to_proto(held).SerializeToString(deterministic=True)
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.StreamPass(stream, delay=True)(held)
    assert onnx_ir.to_proto(held).SerializeToString(deterministic=True) == before
    assert caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize("message", REFUSED)
def test_a_net_that_is_no_stream_is_refused(message: str) -> None:
    head, nodes, *outputs = REFUSED[message]
    opset = 17 if "ReduceMean <axes" in nodes else 18
    assert message in refusal(given(head, nodes, (outputs or ["float[p, q, r] Y"])[0], opset))


@pytest.mark.parametrize("message", OPSETS)
def test_an_opset_that_is_too_old_is_refused(message: str) -> None:
    opset, head, nodes, stream = OPSETS[message]
    assert message in refusal(given(head, nodes, "float[p, q, r, s] Y", opset), stream)
