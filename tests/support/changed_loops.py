"""Loops and Scans with a small random change in them, or around them."""

import random
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from running import bodies

OTHER = {
    "Add": ("Mul", "Sub"),
    "Mul": ("Add", "Sub"),
    "Sub": ("Add", "Mul"),
    "Sigmoid": ("Tanh", "HardSigmoid", "Softsign"),
    "Tanh": ("Sigmoid", "Relu", "Softsign", "Sin"),
    "HardSigmoid": ("Sigmoid", "Tanh"),
    "Relu": ("Tanh", "Softplus"),
    "Min": ("Max",),
    "Max": ("Min",),
    "Less": ("Greater",),
    "MatMul": ("Mul",),
}
UNARY = ("Neg", "Tanh", "Sigmoid", "Abs", "Relu", "Identity")


def changed(model: onnx.ModelProto, rng: random.Random, count: int = 1) -> onnx.ModelProto:
    """A copy of a model of one loop with so many changes; it need not be valid."""
    new: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    for _ in range(count):
        rng.choice(CHANGES)(new, rng)
    return new


def loop_of(model: onnx.ModelProto) -> onnx.NodeProto:
    found: onnx.NodeProto
    (found,) = [node for node in model.graph.node if node.op_type in ("Loop", "Scan")]
    return found


def body_of(model: onnx.ModelProto) -> onnx.GraphProto:
    (body,) = bodies(loop_of(model))
    return body


def _operator(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = [node for node in body_of(model).node if node.op_type in OTHER]
    if nodes:
        node = rng.choice(nodes)
        del node.attribute[:]
        node.op_type = rng.choice(OTHER[node.op_type])


def _input(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node reads another value that is there before it."""
    body = body_of(model)
    at = rng.randrange(len(body.node))
    known = [v.name for v in body.input] + [name for node in body.node[:at] for name in node.output]
    known += [tensor.name for tensor in body.initializer] + [tensor.name for tensor in model.graph.initializer]
    node = body.node[at]
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(known)


def _swap(model: onnx.ModelProto, rng: random.Random) -> None:
    """Two inputs of a node change their places."""
    _exchange([node.input for node in body_of(model).node], rng)


def _outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    """Two outputs of a node change their places."""
    _exchange([node.output for node in body_of(model).node], rng)


def _exchange(names: Sequence[MutableSequence[str]], rng: random.Random) -> None:
    """Two names of one list change their places."""
    several = [each for each in names if len(each) > 1]
    if several:
        chosen = rng.choice(several)
        a, b = rng.sample(range(len(chosen)), 2)
        chosen[a], chosen[b] = chosen[b], chosen[a]


def _result(model: onnx.ModelProto, rng: random.Random) -> None:
    """The body returns another value."""
    body = body_of(model)
    first = 1 if loop_of(model).op_type == "Loop" else 0
    output = rng.choice(body.output[first:])
    made = [name for node in body.node for name in node.output]
    source = rng.choice([*made, *(v.name for v in body.input)])
    new = f"{source}_{rng.randrange(10**6)}"
    body.node.append(helper.make_node("Identity", [source], [new]))
    output.name = new


def _constant(model: onnx.ModelProto, rng: random.Random) -> None:
    """A number of a tensor, or the order of its numbers."""
    body = body_of(model)
    held = [attribute.t for node in body.node for attribute in node.attribute if attribute.HasField("t")]
    tensor = rng.choice([*body.initializer, *model.graph.initializer, *held])
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype == np.bool_ or not array.size:
        return
    flat, place = array.reshape(-1), rng.randrange(array.size)
    kind = rng.randrange(5)
    if kind == 0 or array.dtype.kind == "i":
        flat[place] = flat[rng.randrange(array.size)] if rng.random() < 0.5 else flat[place] + rng.choice((-1, 1))
    elif kind == 1:
        flat[place] = -flat[place]
    elif kind == 2:
        flat[place] *= 1 + rng.choice((1e-4, 1e-3, 0.1))
    elif kind == 3:
        flat[:] = flat[::-1].copy()
    else:
        array = (array * rng.choice((0.5, 2.0))).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = [*body_of(model).node, loop_of(model)]
    held = [(node, a) for node in nodes for a in node.attribute if a.name not in ("body", "num_scan_inputs", "to")]
    if not held:
        return
    _, attribute = rng.choice(held)
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = rng.choice((attribute.i + 1, attribute.i - 1, 1 - attribute.i))
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f *= rng.choice((0.5, 1.1, -1))
    elif attribute.type == onnx.AttributeProto.INTS and attribute.ints:
        if rng.random() < 0.5:
            attribute.ints[rng.randrange(len(attribute.ints))] ^= 1
        else:
            attribute.ints[:] = rng.sample(list(attribute.ints), len(attribute.ints))


def _insert(model: onnx.ModelProto, rng: random.Random) -> None:
    """A value goes through one more node."""
    body = body_of(model)
    at = rng.randrange(len(body.node))
    name = rng.choice(list(body.node[at].output))
    new = f"{name}_{rng.randrange(10**6)}"
    kind = rng.randrange(4)
    factor = numpy_helper.from_array(np.array(rng.choice((0.9, 1.0, -1.0, 0.5)), np.float32), f"{new}_k")
    if kind == 0:
        made = [helper.make_node(rng.choice(UNARY), [name], [new])]
    elif kind == 1:
        made = [helper.make_node(rng.choice(("Mul", "Add")), [name, factor.name], [new])]
    elif kind == 2:
        other = rng.choice([v.name for v in body.input] + [n for node in body.node[:at] for n in node.output])
        made = [helper.make_node(rng.choice(("Mul", "Add")), [name, other], [new])]
    else:
        low = numpy_helper.from_array(np.array(rng.choice((-0.5, 0.0, -0.2)), np.float32), f"{new}_l")
        body.initializer.append(low)
        made = [helper.make_node("Clip", [name, low.name, factor.name], [new])]
    body.initializer.append(factor)
    for node in body.node[at + 1 :]:
        _rename(node.input, name, new)
    for output in body.output:
        if output.name == name:
            output.name = new
    rest = list(body.node)
    del body.node[:]
    body.node.extend([*rest[: at + 1], *made, *rest[at + 1 :]])


def _rename(names: Any, old: str, new: str) -> None:
    names[:] = [new if name == old else name for name in names]


def _drop(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node is left out: its first input stands for its output."""
    body = body_of(model)
    node = rng.choice(body.node)
    if not node.input:
        return
    old, source = node.output[0], rng.choice(list(node.input))
    for other in body.node:
        _rename(other.input, old, source)
    if old not in [output.name for output in body.output]:
        body.node.remove(node)


def _around(model: onnx.ModelProto, rng: random.Random) -> None:
    """The loop reads other values, or two of its outputs change their places."""
    loop = loop_of(model)
    if rng.random() < 0.5 and len(loop.output) > 1:
        a, b = rng.sample(range(len(loop.output)), 2)
        loop.output[a], loop.output[b] = loop.output[b], loop.output[a]
        return
    before = list(model.graph.node)[: list(model.graph.node).index(loop)]
    known = [v.name for v in model.graph.input] + [t.name for t in model.graph.initializer]
    known += [name for node in before for name in node.output]
    loop.input[rng.randrange(len(loop.input))] = rng.choice(known)


CHANGES: Sequence[Callable[[onnx.ModelProto, random.Random], None]] = (
    _operator,
    _operator,
    _input,
    _input,
    _swap,
    _outputs,
    _result,
    _constant,
    _constant,
    _attribute,
    _insert,
    _insert,
    _drop,
    _around,
)
