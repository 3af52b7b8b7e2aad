"""Layers of RNN, GRU and LSTM with any attributes, in any scope."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from cases import FUNCTIONS
from onnx import helper
from oracle import DEFAULT_ACTIVATIONS

from fuzz.nets.net import Net

OPTIONAL = {"GRU": 2, "RNN": 2, "LSTM": 3}
"""How many outputs an operator has."""

ACTIVATIONS = [name for name in FUNCTIONS if name != "Softplus"]
"""That of onnxruntime's recurrent operators overflows above 88."""


@dataclass
class Layers:
    """A net of layers that grows.

    Attributes:
        net: The graph.
        values: Its values of [T, N, features], with their features.
        finals: Its final states of [directions, N, hidden], with their directions and hidden sizes.
        made: All values that nodes made.
        batch: The batch size: a number or the name "N".
        frames: The length: a number or the name "T".
        lengths: The input of lengths, if there is one.
        bare: How many layers do not read it.
        grows: Whether an activation is not bounded: states may grow.
    """

    net: Net
    values: list[tuple[str, int]]
    batch: int | str
    frames: int | str
    lengths: str = ""
    finals: list[tuple[str, int, int]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    shapes: dict[str, list[int | str]] = field(default_factory=dict)
    bare: int = 0
    grows: bool = False


def layer(s: Layers, plain: bool) -> None:
    """Add a layer that reads the last value, or an earlier one.

    Args:
        plain: Whether attributes are those of most exporters, so that layers may be joined.
    """
    g, rng = s.net, s.net.rng
    op_type, H = rng.choice(("RNN", "GRU", "LSTM", "LSTM")), rng.choice((1, 2, 3, 4, 5))
    x, size = s.values[-1] if rng.random() < 0.8 else rng.choice(s.values)
    directions = rng.choice(("forward",) * 4 + (("forward",) if plain else ("reverse", "bidirectional")))
    D = 2 if directions == "bidirectional" else 1
    more = _attributes(g, op_type, D, H, plain)
    s.grows |= "activations" in more
    if directions != "forward":
        more["direction"] = directions
    layout = int(g.opset >= 14 and not plain and rng.random() < 0.15)
    given = [x, *g.recurrent(op_type, size, H, D)]
    given[1:] = [_weight(g, name) for name in given[1:]]
    if rng.random() < 0.2:
        given[3] = ""
    given.append(s.lengths if s.lengths and rng.random() < 0.85 else "")
    s.bare += not given[-1]
    for _ in range(2 if op_type == "LSTM" else 1):
        given.append(_state(s, D, H) if rng.random() < 0.4 else "")
    if op_type == "LSTM" and rng.random() < 0.15:
        given.append(g.weights(D, 3 * H))
    while not given[-1]:
        given.pop()
    if layout:
        more["layout"] = 1
        for place in {0, *range(5, min(len(given), 7))}:
            given[place] = given[place] and g.turned(given[place], 1, 0, 2)
    _outputs(s, op_type, given, more, D, H, layout)


def _attributes(g: Net, op_type: str, D: int, H: int, plain: bool) -> dict[str, Any]:
    rng = g.rng
    more: dict[str, Any] = {"hidden_size": H} if rng.random() < 0.97 else {}
    if op_type == "GRU" and g.opset >= 3 and rng.random() < 0.4:
        more["linear_before_reset"] = rng.choice((1, 1, 2))
    if g.opset < 7 and op_type != "GRU":
        more["output_sequence"] = 1
    if plain:
        return more
    if op_type == "LSTM" and rng.random() < 0.15:
        more["input_forget"] = 1
    if rng.random() < 0.2:
        more["clip"] = rng.choice((0.3, 0.8, 2.0))
    if rng.random() < 0.3:
        names = rng.choices(ACTIVATIONS, k=len(DEFAULT_ACTIVATIONS[op_type]) * D)
        more["activations"] = [name.lower() if rng.random() < 0.2 else name for name in names]
        taking = sum(
            name in ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu") for name in names
        )
        if taking and rng.random() < 0.8:
            more["activation_alpha"] = [round(rng.uniform(0.1, 0.9), 2) for _ in range(taking)]
            more["activation_beta"] = [round(rng.uniform(0.1, 0.6), 2) for _ in range(taking)]
    return more


def _weight(g: Net, name: str) -> str:
    """A weight as an initializer, a Constant, or what a chain of nodes makes of one."""
    kind = g.rng.choice(("initializer",) * 6 + ("constant", "turned", "cast", "sum"))
    tensor = next(t for t in g.tensors if t.name == name)
    if kind == "constant":
        return g.node("Constant", value=tensor)
    if kind == "turned" and len(tensor.dims) == 3:
        return g.turned(g.turned(name, 0, 2, 1), 0, 2, 1)
    if kind == "cast" and g.opset >= 9 and g.dtype in ("float32", "float64"):
        return g.node("Cast", g.node("Cast", name, to=onnx.TensorProto.DOUBLE), to=g.kind)
    if kind == "sum" and g.opset >= 7 and g.dtype != "bfloat16":
        return g.node("Add", name, np.array(0.0))
    return name


def _state(s: Layers, D: int, H: int) -> str:
    """An initial state: of another layer, an input, constant, or zeros of the batch size."""
    g, fitting = s.net, [name for name, *shape in s.finals if shape == [D, H]]
    kind = g.rng.choice(("final", "final", "input", "zeros", "sized"))
    if kind == "final" and fitting:
        return g.rng.choice(fitting)
    if kind == "zeros" and isinstance(s.batch, int):
        return g.constant(np.full((D, s.batch, H), g.rng.choice((0.0, 0.5))))
    if kind == "sized" and g.opset >= 9:
        shape = g.node("Gather", g.node("Shape", s.values[0][0]), [1], axis=0)
        sizes = g.node("Concat", [D], shape, [H], axis=0)
        return g.node("ConstantOfShape", sizes, value=helper.make_tensor("", g.kind, [1], [0.0]))
    return g.floating(f"state_{len(g.nodes)}_{len(g.inputs)}", [D, s.batch, H])


def _outputs(s: Layers, op_type: str, given: list[str], more: dict[str, Any], D: int, H: int, layout: int) -> None:
    """Add the node, with some of its outputs; bring Y to [T, N, features]."""
    g, rng, number = s.net, s.net.rng, len(s.net.nodes)
    names = [f"{symbol}_{number}" for symbol in ("Y", "Yh", "Yc")[: OPTIONAL[op_type]]]
    kept = [name if rng.random() < 0.75 else "" for name in names]
    if not any(kept):
        kept[0] = names[0]
    while not kept[-1]:
        kept.pop()
    g.several(op_type, *given, outputs=kept, name=f"{op_type}_{number}" if rng.random() < 0.8 else "", **more)
    finals = [name and (g.turned(name, 1, 0, 2) if layout else name) for name in kept[1:]]
    s.finals += [(name, D, H) for name in finals if name]
    s.made += [name for name in kept[1:] if name]
    s.shapes |= {name: [s.batch, D, H] if layout else [D, s.batch, H] for name in kept[1:] if name}
    if not kept[0]:
        return
    y = g.turned(kept[0], 1, 2, 0, 3) if layout else kept[0]
    if D == 1:
        joined = g.squeeze(y, 1)
    else:
        joined = g.node("Concat", *(g.squeeze(half, 1) for half in g.split(y, [1, 1], 1)), axis=2)
    kind = rng.choice(("", "", "", "Relu", "Tanh", "Dropout" if g.opset >= 7 else "Relu"))
    if kind and (g.dtype != "bfloat16" or kind == "Dropout"):
        joined = g.node(kind, joined)
    s.values.append((joined, D * H))
    s.made.append(joined)
    s.shapes[joined] = [s.frames, s.batch, D * H]


def in_scope(model: onnx.ModelProto, place: str, rng: random.Random) -> onnx.ModelProto:
    """Put the nodes of a model into a function, a branch or a body.

    Args:
        place: "function", "twice" for two calls, "if", "loop" or "scan".
    """
    graph = model.graph
    outputs = [v.name for v in graph.output]
    opsets = [*model.opset_import]
    if place in ("function", "twice"):
        used = {name for node in graph.node for name in node.input}
        inputs = [n for n in [*(v.name for v in graph.input), *tensors_in_order(graph)] if n in used]
        body = helper.make_function("local", "Layers", inputs, outputs, graph.node, opsets)
        calls = [helper.make_node("Layers", inputs, outputs, "call", domain="local")]
        infos = [*graph.output]
        if place == "twice":
            again = [f"{name}_again" for name in outputs]
            calls.append(helper.make_node("Layers", inputs, again, "call_again", domain="local"))
            infos += [_renamed(v, f"{v.name}_again") for v in graph.output]
        outer = helper.make_graph(calls, "main", graph.input, infos, graph.initializer)
        return _model(model, outer, [body])
    inner = [_renamed(v, f"in_{v.name}") for v in graph.output]
    for node in graph.node:
        node.output[:] = [f"in_{n}" if n in outputs else n for n in node.output]
        node.input[:] = [f"in_{n}" if n in outputs else n for n in node.input]
    held = [t for t in graph.initializer if rng.random() < 0.5]
    rest = [t for t in graph.initializer if t not in held]
    if place == "if":
        flag = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
        negated = [helper.make_node("Neg", [v.name], [f"neg_{v.name}"], f"neg_{v.name}") for v in inner]
        one = helper.make_graph(graph.node, "then", [], inner, held)
        other_nodes = [*_copied(graph.node, "other_"), *(_prefixed(n, "other_") for n in negated)]
        named = [_renamed(v, f"other_neg_{v.name}") for v in inner]
        other = helper.make_graph(other_nodes, "else", [], named, [_tensor(t, f"other_{t.name}") for t in held])
        _captured(other, {t.name for t in rest} | {v.name for v in graph.input}, "other_")
        node = helper.make_node("If", ["flag"], outputs, "branches", then_branch=one, else_branch=other)
        return _model(model, helper.make_graph([node], "main", [*graph.input, flag], graph.output, rest), [])
    return _model(model, _repeated(graph, place, inner, held, rest), [])


def tensors_in_order(graph: onnx.GraphProto) -> list[str]:
    """The names of the initializers."""
    return [t.name for t in graph.initializer]


def _repeated(
    graph: onnx.GraphProto, place: str, inner: list[Any], held: Sequence[Any], rest: Sequence[Any]
) -> onnx.GraphProto:
    """A Loop of three steps or a Scan of rows, each of which scales X and stacks all outputs."""
    x, *others = graph.input
    nodes = [*graph.node]
    one = helper.make_tensor_value_info
    kind = x.type.tensor_type.elem_type
    scaled = helper.make_node("Mul", ["row", "x_outer"], ["x"])
    taken = _renamed(x, "x_outer")
    if place == "scan":
        row = one("row", kind, [])
        body = helper.make_graph([scaled, *nodes], "body", [row], inner, held)
        node = helper.make_node("Scan", ["scales"], [v.name for v in graph.output], body=body, num_scan_inputs=1)
        inputs = [taken, one("scales", kind, [3]), *others]
        return helper.make_graph([node], "main", inputs, graph.output, rest)
    count, flag = one("count", onnx.TensorProto.INT64, []), one("on", onnx.TensorProto.BOOL, [])
    more = [
        helper.make_node("Gather", ["scales", "count"], ["row"]),
        scaled,
        helper.make_node("Identity", ["on"], ["still"]),
    ]
    still = one("still", onnx.TensorProto.BOOL, [])
    body = helper.make_graph([*more, *nodes], "body", [count, flag], [still, *inner], held)
    node = helper.make_node("Loop", ["steps", "yes"], [v.name for v in graph.output], body=body)
    yes = helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [True])
    steps = helper.make_tensor("steps", onnx.TensorProto.INT64, [], [3])
    inputs = [taken, one("scales", kind, [3]), *others]
    return helper.make_graph([node], "main", inputs, graph.output, [*rest, yes, steps])


def _copied(nodes: Any, prefix: str) -> list[onnx.NodeProto]:
    return [_prefixed(node, prefix) for node in nodes]


def _prefixed(node: onnx.NodeProto, prefix: str) -> onnx.NodeProto:
    copy: onnx.NodeProto = onnx.NodeProto.FromString(node.SerializeToString())
    copy.name = node.name and prefix + node.name
    copy.input[:] = [name and prefix + name for name in node.input]
    copy.output[:] = [name and prefix + name for name in node.output]
    return copy


def _captured(graph: onnx.GraphProto, outside: set[str], prefix: str) -> None:
    """Let nodes read outer values by their own names."""
    for node in graph.node:
        node.input[:] = [n.removeprefix(prefix) if n.removeprefix(prefix) in outside else n for n in node.input]


def _tensor(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy: onnx.TensorProto = onnx.TensorProto.FromString(tensor.SerializeToString())
    copy.name = name
    return copy


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy: onnx.ValueInfoProto = onnx.ValueInfoProto.FromString(value.SerializeToString())
    copy.name = name
    return copy


def _model(model: onnx.ModelProto, graph: onnx.GraphProto, functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    imports = [*model.opset_import, *([helper.make_opsetid("local", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=model.ir_version)
