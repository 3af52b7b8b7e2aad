"""What a step consists of: operators, ranks and operands that tool chains of NPUs map to hardware.

By their public lists (ST Neural-ART, Ethos-U Vela, TIDL, QNN HTP): element-wise operators, Split, products with a
constant right operand, tensors of rank 4 at most, no output that is not used. ST runs 1 - x in software.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from chains import Link, chain
from onnx import numpy_helper
from running import nodes, run, scopes

import rnn_lowering as rl

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN": ("RNN", {}),
    "GRU": ("GRU", {}),
    "GRU_lbr": ("GRU", {"linear_before_reset": 1}),
    "LSTM": ("LSTM", {}),
    "LSTM_clip": ("LSTM", {"clip": 0.7}),
    "LSTM_input_forget": ("LSTM", {"input_forget": 1}),
}
ACTIVATIONS = {"Tanh", "Sigmoid"}
OPERATORS = {
    "RNN": {"MatMul", "Add"},
    "GRU": {"MatMul", "Add", "Sub", "Mul", "Split"},
    "LSTM": {"MatMul", "Add", "Mul", "Split"},
    "clip": {"Clip"},
    "input_forget": {"Sub"},
}
AROUND = {
    "step": {"Unsqueeze", "Squeeze", "Concat", "Identity"},
    "scan": {"Unsqueeze"},
    "loop": {"Unsqueeze", "Gather", "Identity"},
    "unroll": {"Unsqueeze", "Concat", "Split", "Neg"},  # Neg: a GRU's first step from zeros
}


def lowered(kind: str, form: str) -> onnx.ModelProto:
    """The model, with the shapes of all values; its form "step" is a stream of one frame."""
    op_type, attributes = KINDS[kind]
    proto = chain(Link(op_type, "rnn", attributes), dims=("time" if form == "step" else 4, 1))
    new = rl.lower(proto, stream="time=1") if form == "step" else rl.lower(proto, form)
    return onnx.shape_inference.infer_shapes(new, strict_mode=True, data_prop=True)


def in_steps(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a body, or of a graph without one those of the recurrent node."""
    found = list(scopes(graph))[1:]
    held = [node for scope in found for node in scope.node] if found else list(graph.node)
    return [node for node in held if node.name.startswith("rnn/")]


def constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for scope in scopes(graph) for t in scope.initializer}


def ranks(graph: onnx.GraphProto) -> Mapping[str, int]:
    values = [v for scope in scopes(graph) for v in (*scope.value_info, *scope.input, *scope.output)]
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.HasField("tensor_type")}


@pytest.mark.parametrize("form", AROUND)
@pytest.mark.parametrize("kind", KINDS)
def test_operators(kind: str, form: str) -> None:
    op_type, attributes = KINDS[kind]
    allowed = OPERATORS[op_type] | ACTIVATIONS | AROUND[form]
    for name in attributes:
        allowed |= OPERATORS.get(name, set())
    assert {node.op_type for node in in_steps(lowered(kind, form).graph)} <= allowed


@pytest.mark.parametrize("form", AROUND)
@pytest.mark.parametrize("kind", KINDS)
def test_operands(kind: str, form: str) -> None:
    """Products have a constant matrix on the right; only input_forget, 1 - it, subtracts from a constant."""
    graph = lowered(kind, form).graph
    known = constants(graph)
    for node in in_steps(graph):
        if node.op_type == "MatMul":
            assert known[node.input[1]].ndim == 2
        if node.op_type == "Sub":
            assert (node.input[0] in known) == (kind == "LSTM_input_forget")


def test_target_without_subtraction_from_a_constant() -> None:
    """ST's; the numbers are the same."""
    proto = chain(Link("LSTM", "rnn", {"input_forget": 1}), dims=(4, 1))
    new = rl.lower(proto, target="stedgeai")
    known = constants(new.graph)
    assert not [node for node in nodes(new) if node.op_type == "Sub" and node.input[0] in known]
    feed = {"X": np.random.default_rng(0).standard_normal((4, 1, 3)).astype(np.float32)}
    np.testing.assert_array_equal(run(new, feed)["out"], run(rl.lower(proto, "unroll"), feed)["out"])


@pytest.mark.parametrize("form", AROUND)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks(kind: str, form: str) -> None:
    """Of 2 in a loop; of 3 where steps are written out, whose first size is 1; around both at most 4."""
    graph = lowered(kind, form).graph
    known = ranks(graph)
    assert max(known.values()) <= 4
    most = 2 if form in ("scan", "loop") else 3
    steps = [node for node in in_steps(graph) if node.op_type not in AROUND[form]]
    assert {known[name] for node in steps for name in node.output} <= {most}


@pytest.mark.parametrize("form", ["step", "scan", "loop"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "LSTM_input_forget"])
def test_outputs_are_used(kind: str, form: str) -> None:
    """Not so are the forget gate with input_forget, and what the zeros before the first unrolled step make idle."""
    new = lowered(kind, form)
    used = {name for node in nodes(new) for name in node.input}
    used |= {value.name for scope in scopes(new.graph) for value in scope.output}
    for node in nodes(new):
        if node.name.startswith("rnn/") and node.op_type not in ("Scan", "Loop"):
            assert set(node.output) <= used, node.name
