"""Faults planted in a right model: one weight, operator, step, input, constant or output is another."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from running import scopes, session

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
OTHERS = {
    "Tanh": ("Sigmoid", "Softsign", "Relu", "Identity", "Neg"),
    "Sigmoid": ("Tanh", "HardSigmoid", "Identity", "Relu"),
    "Relu": ("Identity", "Abs", "Tanh"),
    "Add": ("Sub", "Mul", "Max"),
    "Sub": ("Add", "Mul"),
    "Mul": ("Add", "Sub", "Div"),
    "Div": ("Mul",),
    "Max": ("Min", "Add"),
    "Min": ("Max",),
    "Exp": ("Identity", "Abs"),
    "Softplus": ("Relu", "Exp"),
    "Less": ("LessOrEqual", "Greater"),
    "ReduceSum": ("ReduceMean",),
    "And": ("Or",),
}
"""Operators that others may stand for."""

Fault = Callable[[onnx.ModelProto, random.Random], str]
"""Changes a model; returns what it did, or nothing if there is no place for it."""


def planted(model: onnx.ModelProto, seed: int) -> tuple[onnx.ModelProto, str]:
    """Return a copy with a fault, and what it is; "" if none was found that onnxruntime loads."""
    rng = random.Random(seed)
    for _ in range(20):
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        kind = rng.choice(FAULTS)
        what = kind(copy, rng)
        if not what:
            continue
        try:
            session(copy, optimize=False)
        except Exception:  # so the fault would be seen at once
            continue
        return copy, f"{kind.__name__.strip('_')}: {what}"
    return model, ""


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield from scopes(model.graph)


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    """All constants of a model."""
    held = [tensor for graph in _graphs(model) for tensor in graph.initializer]
    nodes = [node for graph in _graphs(model) for node in graph.node if node.op_type == "Constant"]
    return held + [a.t for node in nodes for a in node.attribute if a.name == "value"]


def _set(tensor: TensorProto, array: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def weight(model: onnx.ModelProto, rng: random.Random) -> str:
    """A number of a weight, a row, or two parts of it that change places."""
    found = [t for t in _tensors(model) if t.data_type in FLOATS and np.prod(t.dims, dtype=int) > 1]
    if not found:
        return ""
    tensor = rng.choice(found)
    array = numpy_helper.to_array(tensor).copy()
    flat, kind = array.reshape(-1), rng.choice(("flip", "last", "zero", "larger", "swap", "row"))
    place = rng.randrange(flat.size)
    if kind == "swap":
        half = flat.size // 2
        flat[: 2 * half] = np.concatenate([flat[half : 2 * half], flat[:half]])
    elif kind == "row":
        array[..., rng.randrange(array.shape[-1])] *= -1
    else:
        place = flat.size - 1 if kind == "last" else place
        flat[place] = {"zero": 0.0, "larger": flat[place] * 1.3 + 0.1}.get(kind, -flat[place])
    _set(tensor, array)
    return f"{kind} of '{tensor.name}' {list(tensor.dims)} at {place}"


def constant(model: onnx.ModelProto, rng: random.Random) -> str:
    """A scalar, or an integer by one."""
    integers = (TensorProto.INT64, TensorProto.INT32)
    found = [t for t in _tensors(model) if np.prod(t.dims, dtype=int) == 1 or t.data_type in integers]
    if not found:
        return ""
    tensor = rng.choice(found)
    array = numpy_helper.to_array(tensor).copy()
    if not array.size or array.dtype == bool:
        return ""
    place = rng.randrange(array.size)
    change = rng.choice((1, -1)) if tensor.data_type in integers else rng.choice((0.1, -1.0))
    with np.errstate(all="ignore"):
        array.reshape(-1)[place] += change
    _set(tensor, array)
    return f"'{tensor.name}' {change:+}"


def _place(model: onnx.ModelProto, rng: random.Random, wanted: Callable[[Any], bool]) -> tuple[Any, Any] | None:
    found = [(graph, node) for graph in _graphs(model) for node in graph.node if wanted(node)]
    return rng.choice(found) if found else None


def operator(model: onnx.ModelProto, rng: random.Random) -> str:
    """Another operator."""
    place = _place(model, rng, lambda node: node.op_type in OTHERS and not node.domain)
    if place is None:
        return ""
    node = place[1]
    before, node.op_type = node.op_type, rng.choice(OTHERS[node.op_type])
    return f"{before} '{node.name}' is {node.op_type}"


def step(model: onnx.ModelProto, rng: random.Random) -> str:
    """A node that does nothing."""
    place = _place(model, rng, lambda n: n.op_type in OTHERS and n.op_type not in ("Less", "And", "ReduceSum"))
    if place is None:
        return ""
    node = place[1]
    kept, before = rng.choice(node.input), node.op_type
    node.op_type, node.input[:] = "Identity", [kept]
    return f"{before} '{node.name}' is skipped"


def order(model: onnx.ModelProto, rng: random.Random) -> str:
    """Two inputs or outputs of a node change places."""
    place = _place(
        model, rng, lambda n: len(n.output) > 1 or n.op_type in ("Sub", "Concat", "MatMul", "Where", "Div")
    )
    if place is None:
        return ""
    node = place[1]
    names = node.output if len(node.output) > 1 else node.input
    a, b = rng.sample(range(len(names)), 2) if node.op_type != "Where" else (1, 2)
    if names is node.output and not (names[a] and names[b]):
        return ""
    names[a], names[b] = names[b], names[a]
    return f"{a} and {b} of {node.op_type} '{node.name}' change places"


def attribute(model: onnx.ModelProto, rng: random.Random) -> str:
    """A direction, an axis or another number of a node."""
    wanted = (
        "scan_input_directions",
        "scan_output_directions",
        "axis",
        "perm",
        "transA",
        "transB",
        "alpha",
        "pads",
    )
    place = _place(model, rng, lambda n: any(a.name in wanted for a in n.attribute))
    if place is None:
        return ""
    node = place[1]
    chosen = rng.choice([a for a in node.attribute if a.name in wanted])
    if chosen.name.startswith("scan"):
        index = rng.randrange(len(chosen.ints))
        chosen.ints[index] = 1 - chosen.ints[index]
    elif chosen.name in ("perm", "pads"):
        a, b = rng.sample(range(len(chosen.ints)), 2)
        chosen.ints[a], chosen.ints[b] = chosen.ints[b], chosen.ints[a]
    elif chosen.name == "alpha":
        chosen.f += 0.3
    else:
        chosen.i = 1 - chosen.i if chosen.i in (0, 1) else chosen.i + 1
    return f"{chosen.name} of {node.op_type} '{node.name}'"


def _behind(graph: onnx.GraphProto, name: str, nodes: list[onnx.NodeProto], last: str) -> None:
    """Let nodes that read `name` under another name make it."""
    for node in graph.node:
        node.output[:] = [f"{name}/right" if output == name else output for output in node.output]
    for node in nodes:
        node.input[:] = [f"{name}/right" if given == name else given for given in node.input]
        node.output[:] = [name if output == last else output for output in node.output]
    maker = next(n for n, node in enumerate(graph.node) if f"{name}/right" in node.output)
    for offset, node in enumerate(nodes):
        graph.node.insert(maker + 1 + offset, node)


def range_of_values(model: onnx.ModelProto, rng: random.Random) -> str:
    """A value is bounded, as a saturating implementation does."""
    place = _place(model, rng, lambda n: n.op_type in ("Add", "Mul", "MatMul", "Tanh", "Sigmoid", "Gemm", "Split"))
    if place is None:
        return ""
    graph, node = place
    name, bound = rng.choice(node.output), rng.choice((0.5, 0.9, 1.5, 3.0, 6.0))
    kind = _kind(model)
    graph.initializer.extend(
        helper.make_tensor(f"fault/{n}", kind, [], [value]) for n, value in (("low", -bound), ("high", bound))
    )
    clip = helper.make_node("Clip", [name, "fault/low", "fault/high"], ["fault/out"], "fault")
    _behind(graph, name, [clip], "fault/out")
    return f"{node.op_type} '{node.name}' within {bound}"


def _kind(model: onnx.ModelProto) -> int:
    kinds = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    return next((kind for kind in kinds if kind in FLOATS), TensorProto.FLOAT)


def infinities(model: onnx.ModelProto, rng: random.Random) -> str:
    """Infinite numbers of an input count as zeros."""
    floats = [v.name for v in model.graph.input if v.type.tensor_type.elem_type in FLOATS]
    if not floats:
        return ""
    name, graph = rng.choice(floats), model.graph
    for node in graph.node:
        node.input[:] = ["fault/out" if given == name else given for given in node.input]
    if any(name in node.input for inner in [*_graphs(model)][1:] for node in inner.node):
        return ""
    kind = next(v.type.tensor_type.elem_type for v in graph.input if v.name == name)
    graph.initializer.append(helper.make_tensor("fault/zero", kind, [], [0.0]))
    graph.node.insert(0, helper.make_node("IsInf", [name], ["fault/infinite"], "fault"))
    graph.node.insert(1, helper.make_node("Where", ["fault/infinite", "fault/zero", name], ["fault/out"], "fault2"))
    return f"infinities of '{name}'"


def part_of_an_output(model: onnx.ModelProto, rng: random.Random) -> str:
    """What an output has from a step or a row on is zero."""
    floats = [v for v in model.graph.output if v.type.tensor_type.elem_type in FLOATS]
    made = {name for node in model.graph.node for name in node.output}
    floats = [v for v in floats if v.name in made and len(v.type.tensor_type.shape.dim) in (3, 4)]
    if not floats:
        return ""
    value, axis, first = rng.choice(floats), rng.choice((0, 1, 2)), rng.choice((1, 2, 4, 8, 30, 45))
    rank, kind = len(value.type.tensor_type.shape.dim), value.type.tensor_type.elem_type
    held = {"axis": [axis], "first": [first], "zero": 0, "one": 1}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v), f"fault/{n}") for n, v in held.items())
    model.graph.initializer.append(helper.make_tensor("fault/none", kind, [], [0.0]))
    shape = numpy_helper.from_array(np.array([-1] + [1] * (rank - 1 - axis)), "fault/shape")
    model.graph.initializer.append(shape)
    steps = (
        ("Shape", [value.name], "sizes"),
        ("Gather", ["sizes", "axis"], "size"),
        ("Squeeze", ["size"], "count"),
        ("Range", ["zero", "count", "one"], "numbers"),
        ("Less", ["numbers", "first"], "early"),
        ("Reshape", ["early", "shape"], "mask"),
        ("Where", ["mask", value.name, "none"], "out"),
    )
    own = {out for *_, out in steps} | {*held, "none", "shape"}
    nodes = [
        helper.make_node(op, [f"fault/{n}" if n in own else n for n in given], [f"fault/{out}"], f"fault_{out}")
        for op, given, out in steps
    ]
    _behind(model.graph, value.name, nodes, "fault/out")
    return f"'{value.name}' from {first} on along axis {axis}"


def outputs(model: onnx.ModelProto, rng: random.Random) -> str:
    """Two outputs change places."""
    made = [v.name for v in model.graph.output]
    if len(made) < 2:
        return ""
    a, b = rng.sample(made, 2)
    swapped = {a: b, b: a}
    for node in model.graph.node:
        node.output[:] = [swapped.get(name, name) for name in node.output]
        node.input[:] = [swapped.get(name, name) for name in node.input]
    return f"'{a}' and '{b}'"


def unused_input(model: onnx.ModelProto, rng: random.Random) -> str:
    """Zeros instead of an input, which nothing reads then."""
    floats = [v.name for v in model.graph.input if v.type.tensor_type.elem_type in FLOATS]
    if len(floats) < 2:
        return ""
    name = rng.choice(floats[1:])
    kind = next(v.type.tensor_type.elem_type for v in model.graph.input if v.name == name)
    for graph in _graphs(model):
        for node in graph.node:
            node.input[:] = ["fault/out" if given == name else given for given in node.input]
    model.graph.initializer.append(helper.make_tensor("fault/zero", kind, [], [0.0]))
    model.graph.node.insert(0, helper.make_node("Mul", [name, "fault/zero"], ["fault/out"], "fault"))
    return f"'{name}' counts as zero"


FAULTS: tuple[Fault, ...] = (
    *(weight, weight, weight, constant, constant, operator, operator, step, step, order, attribute),
    *(range_of_values, infinities, part_of_an_output, outputs, unused_input),
)
