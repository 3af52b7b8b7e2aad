"""Blocks of nets that run along time, as engineers write them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from graphs import MS
from onnx import helper

from fuzz.nets.net import FAR, Net

PERMS = {
    **{"BCT>BTC": (0, 2, 1), "BTC>BCT": (0, 2, 1), "BTC>TBC": (1, 0, 2), "TBC>BTC": (1, 0, 2)},
    **{"BCT>TBC": (2, 0, 1), "TBC>BCT": (1, 2, 0)},
}


@dataclass(frozen=True)
class Signal:
    """A value with frames.

    Attributes:
        layout: The order of batch, channels and time: "BCT", "BTC" or "TBC".
        rate: Its frames for each frame of the input, as a pair.
    """

    name: str
    layout: str
    channels: int
    rate: tuple[int, int] = (1, 1)


@dataclass
class Sequence:
    """A net that grows along time.

    Attributes:
        net: The graph.
        signals: All values with frames so far.
        batch: The size of the batch in the inputs: a number or a name.
        frames: Likewise of the frames.
        causal: How often a convolution does not look ahead.
    """

    net: Net
    signals: list[Signal]
    batch: int | str
    frames: int | str
    causal: float
    high: dict[str, int]
    lengths: str = ""

    @property
    def last(self) -> Signal:
        return self.signals[-1]

    def put(self, name: str, layout: str, channels: int, rate: tuple[int, int] | None = None) -> None:
        self.signals.append(Signal(name, layout, channels, rate or self.last.rate))

    def as_layout(self, layout: str, signal: Signal | None = None) -> str:
        """The last value, or another, in a layout."""
        held = signal or self.last
        if held.layout == layout:
            return held.name
        return self.net.turned(held.name, *PERMS[f"{held.layout}>{layout}"])

    def chance(self, often: float) -> bool:
        return self.net.rng.random() < often


Block = Callable[[Sequence], None]


def conv(s: Sequence) -> None:
    """Conv1d, causal by its pads, a Pad, a Concat of zeros or a cut, or looking ahead; with what follows it."""
    g, rng = s.net, s.net.rng
    kernel, dilation = rng.choice((1, 2, 3, 3, 5)), rng.choice((1, 1, 2, 3))
    span, C = (kernel - 1) * dilation, s.last.channels
    group = rng.choice((1, 1, C))
    out = C if group > 1 else rng.choice((C, C, 4, 6))
    weights = [g.weights(out, C // group, kernel)] + ([g.weights(out)] if s.chance(0.6) else [])
    more: dict[str, Any] = {"dilations": [dilation], "group": group}
    x, kind = s.as_layout("BCT"), rng.randrange(4)
    if not s.chance(s.causal):
        pads = rng.choice(([span // 2, span - span // 2], [0, 0], [0, span], [span, 0]))
        y = g.node("Conv", x, *weights, pads=pads, **more)
    elif kind == 0:
        y = g.node("Conv", x, *weights, pads=[span, 0], **more)
    elif kind == 1 and span:
        y = g.slice(g.node("Conv", x, *weights, pads=[span, span], **more), 0, -span)
    elif kind == 2 and isinstance(s.batch, int) and span:
        zeros = g.constant(np.zeros((s.batch, C, span)))
        y = g.node("Conv", g.node("Concat", zeros, x, axis=2), *weights, **more)
    else:
        y = g.node("Conv", g.pad(x, [0, 0, span, 0, 0, 0]), *weights, **more)
    if s.chance(0.4):
        y = norm(g, y, out)
    s.put(activated(g, y, out), "BCT", out)


def norm(g: Net, value: str, channels: int) -> str:
    """BatchNormalization in inference."""
    scale, variance = (g.constant(np.abs(g.numbers(channels)) + 0.5) for _ in range(2))
    shift, mean = g.weights(channels), g.weights(channels)
    return g.node("BatchNormalization", value, scale, shift, mean, variance)


def activated(g: Net, value: str, channels: int) -> str:
    kind = g.rng.choice(("Relu", "Tanh", "LeakyRelu", "Elu", "PRelu", "Swish", "Clip", ""))
    if kind == "PRelu":
        return g.node("PRelu", value, g.weights(channels, 1))
    if kind == "Swish":
        return g.node("Mul", value, g.node("Sigmoid", value))
    if kind == "Clip":
        return g.clip(value, 0.0, 1.0)
    return g.node(kind, value) if kind else value


def residual(s: Sequence) -> None:
    """A block whose result is added to its input, or joined along the channels."""
    before = s.last
    conv(s)
    if s.last.rate != before.rate:
        return
    a, b = s.as_layout("BCT"), s.as_layout("BCT", before)
    if s.last.channels == before.channels:
        s.put(s.net.node("Add", b, a), "BCT", before.channels)
    else:
        s.put(s.net.node("Concat", a, b, axis=1), "BCT", before.channels + s.last.channels)


def skip(s: Sequence) -> None:
    """An earlier value of the same rate is added, multiplied as a mask, or joined."""
    g, found = s.net, [v for v in s.signals[:-1] if v.rate == s.last.rate]
    if not found:
        return
    other = g.rng.choice(found)
    a, b = s.as_layout("BTC"), s.as_layout("BTC", other)
    if other.channels == s.last.channels and s.chance(0.7):
        kind = g.rng.choice(("Add", "Sub", "Mul"))
        s.put(g.node(kind, g.node("Sigmoid", a) if kind == "Mul" else a, b), "BTC", other.channels)
    else:
        s.put(g.node("Concat", a, b, axis=2), "BTC", other.channels + s.last.channels)


def recurrent(s: Sequence) -> None:
    """RNN, GRU or LSTM: with a state that the caller keeps, from a side input, constant, or none."""
    g, rng, C = s.net, s.net.rng, s.last.channels
    op_type, H = rng.choice(("GRU", "GRU", "LSTM", "LSTM", "RNN")), rng.choice((2, 3, 4))
    both = s.chance(0.03)
    D = 2 if both else 1
    more: dict[str, Any] = {"hidden_size": H}
    if both:
        more["direction"] = "bidirectional"
    if op_type == "GRU" and s.chance(0.4):
        more["linear_before_reset"] = 1
    if s.chance(0.1):
        more["clip"] = 0.7
    layout = int(g.opset >= 14 and s.chance(0.08))
    if layout:
        more["layout"] = 1
    lens = s.lengths if s.lengths and s.last.rate == (1, 1) and s.chance(0.7) else ""
    states = [_state(s, op_type, D, H, layout, n) for n in range(2 if op_type == "LSTM" else 1)]
    x = s.as_layout("BTC" if layout else "TBC")
    given = [x, *g.recurrent(op_type, C, H, D), lens, *states]
    if op_type == "LSTM" and s.chance(0.1):
        given.append(g.weights(D, 3 * H))
    while not given[-1]:
        given.pop()
    count = rng.choice((1, 1, 2, 3 if op_type == "LSTM" else 2))
    y, *finals = g.several(op_type, *given, outputs=count, **more)
    for n, final in enumerate(finals):
        name = states[n]
        if name and name.startswith("h0_"):
            g.node("Identity", final, outputs=[f"hn_{name[3:]}"])
            g.outputs_of(f"hn_{name[3:]}")
        elif s.chance(0.5) and s.last.rate == (1, 1):
            g.outputs_of(final)
    if layout:
        s.put(g.node("Reshape", y, [0, 0, D * H]), "BTC", D * H)
    else:
        s.put(
            g.squeeze(y, 1) if D == 1 else g.node("Reshape", g.turned(y, 0, 2, 1, 3), [0, 0, D * H]), "TBC", D * H
        )


def _state(s: Sequence, op_type: str, D: int, H: int, layout: int, n: int) -> str:
    """An initial state, or nothing."""
    g = s.net
    kind = g.rng.choice(("", "", "", "input", "zeros", "side", "sized"))
    shape = [s.batch, D, H] if layout else [D, s.batch, H]
    if kind == "input":
        return g.floating(f"h0_{len(g.nodes)}_{n}", shape)
    if kind == "zeros" and isinstance(s.batch, int):
        return g.constant(np.full([int(size) for size in shape], g.rng.choice((0.0, 0.5))))
    if kind == "side" and D == 1:
        side = g.floating(f"side_{len(g.nodes)}_{n}", [s.batch, 5])
        return g.unsqueeze(g.node("Tanh", g.node("MatMul", side, g.weights(5, H))), 1 if layout else 0)
    if kind == "sized":
        size = g.size(s.signals[0].name, s.signals[0].layout.index("B"))
        sizes = g.node("Concat", *((size, [D], [H]) if layout else ([D], size, [H])), axis=0)
        return g.node("ConstantOfShape", sizes, value=helper.make_tensor("", g.kind, [1], [0.0]))
    return ""


def normalized(s: Sequence) -> None:
    """A normalization along the channels of a frame, by an operator or node by node."""
    g, C, x = s.net, s.last.channels, s.as_layout("BTC")
    if g.opset >= 17 and s.chance(0.5):
        y = g.node("LayerNormalization", x, g.weights(C), *([g.weights(C)] if s.chance(0.5) else []), axis=-1)
    elif g.opset >= 23 and s.chance(0.5):
        y = g.node("RMSNormalization", x, g.weights(C), axis=-1)
    else:
        centred = g.node("Sub", x, g.reduced("Mean", x, -1 if g.opset >= 11 else 2))
        variance = g.reduced("Mean", g.node("Mul", centred, centred), -1 if g.opset >= 11 else 2)
        root = g.node("Sqrt", g.node("Add", variance, np.array(1e-3)))
        y = g.node("Add", g.node("Mul", g.node("Div", centred, root), g.weights(C)), g.weights(C))
    s.put(y, "BTC", C)


def linear(s: Sequence) -> None:
    """A layer of each frame: MatMul, a Conv of 1, an Einsum or a Gemm of all frames."""
    g, C, out = s.net, s.last.channels, s.net.rng.choice((2, 3, 4))
    kind = g.rng.choice(("MatMul", "Conv", "Gemm", "Einsum" if g.opset >= 12 else "MatMul"))
    if kind == "Conv":
        s.put(g.node("Conv", s.as_layout("BCT"), g.weights(out, C, 1)), "BCT", out)
    elif kind == "Gemm" and isinstance(s.batch, int):
        flat = g.node("Reshape", s.as_layout("BTC"), [-1, C])
        flat = g.node("Gemm", flat, g.weights(out, C), g.weights(out), transB=1)
        s.put(g.node("Reshape", flat, [s.batch, -1, out]), "BTC", out)
    elif kind == "Einsum":
        s.put(g.node("Einsum", s.as_layout("BTC"), g.weights(C, out), equation="btc,co->bto"), "BTC", out)
    else:
        layout = g.rng.choice(("BTC", "TBC"))
        s.put(g.node("Add", g.node("MatMul", s.as_layout(layout), g.weights(C, out)), g.weights(out)), layout, out)


def gated(s: Sequence) -> None:
    """GLU and a depthwise convolution: the middle of a conformer's block."""
    g, C, before = s.net, s.last.channels, s.last
    normalized(s)
    wide = g.node("Conv", s.as_layout("BCT"), g.weights(2 * C, C, 1))
    a, b = g.split(wide, [C, C], 1)
    s.put(g.node("Mul", a, g.node("Sigmoid", b)), "BCT", C)
    conv(s)
    y = g.node("Conv", s.as_layout("BCT"), g.weights(C, s.last.channels, 1))
    if s.last.rate == before.rate and not g.rng.randrange(3):
        y = g.node("Add", y, s.as_layout("BCT", before))
    s.put(y, "BCT", C)


def strided(s: Sequence) -> None:
    """Fewer frames: a strided convolution, a pooling, joined frames, or every second one."""
    g, rng, C = s.net, s.net.rng, s.last.channels
    p, q = s.last.rate
    stride, kind = rng.choice((2, 2, 3, 4)), rng.randrange(4)
    if q * stride > 12:
        return
    rate = (p, q * stride)
    kernel = rng.choice((stride, stride + 1, 2 * stride))
    pads = rng.choice(([kernel - stride, 0], [kernel - 1, 0]))
    if kind == 0:
        y = g.node("Conv", s.as_layout("BCT"), g.weights(C, C, kernel), pads=pads, strides=[stride])
        s.put(activated(g, y, C), "BCT", C, rate)
    elif kind == 1:
        pool = rng.choice(("MaxPool", "AveragePool"))
        y = g.node(pool, s.as_layout("BCT"), kernel_shape=[kernel], pads=pads, strides=[stride])
        s.put(y, "BCT", C, rate)
    elif kind == 2 and isinstance(s.batch, int):
        s.put(g.node("Reshape", s.as_layout("BTC"), [s.batch, -1, C * stride]), "BTC", C * stride, rate)
    elif g.opset >= 10:
        s.put(g.slice(s.as_layout("BCT"), 0, FAR, 2, stride), "BCT", C, rate)


def upsampled(s: Sequence) -> None:
    """More frames, back to an earlier rate: a transposed convolution, repeated or shuffled frames."""
    g, rng, C = s.net, s.net.rng, s.last.channels
    p, q = s.last.rate
    times = next((n for n in (4, 3, 2) if q % n == 0), 0) or rng.choice((2, 3))
    rate = (p, q // times) if q % times == 0 else (p * times, q)
    kind, x = rng.randrange(4), s.as_layout("BCT")
    if rate[0] > 6:
        return
    if kind == 0 and g.opset >= 11:
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        s.put(g.node("Resize", x, "", g.constant([1, 1, times], np.float32), **modes), "BCT", C, rate)
    elif kind == 1 and isinstance(s.batch, int):
        wide = g.node("Conv", x, g.weights(C * times, C, 1))
        s.put(g.node("Reshape", g.turned(wide, 0, 2, 1), [s.batch, -1, C]), "BTC", C, rate)
    elif kind == 2 and isinstance(s.batch, int) and g.opset >= 9:
        tiled = g.node("Tile", g.unsqueeze(x, 3), [1, 1, 1, times])
        s.put(g.node("Reshape", tiled, [s.batch, C, -1]), "BCT", C, rate)
    else:
        kernel = rng.choice((times, 2 * times, times + 1))
        y = g.node("ConvTranspose", x, g.weights(C, C, kernel), strides=[times])
        s.put(g.slice(y, 0, times - kernel) if kernel > times else y, "BCT", C, rate)


def counted(s: Sequence) -> None:
    """Positions: a row of a table, or a wave, is added to each frame."""
    g, C = s.net, s.last.channels
    if g.opset < 11:
        return
    x = s.as_layout("BTC")
    count = g.node("Range", 0, g.node("Squeeze", g.size(x, 1)), 1)
    if s.chance(0.5):
        added = g.node("Gather", g.weights(600, C), count)
    else:
        waves = g.node("Mul", g.node("Cast", g.unsqueeze(count, 1), to=g.kind), g.numbers(1, C))
        added = g.node("Sin", waves)
    s.put(g.node("Add", x, added), "BTC", C)


def summed(s: Sequence) -> None:
    """The running mean of all frames so far is taken away."""
    g = s.net
    if g.opset < 11:
        return
    x = s.as_layout("BTC")
    total = g.node("CumSum", x, 1)
    count = g.node("Range", 1, g.node("Add", g.node("Squeeze", g.size(x, 1)), 1), 1)
    mean = g.node("Div", total, g.node("Cast", g.unsqueeze(count, 1), to=g.kind))
    s.put(g.node("Sub", x, mean), "BTC", s.last.channels)


def cached(s: Sequence) -> None:
    """A cache that the caller keeps: the frames before the chunk of a convolution."""
    g, C, kernel = s.net, s.last.channels, s.net.rng.choice((2, 3, 4))
    if s.last.rate != (1, 1):
        return
    number = len(g.nodes)
    cache = g.floating(f"cache_{number}", [s.batch, C, kernel - 1])
    joined = g.node("Concat", cache, s.as_layout("BCT"), axis=2)
    name = f"cached_{number}"
    kept = g.slice(joined, 1 - kernel, FAR)
    g.node("Identity", kept, outputs=[name])
    g.outputs_of(name)
    s.put(g.node("Conv", joined, g.weights(C, C, kernel)), "BCT", C)


def shifted(s: Sequence) -> None:
    """The frame before is joined to each."""
    g, C, x = s.net, s.last.channels, s.as_layout("BCT")
    before = g.pad(g.slice(x, 0, -1), [0, 0, 1, 0, 0, 0])
    s.put(g.node("Concat", x, before, axis=1), "BCT", 2 * C)


def pooled(s: Sequence) -> None:
    """A value of all frames so far, or the last frame, as an output of its own."""
    g, x = s.net, s.as_layout("BTC")
    kind = g.rng.choice(("Mean", "Max", "Sum", "last", "Min"))
    if kind == "last":
        y = g.node("Gather", x, -1 if g.opset >= 11 else 0, axis=1)
    else:
        y = g.reduced(kind, x, 1, keepdims=0)
    g.outputs_of(g.node("Tanh", y) if s.chance(0.5) else y)


def another(s: Sequence) -> None:
    """A second input with frames, such as a reference signal or tokens."""
    g, name = s.net, f"other_{len(s.net.nodes)}"
    if s.last.rate != (1, 1):
        return
    C = g.rng.choice((2, 3))
    if s.chance(0.5):
        g.input(name, [s.batch, s.frames], np.int64)
        s.high[name] = 7
        found = g.node("Gather", g.weights(7, C), name)
    else:
        found = g.floating(name, [s.batch, s.frames, C])
    s.put(g.node("Concat", s.as_layout("BTC"), found, axis=2), "BTC", C + s.last.channels)


def side(s: Sequence) -> None:
    """An input without frames, such as a speaker: added to each, or a gain."""
    g, C = s.net, s.last.channels
    name = g.floating(f"speaker_{len(g.nodes)}", [s.batch, C])
    s.put(g.node(g.rng.choice(("Add", "Mul")), s.as_layout("BTC"), g.unsqueeze(name, 1)), "BTC", C)


def rowwise(s: Sequence) -> None:
    """A parameter with a row for each frame, of a net of a fixed length."""
    g, C = s.net, s.last.channels
    if not isinstance(s.frames, int) or s.last.rate != (1, 1):
        return
    T, x = s.frames, s.as_layout("BTC")
    kinds = ["Add", "Mul", "PRelu", "Where", "Norm", "Einsum", "MatMul", "Concat", "Gemm", "Quantize", "Pow"]
    match g.rng.choice(kinds):
        case "PRelu":
            y = g.node("PRelu", x, g.weights(T, 1))
        case "Where" if g.opset >= 9:
            y = g.node("Where", np.arange(T)[:, None] % 3 > 0, x, np.array(0.0, g.floats))
        case "Norm" if g.opset >= 17:
            y = g.node("LayerNormalization", x, g.weights(T, C), axis=1)
        case "Einsum" if g.opset >= 12:
            y = g.node("Einsum", x, g.numbers(T, C), equation="btc,tc->btc")
        case "MatMul":
            y = g.node("MatMul", x, g.weights(T, C, C))
            y = g.node("Squeeze", y) if y == "" else g.node("MatMul", x, g.weights(C, C))
        case "Concat" if isinstance(s.batch, int):
            y = g.slice(g.node("Concat", x, g.numbers(s.batch, T, 1), axis=2), 0, C, 2)
        case "Gemm" if isinstance(s.batch, int) and s.batch == 1:
            flat = g.node("Gemm", g.node("Reshape", x, [T, C]), g.weights(C, C), g.numbers(T, C))
            y = g.node("Reshape", flat, [1, T, C])
        case "Quantize" if g.opset >= 13 and g.dtype == "float32":
            scale = np.abs(g.numbers(T)) * 0.1 + 0.01
            zero = np.zeros(T, np.int8)
            y = g.node("QuantizeLinear", x, scale, zero, axis=1)
            y = g.node("DequantizeLinear", y, scale, zero, axis=1)
        case "Mul":
            y = g.node("Mul", x, g.numbers(T, 1))
        case _:
            y = g.node("Add", x, g.numbers(T, g.rng.choice((1, C))))
    s.put(y, "BTC", C)


def causal_conv(s: Sequence) -> None:
    """CausalConvWithState, with a state that the caller keeps or without."""
    g, C, kernel = s.net, s.last.channels, s.net.rng.choice((2, 3, 4))
    standard = g.opset >= 27
    given = [s.as_layout("BCT"), g.weights(C, 1, kernel), g.weights(C) if s.chance(0.5) else ""]
    number = len(g.nodes)
    if held := s.chance(0.5) and s.last.rate == (1, 1):
        given.append(g.floating(f"conv_{number}", [s.batch, C, kernel - 1]))
    while not given[-1]:
        given.pop()
    activation = g.rng.choice(("silu", "none"))
    more = {"domain": "" if standard else MS, "activation": activation}
    y, present = g.several("CausalConvWithState", *given, outputs=2, **more)
    if held:
        g.node("Identity", present, outputs=[f"conved_{number}"])
        g.outputs_of(f"conved_{number}")
    s.put(y, "BCT", C)


def attention(s: Sequence) -> None:
    """LinearAttention of two heads, with a state that the caller keeps or without."""
    g, C, standard = s.net, s.last.channels, s.net.opset >= 27
    x, rule = s.as_layout("BTC"), s.net.rng.choice(("linear", "gated", "delta", "gated_delta"))
    q, k, v = (g.node("MatMul", x, g.weights(C, 4)) for _ in range(3))
    number, state = len(g.nodes), ""
    if s.chance(0.8) and s.last.rate == (1, 1):
        state = g.floating(f"att_{number}", [s.batch, 2, 2, 2])
    decay = beta = ""
    if rule.startswith("gated"):
        decay = g.node("Neg", g.node("Abs", g.node("MatMul", x, g.weights(C, 2))))
    if rule.endswith("delta"):
        beta = g.node("Sigmoid", g.node("MatMul", x, g.weights(C, 2)))
        k = g.node("Mul", k, np.array(0.3))
    given = [q, k, v, state, decay, beta]
    while not given[-1]:
        given.pop()
    heads = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": rule}
    y, present = g.several("LinearAttention", *given, outputs=2, domain="" if standard else MS, **heads)
    if state:
        g.node("Identity", present, outputs=[f"atted_{number}"])
        g.outputs_of(f"atted_{number}")
    s.put(y, "BTC", 4)


def spectral(s: Sequence) -> None:
    """A convolution over time and frequency, of each channel as a frequency; a GRU over the frequencies."""
    g, C = s.net, s.last.channels
    if C < 3:
        return
    x = g.unsqueeze(s.as_layout("BTC"), 1)
    y = g.node("Conv", g.pad(x, [0, 0, 2, 1, 0, 0, 0, 1]), g.weights(2, 1, 3, 3))
    y = g.node("Conv", activated(g, y, 1) if s.chance(0.3) else y, g.weights(1, 2, 1, 1))
    s.put(g.squeeze(y, 1), "BTC", C)


def scanned(s: Sequence) -> None:
    """A cell of one's own, as a Scan over the frames."""
    g, C = s.net, s.last.channels
    if g.opset < 9 or not isinstance(s.batch, int):
        return
    body = Net(g.rng, g.opset, g.dtype)
    h, x = body.floating("h", [s.batch, C]), body.floating("x", [s.batch, C])
    mixed = body.node("Add", body.node("MatMul", h, g.constant(g.numbers(C, C, scale=0.5))), x, name="mixed")
    new = body.node("Tanh", mixed, name="new")
    body.node("Identity", new, outputs=["row"])
    body.outputs_of(new, "row")
    graph = helper.make_graph(body.nodes, "cell", body.inputs, body.outputs)
    first = g.constant(np.zeros((s.batch, C)))
    _, y = g.several("Scan", first, s.as_layout("TBC"), outputs=2, body=graph, num_scan_inputs=1)
    s.put(y, "TBC", C)


def unused(s: Sequence) -> None:
    """A node that nothing reads, an input that nothing reads."""
    g = s.net
    if s.chance(0.5):
        g.floating(f"idle_{len(g.nodes)}", [s.batch, 2])
    else:
        g.node(g.rng.choice(("Relu", "Shape", "Tanh")), s.last.name)


def attended(s: Sequence) -> None:
    """Attention of each frame to the last few, by windows that a table picks."""
    g, C, count = s.net, s.last.channels, s.net.rng.choice((2, 3, 4))
    if g.opset < 11 or not isinstance(s.batch, int):
        return
    x = s.as_layout("BTC")
    padded = g.pad(x, [0, count - 1, 0, 0, 0, 0])
    places = g.node("Add", g.unsqueeze(g.node("Range", 0, g.node("Squeeze", g.size(x, 1)), 1), 1), np.arange(count))
    windows = g.node("Gather", padded, places, axis=1)
    scores = g.node("MatMul", windows, g.turned(g.node("Unsqueeze", x, [2]), 0, 1, 3, 2)) if g.opset >= 13 else ""
    if scores:
        weighed = g.node("Mul", windows, g.node("Softmax", scores, axis=2))
        s.put(g.reduced("Sum", weighed, 2, keepdims=0), "BTC", C)


BLOCKS: dict[Block, float] = {
    **{conv: 3, residual: 2, skip: 3, recurrent: 4, normalized: 1, linear: 2, gated: 1, strided: 2, upsampled: 2},
    **{counted: 0.6, summed: 0.6, cached: 0.8, shifted: 0.6, pooled: 0.8, another: 0.6, side: 0.6, rowwise: 0.8},
    **{causal_conv: 0.8, attention: 0.6, spectral: 0.6, scanned: 0.5, unused: 0.6, attended: 0.4},
}
"""The blocks, with how often each comes."""
