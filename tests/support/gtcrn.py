"""A net with the layers of GTCRN (Rong et al., 2024) for whole sequences, with random weights.

The published exports of it are streams already, made by hand; this is what they were made from: spectra
[1, 257, time, 2] in, enhanced spectra out, a convolutional encoder and decoder around two dual-path layers.
"""

from typing import Any

import numpy as np
import onnx
from cases import Array
from graphs import Graph
from stream_models import random, recurrent

LOW, BANDS, BINS = 65, 64, 257


class Net(Graph):
    """A graph of layers with random weights."""

    def weight(self, *shape: int) -> str:
        scale = float(np.prod(shape[1:])) ** -0.5 if len(shape) > 1 else 0.3
        return self.constant(random(shape, len(self.tensors), scale))

    def slice(self, x: str, first: int, last: int, axis: int) -> str:
        return self.node("Slice", x, *(self.constant([n]) for n in (first, last, axis)))

    def half(self, x: str, n: int, axis: int, width: int) -> str:
        return self.slice(x, n * width // 2, (n + 1) * width // 2, axis)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def gru(self, x: str, inputs: int, hidden: int, directions: int = 1) -> str:
        """[length, rows, inputs] to [length, rows, directions * hidden]."""
        held = recurrent("GRU", inputs, hidden, directions=directions, seed=len(self.nodes))
        direction: dict[str, Any] = {"direction": "bidirectional"} if directions == 2 else {}
        weights = [self.constant(array) for array in held.values()]
        y = self.node("GRU", x, *weights, hidden_size=hidden, linear_before_reset=1, **direction)
        if directions == 1:
            return self.node("Squeeze", y, self.constant([1]))
        turned = self.node("Transpose", y, perm=[0, 2, 1, 3])
        return self.node("Reshape", turned, self.constant([0, 0, 2 * hidden]))

    def grouped_gru(self, x: str, inputs: int, hidden: int, directions: int = 1) -> str:
        parts = [self.gru(self.half(x, n, 2, inputs), inputs // 2, hidden // 2, directions) for n in (0, 1)]
        return self.node("Concat", *parts, axis=2)

    def normalized(self, x: str, channels: int, activation: str = "PRelu") -> str:
        """Batch normalization is in the weights, as an export for inference has it."""
        return self.node("Tanh", x) if activation == "Tanh" else self.node("PRelu", x, self.weight(channels, 1, 1))


def _block(net: Net, x: str, channels: tuple[int, int], groups: int, up: bool, activation: str = "PRelu") -> str:
    shape = (channels[0], channels[1] // groups) if up else (channels[1], channels[0] // groups)
    sizes: dict[str, Any] = {"kernel_shape": [1, 5], "strides": [1, 2], "pads": [0, 2, 0, 2], "group": groups}
    op = "ConvTranspose" if up else "Conv"
    made = net.node(op, x, net.weight(*shape, 1, 5), net.weight(channels[1]), **sizes)
    return net.normalized(made, channels[1], activation)


def _neighbors(net: Net, x: str) -> str:
    """Each frequency with those beside it, as channels."""
    padded = net.node("Pad", x, net.constant([0, 0, 0, 1, 0, 0, 0, 1]))
    return net.node("Concat", *(net.slice(padded, n, n - 2 or 2**31 - 1, 3) for n in range(3)), axis=1)


def _attention(net: Net, x: str) -> str:
    """The weight of each channel in each frame, by a GRU over their energies."""
    energy = net.node("ReduceMean", net.node("Mul", x, x), net.constant([3]), keepdims=0)
    y = net.gru(net.node("Transpose", energy, perm=[2, 0, 1]), 8, 16)
    weights = net.node("Sigmoid", net.linear(y, 16, 8))
    turned = net.node("Transpose", weights, perm=[1, 2, 0])
    return net.node("Mul", x, net.node("Unsqueeze", turned, net.constant([3])))


def _temporal_block(net: Net, x: str, dilation: int, up: bool) -> str:
    """Convolutions of half of the channels over two frames before and this one, dilated."""
    first, second = (net.half(x, n, 1, 16) for n in (0, 1))
    op = "ConvTranspose" if up else "Conv"
    h = net.node(op, _neighbors(net, first), net.weight(*((24, 16) if up else (16, 24)), 1, 1), net.weight(16))
    h = net.normalized(h, 16)
    h = net.node("Pad", h, net.constant([0, 0, 2 * dilation, 0, 0, 0, 0, 0]))
    pads = [2 * dilation, 1, 2 * dilation, 1] if up else [0, 1, 0, 1]
    h = net.node(op, h, net.weight(16, 1, 3, 3), net.weight(16), pads=pads, dilations=[dilation, 1], group=16)
    h = net.normalized(h, 16)
    h = net.node(op, h, net.weight(*((16, 8) if up else (8, 16)), 1, 1), net.weight(8))
    pair = [net.node("Unsqueeze", v, net.constant([2])) for v in (_attention(net, h), second)]
    stacked = net.node("Concat", *pair, axis=2)
    return net.node("Reshape", stacked, net.constant([1, 16, -1, 33]))


def _dual_path(net: Net, x: str) -> str:
    """A bidirectional layer over the frequencies of each frame, one over time for each frequency."""
    shape = net.constant([-1, 33, 16])
    t = net.node("Reshape", net.node("Transpose", x, perm=[0, 2, 3, 1]), shape)  # [time, 33, 16]
    intra = net.grouped_gru(net.node("Transpose", t, perm=[1, 0, 2]), 16, 8, 2)
    intra = net.linear(net.node("Transpose", intra, perm=[1, 0, 2]), 16, 16)
    norm: dict[str, Any] = {"axis": 1, "epsilon": 1e-8}
    t = net.node("Add", t, net.node("LayerNormalization", intra, net.weight(33, 16), net.weight(33, 16), **norm))
    inter = net.linear(net.grouped_gru(t, 16, 16), 16, 16)
    t = net.node("Add", t, net.node("LayerNormalization", inter, net.weight(33, 16), net.weight(33, 16), **norm))
    four = net.node("Reshape", t, net.constant([1, -1, 33, 16]))
    return net.node("Transpose", four, perm=[0, 3, 1, 2])


def gtcrn() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The net and an input of 23 frames."""
    net = Net()
    mix = net.input("mix", [1, BINS, "time", 2])
    parts = [net.node("Gather", mix, net.constant(n), axis=3) for n in (0, 1)]  # [1, 257, time]
    squares = [net.node("Mul", p, p) for p in parts]
    power = net.node("Add", net.node("Add", *squares), net.constant(1e-12, np.float32))
    features = [net.node("Unsqueeze", v, net.constant([1])) for v in (net.node("Sqrt", power), *parts)]
    x = net.node("Transpose", net.node("Concat", *features, axis=1), perm=[0, 1, 3, 2])  # [1, 3, time, 257]
    high = net.node("MatMul", net.slice(x, LOW, BINS, 3), net.weight(BINS - LOW, BANDS))
    x = _neighbors(net, net.node("Concat", net.slice(x, 0, LOW, 3), high, axis=3))
    skips = []
    for channels, groups in (((9, 16), 1), ((16, 16), 2)):
        skips.append(x := _block(net, x, channels, groups, up=False))
    for dilation in (1, 2, 5):
        skips.append(x := _temporal_block(net, x, dilation, up=False))
    x = _dual_path(net, _dual_path(net, x))
    for dilation in (5, 2, 1):
        x = _temporal_block(net, net.node("Add", x, skips.pop()), dilation, up=True)
    x = _block(net, net.node("Add", x, skips.pop()), (16, 16), 2, up=True)
    x = _block(net, net.node("Add", x, skips.pop()), (16, 2), 1, up=True, activation="Tanh")
    high = net.node("MatMul", net.slice(x, LOW, LOW + BANDS, 3), net.weight(BANDS, BINS - LOW))
    mask = net.node("Concat", net.slice(x, 0, LOW, 3), high, axis=3)  # [1, 2, time, 257]
    real, imaginary = (net.node("Gather", mask, net.constant(n), axis=1) for n in (0, 1))
    a, b = (net.node("Transpose", p, perm=[0, 2, 1]) for p in parts)
    first = net.node("Sub", net.node("Mul", a, real), net.node("Mul", b, imaginary))
    second = net.node("Add", net.node("Mul", b, real), net.node("Mul", a, imaginary))
    both = [net.node("Unsqueeze", v, net.constant([3])) for v in (first, second)]
    net.node("Transpose", net.node("Concat", *both, axis=3), outputs=["enh"], perm=[0, 2, 1, 3])
    net.output("enh", [1, BINS, "time", 2])
    model = net.model(18)
    onnx.checker.check_model(model, full_check=True)
    return model, {"mix": random((1, BINS, 23, 2), 1)}
