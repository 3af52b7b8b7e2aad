"""Models in the shape of real ones, with random weights: two layers of Qwen3.5's linear attention, and of Mamba.

Each layer has a state of its convolution and one of its attention; inputs and outputs are a pair for each. `T` is
the number of tokens, `B` the batch size; both are open.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from graphs import MS, Graph, Shape

from rnn_lowering.types import Array


@dataclass
class Net(Graph):
    """A graph of layers; `domain` is that of the recurrent operators."""

    domain: str = MS
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def ints(self, *numbers: int) -> str:
        return self.constant(numbers)

    def weight(self, *shape: int, size: float = 1.0) -> str:
        scale = size * shape[0] ** -0.5
        return self.constant(self.rng.standard_normal(shape) * scale, np.float32)

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.node("MatMul", x, self.weight(rows, columns))

    def give(self, name: str, value: str, shape: Shape) -> None:
        self.node("Identity", value, outputs=[name], name=name)
        self.output(name, shape)

    def norm(self, x: str, width: int) -> str:
        """RMSNorm, as exporters write it."""
        mean = self.node("ReduceMean", self.node("Mul", x, x), self.ints(-1))
        size = self.node("Sqrt", self.node("Add", mean, self.constant(1e-6, np.float32)))
        scale = self.constant(self.rng.uniform(0.5, 1.5, width), np.float32)
        return self.node("Mul", self.node("Div", x, size), scale)

    def causal_conv(self, x: str, layer: int, channels: int, k: int = 4) -> str:
        """Convolve x [B, T, channels]."""
        past = self.input(f"past_conv.{layer}", ["B", channels, k - 1])
        weight = self.constant(self.rng.standard_normal((channels, 1, k)) * 0.5, np.float32)
        bias = self.constant(self.rng.standard_normal(channels) * 0.1, np.float32)
        y, present = self.several(
            "CausalConvWithState",
            self.node("Transpose", x, perm=[0, 2, 1]),
            weight,
            bias,
            past,
            outputs=2,
            domain=self.domain,
            activation="silu",
        )
        self.give(f"present_conv.{layer}", present, ["B", channels, k - 1])
        return self.node("Transpose", y, perm=[0, 2, 1])

    def attention(self, layer: int, given: Sequence[str], state: Sequence[int], **attributes: Any) -> str:
        query, key, value, *gates = given
        past = self.input(f"past_state.{layer}", ["B", *state])
        y, present = self.several(
            "LinearAttention", query, key, value, past, *gates, outputs=2, domain=self.domain, **attributes
        )
        self.give(f"present_state.{layer}", present, ["B", *state])
        return y

    def whole(self) -> onnx.ModelProto:
        return self.model(23 if self.domain else 27, [MS] if self.domain else [], ir_version=10)


def qwen(domain: str = MS, width: int = 16, seed: int = 0) -> onnx.ModelProto:
    """Two layers as in Qwen3.5: of com.microsoft 2 query and key heads for 4 states, and gates of its own; of the
    standard 4 query heads for 2 states."""
    net, d = Net(domain=domain, rng=np.random.default_rng(seed)), 4
    queries, states = (2, 4) if domain else (4, 2)
    keys = queries if domain else states
    sizes = [queries * d, keys * d, states * d]
    x = net.input("hidden", ["B", "T", width])
    for layer in range(2):
        normed = net.norm(x, width)
        mixed = net.causal_conv(net.linear(normed, width, sum(sizes)), layer, sum(sizes))
        q, k, v = net.several("Split", mixed, net.ints(*sizes), outputs=3, axis=2)
        q, k = (_unit_heads(net, part, heads, d) for part, heads in ((q, queries), (k, keys)))
        a, b = (net.linear(normed, width, states) for _ in range(2))
        bias = net.constant(net.rng.uniform(-1, 1, states), np.float32)
        scale = net.constant(-net.rng.uniform(0.1, 1, states), np.float32)
        if domain:
            decay, beta = net.several("LinearAttentionGate", a, bias, scale, b, outputs=2, domain=MS)
        else:
            decay = net.node("Mul", net.node("Softplus", net.node("Add", a, bias)), scale)
            beta = net.node("Sigmoid", b)
        heads = {"q_num_heads": queries, "kv_num_heads": states}
        y = net.attention(layer, [q, k, v, decay, beta], [states, d, d], update_rule="gated_delta", **heads)
        read = max(queries, states)
        z = net.linear(normed, width, read * d)
        x = net.node("Add", x, net.linear(_gated_norm(net, y, z, read, d), read * d, width))
    net.give("output", x, ["B", "T", width])
    return net.whole()


def _unit_heads(net: Net, x: str, heads: int, d: int) -> str:
    """Return x with each head of length 1."""
    split = net.node("Reshape", x, net.ints(0, 0, heads, d))
    total = net.node("ReduceSum", net.node("Mul", split, split), net.ints(-1))
    unit = net.node("Div", split, net.node("Sqrt", net.node("Add", total, net.constant(1e-6, np.float32))))
    return net.node("Reshape", unit, net.ints(0, 0, heads * d))


def _gated_norm(net: Net, y: str, z: str, heads: int, d: int) -> str:
    scale = net.constant(net.rng.uniform(0.5, 1.5, d), np.float32)
    if net.domain:
        return net.node("GatedRMSNorm", y, scale, z, domain=MS)
    split = net.node("Reshape", y, net.ints(0, 0, heads, d))
    normed = net.node("Reshape", net.norm(split, d), net.ints(0, 0, heads * d))
    return net.node("Mul", normed, net.node("Mul", z, net.node("Sigmoid", z)))


def mamba(domain: str = MS, width: int = 8, seed: int = 0) -> onnx.ModelProto:
    """Two layers as in Mamba: a state of [16, 1] for each of its channels, decays for each key dimension. Of
    com.microsoft all channels share a query and a key; the standard has one for each."""
    net, inner, d = Net(domain=domain, rng=np.random.default_rng(seed)), 2 * width, 16
    x = net.input("hidden", ["B", "T", width])
    for layer in range(2):
        projected = net.linear(net.norm(x, width), width, 2 * inner)
        u, z = net.several("Split", projected, net.ints(inner, inner), outputs=2, axis=2)
        u = net.causal_conv(u, layer, inner)
        step = net.node("Softplus", net.node("Add", net.linear(u, inner, inner), net.weight(inner)))
        query, key = (net.linear(u, inner, d) for _ in range(2))
        if not domain:
            query, key = (net.node("Tile", part, net.ints(1, 1, inner)) for part in (query, key))
        rates = net.constant(-np.tile(np.arange(1, d + 1, dtype=np.float32), (inner, 1)) / 4)
        each = net.node("Mul", net.node("Reshape", step, net.ints(0, 0, inner, 1)), rates)
        decay = net.node("Reshape", each, net.ints(0, 0, inner * d))
        value = net.node("Mul", step, u)
        heads = {"q_num_heads": 1 if domain else inner, "kv_num_heads": inner}
        y = net.attention(layer, [query, key, value, decay], [inner, d, 1], update_rule="gated", scale=1.0, **heads)
        y = net.node("Add", y, net.node("Mul", u, net.weight(inner)))
        y = net.node("Mul", y, net.node("Mul", z, net.node("Sigmoid", z)))
        x = net.node("Add", x, net.linear(y, inner, width))
    net.give("output", x, ["B", "T", width])
    return net.whole()


BLOCKS = {
    "qwen, com.microsoft": qwen(MS),
    "qwen, standard": qwen(""),
    "mamba, com.microsoft": mamba(MS),
    "mamba, standard": mamba(""),
}


def first_states(model: onnx.ModelProto, batch: int = 1) -> dict[str, Array]:
    """Return zeros for every state."""
    shapes = {
        v.name: [d.dim_value or batch for d in v.type.tensor_type.shape.dim]
        for v in model.graph.input
        if v.name.startswith("past")
    }
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def next_states(outputs: dict[str, Array]) -> dict[str, Array]:
    """Return the states that the next call takes."""
    return {n.replace("present", "past"): a for n, a in outputs.items() if n.startswith("present")}
