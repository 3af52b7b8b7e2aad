"""Convolutions of integers and poolings with ceil_mode or paddings that do not count; near misses are refused."""

from typing import Any

import numpy as np
import pytest
from stream_models import chunked, expected_of, over, plan_of, random, rows, shown, streamed, whole

import rnn_lowering as rl

WEIGHTS: dict[str, Any] = {
    "S": np.float32(0.05),
    "Z": np.uint8(131),
    "Z1": np.array([131], np.uint8),
    "Z8": np.int8(5),
    "Z0": np.int8(3),
    "S3": np.array([0.01, 0.02, 0.03], np.float32),
    "Z3": np.zeros(3, np.int8),
    "B": np.arange(3, dtype=np.int32) * 100,
    "I": np.random.default_rng(1).integers(-128, 128, (3, 3, 3)).astype(np.int8),
    "U": np.random.default_rng(2).integers(0, 256, (3, 3, 3)).astype(np.uint8),
    "ONE": np.random.default_rng(3).integers(0, 256, (3, 3, 1)).astype(np.uint8),
    "IMAGE": np.random.default_rng(4).integers(0, 256, (2, 3, 3, 2)).astype(np.uint8),
}

WINDOWS = rows("""
# float[2, 3, time] X
1: x[2, 3, 2]
    q = QuantizeLinear (X, S, Z)  c = QLinearConv <pads = [2, 0]> (q, S, Z, I, S, Z0, S, Z, B)
        Y = DequantizeLinear (c, S, Z)
    q = QuantizeLinear (X, S, Z)  c = QLinearConv <pads = [2, 0]> (q, S, Z, I, S3, Z3, S, Z)
        Y = DequantizeLinear (c, S, Z)
    q = QuantizeLinear (X, S, Z)  c = ConvInteger <pads = [2, 0]> (q, U, Z, Z)  Y = Cast <to = 1> (c)
    q = QuantizeLinear (X, S, Z)  c = ConvInteger <pads = [2, 0]> (q, U, Z1)  Y = Cast <to = 1> (c)
    q = QuantizeLinear (X, S, Z)  c = ConvInteger <pads = [2, 0]> (q, U)  Y = Cast <to = 1> (c)
    q = QuantizeLinear (X, S, Z)  p = Pad (q, [0, 0, 2, 0, 0, 0], Z)  c = ConvInteger (p, U, Z)
        Y = Cast <to = 1> (c)
1: x[2, 3, 2]  t[1]
    q = QuantizeLinear (X, S, Z8)  c = QLinearConv <auto_pad = "VALID"> (q, S, Z8, I, S, Z0, S, Z8)
        p = Pad (c, [0, 0, 2, 0, 0, 0], Z8)  Y = DequantizeLinear (p, S, Z8)
1: x[2, 3, 4]
    q = QuantizeLinear (X, S, Z)  c = QLinearConv <pads = [4, 0], dilations = [2]> (q, S, Z, U, S, Z, S, Z)
        Y = DequantizeLinear (c, S, Z)
2: x[2, 3, 1]
    q = QuantizeLinear (X, S, Z)  c = ConvInteger <pads = [1, 0], strides = [2]> (q, U, Z)  Y = Cast <to = 1> (c)
1, late: x[2, 3, 2]  t[1]  x[2, 3, 2]
    q = QuantizeLinear (X, S, Z)  c = QLinearConv <pads = [1, 1]> (q, S, Z, U, S, Z, S, Z)
        d = QLinearConv <pads = [2, 0]> (c, S, Z, U, S, Z, S, Z)  Y = DequantizeLinear (d, S, Z)
2: none
    Y = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1> (X)
    Y = AveragePool <kernel_shape = [2], strides = [2], ceil_mode = 1> (X)
2: x[2, 3, 1]
    Y = MaxPool <kernel_shape = [3], strides = [2], pads = [1, 0], ceil_mode = 1> (X)
    Y = LpPool <kernel_shape = [3], strides = [2], pads = [1, 0], ceil_mode = 1> (X)
1: x[2, 3, 2]
    Y = MaxPool <kernel_shape = [3], pads = [2, 0], ceil_mode = 1> (X)
2, late: none
    c = Slice (X, [2], far, [2])  Y = MaxPool <kernel_shape = [2], strides = [2], ceil_mode = 1> (c)
1: x[2, 3, 2]  t[1]
    Y = AveragePool <kernel_shape = [3], pads = [2, 0]> (X)
1, late: x[2, 3, 2]  t[1]  x[2, 3, 3]
    c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  Y = AveragePool <kernel_shape = [4], pads = [3, 0]> (c)
1, late: x[2, 3, 2]  t[1]
    Y = AveragePool <kernel_shape = [3], pads = [1, 1]> (X)
1: x[2, 3, 3]  t[1]
    Y = AveragePool <kernel_shape = [4], pads = [3, 0]> (X)
1: none
    q = QuantizeLinear (X, S, Z)  c = ConvInteger (q, ONE, Z)  Y = Cast <to = 1> (c)
# float[2, 3, time, 4] X
2: x[2, 3, 1, 4]  t[1]
    Y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 0, 1]> (X)
2: x[2, 3, 1, 4]
    Y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 0, 0, 0], ceil_mode = 1> (X)
1: x[2, 3, 2, 4]
    q = QuantizeLinear (X, S, Z)  c = ConvInteger <pads = [2, 1, 0, 1]> (q, IMAGE, Z)  Y = Cast <to = 1> (c)
""")


@pytest.mark.few(8)
@pytest.mark.filterwarnings("ignore:no state is carried")
@pytest.mark.parametrize(("head", "said", "nodes"), WINDOWS)
def test_a_window_streams(head: str, said: str, nodes: str) -> None:
    """The least number of frames in a call, and the states."""
    model, delay, unit = over(head, nodes, WEIGHTS), "late" in said, int(said[0])
    for stream, sizes in (("time", [unit]), ("time", [5 * unit, unit, 2 * unit]), (f"time={2 * unit}", [2 * unit])):
        stepped = streamed(model, stream, delay=delay)
        plan = plan_of(stepped)
        assert f"{plan['unit']}{', late' if delay else ''}: {shown(plan)}" == said
        for count in (2, 3, 9, 20):
            frames = 2 * count * unit
            feed = {"X": random((2, 3, frames, 4) if "time, 4" in head else (2, 3, frames), count, 3.0)}
            got, expected = chunked(stepped, feed, sizes)["Y"], expected_of(plan, model, feed)["Y"]
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6, err_msg=f"{stream} {sizes} {frames}")


def test_the_first_state_has_the_integer_of_zero() -> None:
    nodes = "q = QuantizeLinear (X, S, Z)  c = ConvInteger <pads = [2, 0]> (q, U, Z)  Y = Cast <to = 1> (c)"
    (state,) = plan_of(streamed(over("float[2, 3, time] X", nodes, WEIGHTS), "time"))["states"]
    assert (state["initial"], state["dtype"]) == ([[[131]]], "uint8")


REFUSED = rows("""
# float[2, 3, time] X, uint8 z
pads the frames with a number that is not constant
    q = QuantizeLinear (X, S, Z)  c = ConvInteger <pads = [2, 0]> (q, U, z)  Y = Cast <to = 1> (c)
    q = QuantizeLinear (X, S, z)  c = QLinearConv <pads = [2, 0]> (q, S, z, U, S, Z, S, Z)
        Y = DequantizeLinear (c, S, Z)
looks 1 frame ahead
    q = QuantizeLinear (X, S, Z)  c = ConvInteger <pads = [1, 1]> (q, U, Z)  Y = Cast <to = 1> (c)
""")


@pytest.mark.parametrize(("head", "message", "nodes"), REFUSED)
def test_a_near_miss_is_refused(head: str, message: str, nodes: str) -> None:
    model = over(head, nodes, WEIGHTS)
    whole(model, {"X": random((2, 3, 5)), "z": np.array(7, np.uint8)})
    with pytest.raises(rl.UnsupportedError, match=message):
        streamed(model, "time")
