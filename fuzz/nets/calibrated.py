"""Nets for streams in integers: what has -inf or -1e9 in it, first states of -inf, and parameters of two axes."""

import random

import numpy as np
import onnx

from fuzz.nets.blocks import (
    Block,
    Sequence,
    Signal,
    conv,
    counted,
    linear,
    normalized,
    recurrent,
    residual,
    shifted,
)
from fuzz.nets.causal import attention
from fuzz.nets.net import Net

OPSETS = (14, 17, 18, 18, 21, 21, 21, 23)
CHANNELS = 4
LOW = (float("-inf"), -1e9, -65504.0)


def net_of(rng: random.Random) -> onnx.ModelProto:
    """Make a net of one to three blocks over [1, time, 4], which may look ahead, some with a pooled value."""
    net = Net(rng, rng.choice(OPSETS))
    s = Sequence(net, [Signal(net.floating("x", [1, "time", CHANNELS]), "BTC", CHANNELS)], 1, "time", 0.6, {})
    for block in rng.choices([*BLOCKS], [*BLOCKS.values()], k=rng.choice((1, 1, 2, 2, 3))):
        block(s)
    if rng.random() < 0.4:
        _pooled(s)
    if s.chance(0.4):
        recurrent(s)
    net.node("Identity", s.as_layout("BTC"), outputs=["y"])
    net.outputs_of("y")
    return net.whole()


def _windowed(s: Sequence) -> None:
    """The largest of the last frames: by pads of the pooling, or by a Pad of low numbers in front of it."""
    g, kernel = s.net, s.net.rng.choice((2, 3, 5))
    x = s.as_layout("BCT")
    if g.rng.random() < 0.5:
        y = g.node("MaxPool", x, kernel_shape=[kernel], pads=[kernel - 1, 0], strides=[1])
    else:
        low = g.pad(x, [0, 0, kernel - 1, 0, 0, 0], g.rng.choice(LOW))
        y = g.node("MaxPool", low, kernel_shape=[kernel], strides=[1])
    s.put(y, "BCT", s.last.channels)


def _two_axes(s: Sequence) -> None:
    """A normalization whose parameters have two axes."""
    g, C = s.net, s.last.channels
    if g.opset < 17 or C % 2:
        return
    parts = g.node("Reshape", s.as_layout("BTC"), [0, 0, C // 2, 2])
    scale = g.constant(np.abs(g.numbers(C // 2, 2)) + 0.5)
    y = g.node("LayerNormalization", parts, scale, g.weights(C // 2, 2), axis=2)
    s.put(g.node("Reshape", y, [0, 0, C]), "BTC", C)


def _pooled(s: Sequence) -> None:
    """A value of all frames so far: an extreme, a sum or mean, or weights by Softmax."""
    g, x = s.net, s.as_layout("BTC", s.signals[0] if s.chance(0.6) else None)
    kind = g.rng.choice(("Max", "Min", "Mean", "LogSumExp", "LogSumExp", "softmax"))
    if kind == "softmax":
        weighed = g.node("Mul", g.node("Softmax", g.node("Mul", x, np.array(3.0)), axis=1), x)
        y = g.reduced("Sum", weighed, 1, keepdims=0)
    else:
        y = g.reduced(kind, x, 1, keepdims=0)
    g.outputs_of(g.node("Identity", y, outputs=["pooled"]))


BLOCKS: dict[Block, float] = {
    **{attention: 3, _windowed: 3, _two_axes: 1.5, recurrent: 2, conv: 2, linear: 1},
    **{normalized: 1, residual: 1, shifted: 1, counted: 0.5},
}
"""The blocks, with how often each comes."""
