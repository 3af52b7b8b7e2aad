"""Nets along time, as engineers write them: blocks in a row, with outputs in the middle and at the end."""

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper
from running import nodes

from fuzz.nets.blocks import BLOCKS, Block, Sequence, Signal, unused
from fuzz.nets.net import Net

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 17, 17, 18, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28)
TYPES = ("float32",) * 16 + ("float16",) * 2 + ("float64",) * 2 + ("bfloat16",)


@dataclass(frozen=True)
class Made:
    """A net.

    Attributes:
        axis: The axis of time of its inputs, for `stream`.
        frames: Its frames; 0 for any number.
        high: The bounds of its integer inputs.
        lengths: Its input of sequence lengths, if there is one.
    """

    model: onnx.ModelProto
    axis: list[str]
    frames: int = 0
    high: dict[str, int] = field(default_factory=dict)
    lengths: str = ""


def sequence(rng: random.Random) -> Made:
    """Make a net of one to six blocks."""
    net = Net(rng, rng.choice(OPSETS), rng.choice(TYPES))
    fixed = rng.choice((0,) * 5 + (12,))
    batch: int | str = rng.choice((1, 2, 2, "batch"))
    layout, channels = rng.choice(("BCT", "BTC", "TBC")), rng.choice((2, 3, 4))
    s = Sequence(net, [], batch, fixed or "time", rng.choice((1.0, 1.0, 0.5, 0.0)), {})
    sizes = {"B": batch, "C": channels, "T": s.frames}
    s.signals.append(Signal(net.floating("x", [sizes[letter] for letter in layout]), layout, channels))
    if rng.random() < 0.08:
        s.lengths = net.input("lens", [batch], np.int32)
    blocks = [*BLOCKS]
    chosen: list[Block] = rng.choices(blocks, [BLOCKS[b] for b in blocks], k=rng.randint(1, 6))
    for block in chosen:
        block(s)
    if rng.random() < 0.2:
        unused(s)
    if len(s.signals) > 2 and rng.random() < 0.2:
        net.outputs_of(net.node("Identity", rng.choice(s.signals[1:]).name))
    _ended(s)
    axis = [f"{v.name}:{_axis_of_time(v, s)}" for v in net.inputs if fixed and _axis_of_time(v, s) is not None]
    model = net.whole()
    if rng.random() < 0.1:
        model = as_function(model)
    return Made(model, axis or ["time"], fixed, s.high, s.lengths)


def _axis_of_time(value: onnx.ValueInfoProto, s: Sequence) -> int | None:
    sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
    return sizes.index(s.frames) if s.frames in sizes else None


def _ended(s: Sequence) -> None:
    """The output: floats, or rounded as PCM."""
    net, last = s.net, s.as_layout(s.net.rng.choice(("BCT", "BTC", "TBC")))
    kind = net.rng.random()
    if kind < 0.06 and net.opset >= 10 and net.dtype == "float32":
        last = net.node("QuantizeLinear", last, np.array(0.03), np.array(3, np.uint8))
        net.outputs_of(last, dtype=np.uint8)
    elif kind < 0.1:
        last = net.node("Cast", net.node("Mul", net.node("Tanh", last), np.array(100.0)), to=onnx.TensorProto.INT16)
        net.outputs_of(last, dtype=np.int16)
    else:
        net.node("Identity", last, outputs=["y"])
        net.outputs_of("y")


def as_function(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its nodes in a function that is called once; constants are inputs of the call."""
    graph = model.graph
    inputs = [v.name for v in graph.input] + [t.name for t in graph.initializer]
    used = {name for node in nodes(model) for name in node.input}
    inputs = [name for name in inputs if name in used]
    outputs = [v.name for v in graph.output]
    if any(name in inputs for name in outputs):
        return model
    function = helper.make_function("local", "Block", inputs, outputs, graph.node, model.opset_import)
    call = helper.make_node("Block", inputs, outputs, "call", domain="local")
    outer = helper.make_graph([call], "main", graph.input, graph.output, graph.initializer)
    imports = [*model.opset_import, helper.make_opsetid("local", 1)]
    return helper.make_model(outer, opset_imports=imports, functions=[function], ir_version=model.ir_version)
