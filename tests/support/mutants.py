"""Lowered models, each with one random change: of a number, an operator, an attribute, or of what a node reads."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper
from running import scopes

Rng = np.random.Generator

ALIKE = [
    {"Add", "Sub", "Mul", "Div", "Max", "Min"},
    {"Sigmoid", "Tanh", "Relu", "HardSigmoid", "Softsign", "Neg", "Identity", "Abs"},
    {"Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"},
]


def mutant(lowered: onnx.ModelProto, rng: Rng) -> tuple[onnx.ModelProto, str]:
    """Return a copy with one change, and what that is; it may be no change."""
    copy = onnx.ModelProto()
    copy.CopyFrom(lowered)
    graphs = list(scopes(copy.graph))
    change = CHANGES[rng.integers(len(CHANGES))]
    return copy, f"{change.__name__}: {change(graphs, rng)}"


def _number(graphs: list[onnx.GraphProto], rng: Rng) -> str:
    """Change one number of a constant: by a little, by a unit, or to 0."""
    tensors = [t for g in graphs for t in g.initializer if np.prod(t.dims)]
    tensor = tensors[rng.integers(len(tensors))]
    array = numpy_helper.to_array(tensor).copy()
    index = tuple(rng.integers(size) for size in array.shape)
    if array.dtype.kind == "f":
        factor = rng.choice([0.0, -1.0, 1 + 1e-6, 1.001, 1.5])
        array[index] = array[index] * factor if array[index] else rng.choice([1e-6, 0.5])
    elif array.dtype.kind in "iu":
        array[index] += rng.choice([-7, -1, 1, 2])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"{tensor.name}{list(map(int, index))}"


def _operator(graphs: list[onnx.GraphProto], rng: Rng) -> str:
    """Make a node another operator that takes the same inputs."""
    nodes = [(n, alike) for g in graphs for n in g.node for alike in ALIKE if n.op_type in alike]
    node, alike = nodes[rng.integers(len(nodes))]
    before, node.op_type = node.op_type, sorted(alike - {node.op_type})[rng.integers(len(alike) - 1)]
    del node.attribute[:]
    return f"{before} of {node.output[0]} is {node.op_type}"


def _inputs(graphs: list[onnx.GraphProto], rng: Rng) -> str:
    """Let a node read its inputs in another order."""
    nodes = [n for g in graphs for n in g.node if len(n.input) > 1]
    node = nodes[rng.integers(len(nodes))]
    a, b = rng.choice(len(node.input), 2, replace=False)
    node.input[a], node.input[b] = node.input[b], node.input[a]
    return f"inputs {a} and {b} of {node.op_type} {node.output[0]}"


def _wire(graphs: list[onnx.GraphProto], rng: Rng) -> str:
    """Let a node read another value that is there before it."""
    graph = graphs[rng.integers(len(graphs))]
    n = rng.integers(len(graph.node))
    before = [name for node in graph.node[:n] for name in node.output if name]
    before += [v.name for v in graph.input] + [t.name for t in graph.initializer]
    node = graph.node[n]
    if not node.input or not before:
        return "nothing"
    k = rng.integers(len(node.input))
    node.input[k] = before[rng.integers(len(before))]
    return f"input {k} of {node.op_type} {node.output[0]} is {node.input[k]}"


def _outputs(graphs: list[onnx.GraphProto], rng: Rng) -> str:
    """Exchange two outputs of a node, such as a Split or a Scan."""
    nodes = [n for g in graphs for n in g.node if len(n.output) > 1]
    if not nodes:
        return "nothing"
    node = nodes[rng.integers(len(nodes))]
    a, b = rng.choice(len(node.output), 2, replace=False)
    node.output[a], node.output[b] = node.output[b], node.output[a]
    return f"outputs {a} and {b} of {node.op_type}"


def _attribute(graphs: list[onnx.GraphProto], rng: Rng) -> str:
    """Change a number of an attribute."""
    attributes = [(n, a) for g in graphs for n in g.node for a in n.attribute if a.type in (1, 2, 6, 7)]
    if not attributes:
        return "nothing"
    node, attribute = attributes[rng.integers(len(attributes))]
    value = helper.get_attribute_value(attribute)
    by = int(rng.choice([-1, 1])) if attribute.type in (2, 7) else float(rng.choice([1e-6, 0.1]))
    new = [v + by for v in value] if isinstance(value, list) else value + by
    attribute.CopyFrom(helper.make_attribute(attribute.name, new))
    return f"{attribute.name} of {node.op_type} is {new}"


def _threshold(graphs: list[onnx.GraphProto], rng: Rng) -> str:
    """Let an input of the model, or of a body, be 1.5 times as large at one size, step or magnitude only."""
    graph = graphs[0]
    floats = [v.name for v in graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    name, limit = floats[rng.integers(len(floats))], int(rng.choice([0, 1, 2, 5, 7, 9, 50, 200]))
    axis, operator = int(rng.integers(2)), str(rng.choice(["Greater", "Equal", "Less"]))
    for node in graph.node:
        node.input[:] = ["WRONG" if given == name else given for given in node.input]
    made = onnx.parser.parse_graph(
        f"""made () => () {{ wrong_axis = Constant <value = int64 {{{axis}}}> ()
            wrong_limit = Constant <value = int64 {{{limit}}}> () wrong_more = Constant <value = float {{1.5}}> ()
            wrong_one = Constant <value = float {{1}}> () wrong_sizes = Shape ({name})
            wrong_size = Gather (wrong_sizes, wrong_axis) wrong_case = {operator} (wrong_size, wrong_limit)
            wrong_factor = Where (wrong_case, wrong_more, wrong_one) WRONG = Mul ({name}, wrong_factor) }}"""
    ).node
    for node in reversed(made):
        graph.node.insert(0, node)
    return f"{name} where size {axis} is {operator} {limit}"


Change = Callable[[list[onnx.GraphProto], Rng], str]
CHANGES: list[Change] = [_number, _operator, _inputs, _wire, _outputs, _attribute, _threshold]
