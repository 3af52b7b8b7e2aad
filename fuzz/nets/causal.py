"""Random nets of self-attention for streams: one to three layers, mixed with other blocks along time."""

import random
from typing import Any

import numpy as np

from fuzz.nets.blocks import (
    Block,
    Sequence,
    Signal,
    conv,
    counted,
    linear,
    normalized,
    recurrent,
    strided,
    upsampled,
)
from fuzz.nets.net import Net
from fuzz.nets.pairs import Pairs
from fuzz.nets.sequences import Made

OPSETS = (14, 17, 17, 18, 18, 20, 23, 23, 24)
TYPES = ("float32",) * 14 + ("float16", "float64")
LOW = (-1e9, -1e4, float("-inf"), -65504.0)


def causal(rng: random.Random) -> Made:
    """Make a net of one to three layers of attention, with other blocks before and between them."""
    net = Net(rng, rng.choice(OPSETS), rng.choice(TYPES))
    batch: int | str = rng.choice((1, 2, "batch", "batch"))
    s = Sequence(net, [], batch, "time", rng.choice((1.0, 1.0, 0.5)), {})
    s.signals.append(Signal(net.floating("x", [batch, "time", 4]), "BTC", 4))
    others: dict[Block, float] = {conv: 3, recurrent: 2, linear: 2, normalized: 2, counted: 1}
    others |= {strided: 0.5, upsampled: 0.5}
    for number in range(rng.choice((1, 1, 1, 2, 2, 3))):
        for block in rng.choices([*others], [*others.values()], k=rng.choice((0, 0, 1, 2))):
            block(s)
        if number and rng.random() < 0.3 and s.last.rate == s.signals[0].rate:
            s.put(net.node("MatMul", s.as_layout("BTC"), net.weights(s.last.channels, 4)), "BTC", 4)
        attention(s)
    if s.chance(0.3):
        recurrent(s)
    net.node("Identity", s.as_layout("BTC"), outputs=["y"])
    net.outputs_of("y")
    return Made(net.whole(), ["time"])


def attention(s: Sequence) -> None:
    """A layer of attention: queries, keys and values of each frame, a mask, a bias; most are causal."""
    g, rng, before = s.net, s.net.rng, s.last
    heads, width = rng.choice(((1, 4), (2, 2), (2, 4), (4, 2)))
    groups = rng.choice([n for n in (1, 2, 4) if heads % n == 0] + [heads] * 2)
    x = s.as_layout("BTC")
    pairs = Pairs(g, x, heads)
    q, k, v = (_headed(g, x, before.channels, count, width) for count in (heads, groups, groups))
    if rng.random() < 0.2:
        q, k = (_rotated(g, pairs, each, width) for each in (q, k))
    if g.opset >= 23 and rng.random() < 0.2:
        y = _as_operator(g, pairs, q, k, v)
    else:
        if groups < heads:
            k, v = (_repeated(g, each, heads, groups, width) for each in (k, v))
        y = _weighed(g, pairs, q, k, v)
    joined = g.node("Reshape", g.turned(y, 0, 2, 1, 3), [0, 0, heads * width])
    y = g.node("MatMul", joined, g.weights(heads * width, before.channels))
    if rng.random() < 0.6:
        y = g.node("Add", y, x)
    s.put(y, "BTC", before.channels)


def _headed(g: Net, x: str, channels: int, heads: int, width: int) -> str:
    """Return x as [batch, heads, time, width]."""
    y = g.node("MatMul", x, g.weights(channels, heads * width, scale=2))
    return g.turned(g.node("Reshape", y, [0, 0, heads, width]), 0, 2, 1, 3)


def _rotated(g: Net, pairs: Pairs, value: str, width: int) -> str:
    """RoPE, of the two halves of each head."""
    half = width // 2
    place = g.node("Cast", pairs.i, to=g.kind)
    angle = g.node("Mul", place, np.array([0.7**n for n in range(half)]))
    cos, sin = (g.node("Concat", *[g.node(op, angle)] * 2, axis=-1) for op in ("Cos", "Sin"))
    a, b = g.split(value, [half, half], 3)
    turned = g.node("Concat", g.node("Neg", b), a, axis=3)
    return g.node("Add", g.node("Mul", value, cos), g.node("Mul", turned, sin))


def _repeated(g: Net, value: str, heads: int, groups: int, width: int) -> str:
    """Keys or values for each head of their group."""
    each = g.node("Expand", g.node("Unsqueeze", value, [2]), [1, 1, heads // groups, 1, 1])
    return g.node("Reshape", each, [0, heads, -1, width])


def _as_operator(g: Net, pairs: Pairs, q: str, k: str, v: str) -> str:
    """The operator Attention."""
    if g.rng.random() < 0.5:
        return g.node("Attention", q, k, v, is_causal=1)
    return g.node("Attention", q, k, v, pairs.mask())


def _weighed(g: Net, pairs: Pairs, q: str, k: str, v: str) -> str:
    """Attention node by node; of seven layers one is wrong in its mask or around it."""
    rng, wrong = g.rng, g.rng.choice(("mask", "around") + ("",) * 12)
    scores = g.node("MatMul", q, g.turned(k, 0, 1, 3, 2))
    scores = g.node("Mul", scores, np.array(0.5)) if rng.random() < 0.5 else scores
    if rng.random() < 0.15:
        scores = g.node("Mul", g.node("Tanh", scores), np.array(3.0))
    if rng.random() < 0.35:
        scores = g.node("Add", scores, pairs.bias())
    mask = pairs.trap() if wrong == "mask" else pairs.mask()
    if wrong == "around":
        return _wrong(g, pairs, scores, mask, v)
    weights = g.node("Softmax", _masked(g, scores, mask, rng.choice(LOW)), axis=-1)
    if rng.random() < 0.1:
        weights = g.node("Where", g.node("IsNaN", weights), np.array(0.0), weights)
    return g.node("MatMul", weights, v)


def _masked(g: Net, scores: str, mask: str, low: float) -> str:
    """Remove the scores whose mask is false."""
    with np.errstate(over="ignore"):
        value = np.array(low, g.floats)
    match g.rng.randrange(4):
        case 0:
            return g.node("Where", mask, scores, value)
        case 1:
            return g.node("Where", g.node("Not", mask), value, scores)
        case 2 if np.isfinite(value):
            removed = g.node("Sub", np.array(1.0), g.node("Cast", mask, to=g.kind))
            return g.node("Add", scores, g.node("Mul", removed, value))
        case _:
            return g.node("Add", scores, g.node("Where", mask, np.array(0.0, g.floats), value))


def _wrong(g: Net, pairs: Pairs, scores: str, mask: str, v: str) -> str:
    """Weights of a causal mask that no stream can have: by the queries, too late, with the length, or weakly."""
    given: dict[str, Any] = {"axis": -1}
    match g.rng.randrange(7):
        case 0:
            given["axis"] = -2
        case 1:
            weights = g.node("Softmax", scores, **given)
            return g.node("MatMul", g.node("Mul", weights, g.node("Cast", mask, to=g.kind)), v)
        case 2:
            scores = g.node("Div", scores, g.node("Sqrt", g.node("Cast", pairs.size, to=g.kind)))
        case 3:
            return g.node("MatMul", g.node("Softmax", _masked(g, scores, mask, -12.0), **given), v)
        case 4:
            scores = g.node("Sub", scores, g.reduced("Max", scores, -1))
        case 5:
            weights = g.node("Softmax", _masked(g, scores, mask, -1e9), **given)
            return g.node("MatMul", g.node("Div", weights, g.reduced("Sum", weights, -2)), v)
        case _:
            return g.node("MatMul", g.node("Softmax", scores, **given), v)
    return g.node("MatMul", g.node("Softmax", _masked(g, scores, mask, -1e9), **given), v)
