"""Recurrent nodes that may share a loop: layers, independent nodes and directions, alike or nearly so."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from cases import DTYPES
from graphs import Graph, value
from onnx import helper
from oracle import GATES

ACTIVATIONS = {"RNN": ("Relu", "Tanh", "Softsign"), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Relu")}


@dataclass
class Alike:
    """What most nodes of a net have in common.

    Attributes:
        H: Their hidden size.
        attributes: Their attributes.
        slots: Their optional inputs.
    """

    op_type: str
    H: int
    attributes: dict[str, Any]
    slots: set[str]


@dataclass
class Joined(Graph):
    """A graph of recurrent nodes over x [T, N, I].

    Attributes:
        made: The values [T, N, features] so far, each with its number of features.
        finals: The final states so far [directions, N, H].
    """

    rng: random.Random = field(default_factory=random.Random)
    opset: int = 17
    dtype: str = "float32"
    T: int | str = "T"
    N: int | str = "N"
    made: list[tuple[str, int]] = field(default_factory=list)
    finals: list[tuple[str, int, int]] = field(default_factory=list)
    lengths: str = ""

    def numbers(self, *shape: int, scale: float = 1.0) -> str:
        held = np.random.default_rng(self.rng.randrange(2**31)).uniform(-scale, scale, shape)
        return self.constant(held, DTYPES[self.dtype])

    def squeeze(self, x: str, axis: int) -> str:
        if self.opset < 13:
            return self.node("Squeeze", x, axes=[axis])
        return self.node("Squeeze", x, self.constant([axis]))


def alike(g: Joined) -> Alike:
    """Choose what the nodes of a net have in common."""
    rng, op_type = g.rng, g.rng.choice(("RNN", "GRU", "GRU", "LSTM", "LSTM"))
    attributes: dict[str, Any] = {}
    if op_type == "GRU" and rng.random() < 0.6:
        attributes["linear_before_reset"] = 1
    if rng.random() < 0.15:
        attributes["clip"] = 0.7
    if op_type == "LSTM" and rng.random() < 0.1:
        attributes["input_forget"] = 1
    if rng.random() < 0.15:
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[op_type]
        attributes["activations"] = [rng.choice(ACTIVATIONS[op_type]) for _ in range(count)]
    slots = {
        slot for slot, chance in (("B", 0.85), ("lengths", 0.2), ("h", 0.4), ("P", 0.1)) if rng.random() < chance
    }
    return Alike(op_type, rng.choice((1, 2, 3, 4, 4, 8)), attributes, slots)


def recurrent(g: Joined, kind: Alike, x: str, features: int, direction: str = "forward") -> tuple[str, int]:
    """Add a node that is much like the others; return Y as [T, N, features], with their number."""
    rng, (op_type, H) = g.rng, (kind.op_type, kind.H)
    attributes, slots = dict(kind.attributes), set(kind.slots)
    if rng.random() < 0.12:  # one that is not quite alike
        H = rng.choice((1, 2, 3, 5))
    if rng.random() < 0.08:
        slots ^= {rng.choice(("B", "lengths", "h", "P"))}
    if rng.random() < 0.06:
        attributes["clip"] = 0.4
    if rng.random() < 0.06:
        op_type = rng.choice(("RNN", "GRU", "LSTM"))
        attributes, slots = {}, slots - {"P"}
    D = 2 if direction == "bidirectional" else 1
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * D
    rows, scale = GATES[op_type] * H, H**-0.5
    given = [x, g.numbers(D, rows, features, scale=scale), g.numbers(D, rows, H, scale=scale)]
    given.append(g.numbers(D, 2 * rows, scale=0.3) if "B" in slots else "")
    given.append(_lengths(g) if "lengths" in slots else "")
    for _ in range(2 if op_type == "LSTM" else 1):
        given.append(_state(g, D, H) if "h" in slots else "")
    if "P" in slots and op_type == "LSTM":
        given.append(g.numbers(D, 3 * H, scale=0.5))
    while not given[-1]:
        given.pop()
    names = [f"{symbol}_{len(g.nodes)}" for symbol in ("Y", "Y_h", "Y_c")[: 3 if op_type == "LSTM" else 2]]
    kept = [names[0], *(name if rng.random() < 0.5 else "" for name in names[1:])]
    if direction != "forward":
        attributes["direction"] = direction
    g.several(op_type, *given, outputs=kept, hidden_size=H, **attributes)
    g.finals += [(name, D, H) for name in kept[1:] if name]
    return _flat(g, kept[0], D, H), D * H


def _flat(g: Joined, y: str, D: int, H: int) -> str:
    """Bring Y [T, D, N, H] to [T, N, D * H] as one of the exporters does."""
    if D == 1 and g.rng.random() < 0.6:
        return g.squeeze(y, 1)
    turned = g.node("Transpose", y, perm=[0, 2, 1, 3])
    return g.node("Reshape", turned, g.constant([0, 0, g.rng.choice((-1, D * H))]))


def _lengths(g: Joined) -> str:
    if not g.lengths or g.rng.random() < 0.2:
        g.lengths = g.input(f"lens_{len(g.nodes)}", [g.N], np.int32)
    return g.lengths


def _state(g: Joined, D: int, H: int) -> str:
    fitting = [name for name, *shape in g.finals if shape == [D, H]]
    if fitting and g.rng.random() < 0.3:
        return g.rng.choice(fitting)
    if isinstance(g.N, int) and g.rng.random() < 0.5:
        return g.numbers(D, g.N, H)
    return g.input(f"state_{len(g.nodes)}_{len(g.inputs)}", [D, g.N, H], DTYPES[g.dtype])


def between(g: Joined, x: str, features: int) -> str:
    """What stands between two layers."""
    kind = g.rng.choice(("", "", "", "Identity", "Dropout", "Add", "Relu", "Transposes", "Unsqueeze", "Mul"))
    if kind in ("Identity", "Dropout", "Relu"):
        return g.node(kind, x)
    if kind in ("Add", "Mul"):
        size = g.rng.choice((features, 1))
        return g.node(kind, *g.rng.sample([x, g.numbers(size)], 2))
    if kind == "Transposes":
        return g.node("Transpose", g.node("Transpose", x, perm=[1, 0, 2]), perm=[1, 0, 2])
    if kind == "Unsqueeze":
        axes: Any = {"axes": [0]} if g.opset < 13 else {}
        more = [] if g.opset < 13 else [g.constant([0])]
        return g.squeeze(g.node("Unsqueeze", x, *more, **axes), 0)
    return x


Block = Callable[[Joined, Alike], None]
DIRECTIONS = ("forward",) * 4 + ("reverse", "bidirectional")


def stack(g: Joined, kind: Alike) -> None:
    """Layers; a lower one may be read elsewhere too, or be skipped."""
    x, features = g.made[-1]
    direction = g.rng.choice(DIRECTIONS)
    for _ in range(g.rng.choice((2, 2, 3, 4))):
        below, width = x, features
        x, features = recurrent(g, kind, between(g, x, features), features, direction)
        if width == features and g.rng.random() < 0.15:
            x = g.node("Add", x, below)
        if g.rng.random() < 0.2:
            direction = g.rng.choice(DIRECTIONS)
        if g.rng.random() < 0.2:
            g.made.append((x, features))
    g.made.append((x, features))


def siblings(g: Joined, kind: Alike) -> None:
    """Nodes that do not depend on each other, of the same value or of several."""
    parts = []
    x, features = g.made[-1]
    for _ in range(g.rng.choice((2, 2, 3))):
        if g.rng.random() < 0.4:
            x, features = g.rng.choice(g.made)
        y = g.node(g.rng.choice(("Neg", "Tanh", "Identity")), x) if g.rng.random() < 0.4 else x
        parts.append(recurrent(g, kind, y, features, g.rng.choice(DIRECTIONS)))
    if g.rng.random() < 0.5:
        g.made.append((g.node("Concat", *(name for name, _ in parts), axis=2), sum(size for _, size in parts)))
    else:
        g.made += parts


def both_ways(g: Joined, kind: Alike) -> None:
    """A node of each direction, as two nodes."""
    x, features = g.made[-1]
    (a, first), (b, second) = (recurrent(g, kind, x, features, way) for way in ("forward", "reverse"))
    g.made.append((g.node("Concat", a, b, axis=2), first + second))


def towers(g: Joined, kind: Alike) -> None:
    """Two stacks beside each other, which meet at the end."""
    start, ends = g.made[-1], []
    for _ in range(2):
        x, features = start
        for _ in range(2):
            x, features = recurrent(g, kind, x, features)
        ends.append((x, features))
    g.made += ends


def net_of(rng: random.Random, opsets: Sequence[int]) -> Joined:
    """Make a net of one or two blocks."""
    dtype = rng.choice(("float32",) * 8 + ("float16", "float16", "float64", "bfloat16"))
    opset = 22 if dtype == "bfloat16" else rng.choice(opsets)
    g = Joined(rng=rng, opset=opset, dtype=dtype, T=rng.choice((1, 2, 3, 5, 9, "T", "T")))
    g.N = rng.choice((1, 1, 2, 3, "N", "N"))
    kind, features = alike(g), rng.choice((1, 2, 4))
    g.made.append((g.input("x", [g.T, g.N, features], DTYPES[dtype]), features))
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice((stack, stack, stack, siblings, siblings, both_ways, towers))(g, kind)
    outputs = [name for name, _ in g.made[1:-1] if rng.random() < 0.6] + [g.made[-1][0]]
    outputs += [name for name, *_ in g.finals if rng.random() < 0.6]
    for number, name in enumerate(dict.fromkeys(outputs)):
        g.output(
            g.node("Identity", name, name=f"out_{number}") if rng.random() < 0.6 else name, None, DTYPES[dtype]
        )
    return g


def in_a_body(g: Joined) -> onnx.ModelProto:
    """Return the model with its nodes in a function, a branch or a Loop of some steps, each of which scales x."""
    rng, plain = g.rng, g.model(g.opset, ir_version=8)
    loops = ("loop",) if g.opset >= 11 else ()  # before, a Loop has a state
    where = rng.choice(("function", "if", *loops))
    outputs = [v.name for v in g.outputs]
    if where == "function":
        inputs = [v.name for v in g.inputs] + [t.name for t in g.tensors]
        used = {name for node in g.nodes for name in node.input}
        inputs = [name for name in inputs if name in used]
        body = helper.make_function("local", "Net", inputs, outputs, g.nodes, [helper.make_opsetid("", g.opset)])
        g.nodes = [helper.make_node("Net", inputs, outputs, "call", domain="local")]
        return g.model(g.opset, ["local"], [body], ir_version=8)
    held = [t for t in g.tensors if rng.random() < 0.5]
    kept = [t for t in g.tensors if t not in held]
    inner = [value(f"inner_{v.name}", None, DTYPES[g.dtype]) for v in g.outputs]
    for node in plain.graph.node:
        node.input[:] = [f"inner_{name}" if name in outputs else name for name in node.input]
        node.output[:] = [f"inner_{name}" if name in outputs else name for name in node.output]
    nodes = [*plain.graph.node]
    g.tensors = kept
    if where == "if":
        for node in nodes:
            node.name = node.name and f"inner_{node.name}"
        other = [helper.make_node("Neg", [g.inputs[0].name], [f"other_{n}"]) for n in range(len(inner))]
        ends = [value(f"other_{n}", None, DTYPES[g.dtype]) for n in range(len(inner))]
        g.nodes = []
        g.several(
            "If",
            g.input("go", [], np.bool_),
            outputs=outputs,
            then_branch=helper.make_graph(nodes, "then", [], inner, held),
            else_branch=helper.make_graph(other, "else", [], ends),
        )
        return g.model(g.opset, ir_version=8)
    go, still = value("go_on", [], np.bool_), value("still", [], np.bool_)
    nodes.append(helper.make_node("Identity", ["go_on"], ["still"]))
    body_graph = helper.make_graph(nodes, "body", [value("turn", [], np.int64), go], [still, *inner], held)
    g.nodes = []
    steps, yes = g.constant(rng.choice((1, 2, 3)), name="steps"), g.constant(True, name="yes")
    g.several("Loop", steps, yes, outputs=outputs, body=body_graph)
    return g.model(g.opset, ir_version=8)
