"""What a caller gives stays as it was: messages always, models of the intermediate form where they are refused."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Case, model
from chains import Link, chain
from onnx import helper, numpy_helper
from stored_models import entries, load
from thinning import thinned

import rnn_lowering as rl

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")

THREE = (Link("LSTM", "first"), Link("GRU", "second", {"direction": "reverse"}), Link("RNN", "third"))
MOST_BYTES = 60_000


def unsorted() -> onnx.ModelProto:
    proto = chain(*THREE)
    nodes = [copy.deepcopy(node) for node in proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    return proto


def aliased() -> onnx.ModelProto:
    proto = chain(*THREE)
    proto.opset_import[0].domain = "ai.onnx"
    for node in proto.graph.node:
        node.domain = "ai.onnx"
    return proto


def shaped() -> onnx.ModelProto:
    """What fixing sizes folds: a shape that is computed, and constants that it brings together."""
    proto = chain(Link("GRU", "only"))
    nodes = [
        helper.make_node("Shape", ["X"], ["sizes"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
        helper.make_node("Add", ["X", "zeros"], ["x"]),
    ]
    nodes += [copy.deepcopy(node) for node in proto.graph.node]
    nodes[3].input[0] = "x"
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def branches_of_a_function() -> onnx.ModelProto:
    """A function that is called twice and has constants of the same names in both branches of an If."""
    nodes = [
        helper.make_node(
            "If", ["flag"], ["left"], "choice", **{f"{name}_branch": _branch(name) for name in ("then", "else")}
        ),
        helper.make_node("Identity", ["left"], ["out"], "last"),
    ]
    function = helper.make_function("test", "Twice", ["x", "flag"], ["out"], nodes, [helper.make_opsetid("", 18)])
    inputs = [
        helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["seq", 2, 3]),
        helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []),
    ]
    outputs = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2, 4]) for name in ("first", "second")
    ]
    calls = [
        helper.make_node("Twice", ["X", "flag"], [v.name], f"call of {v.name}", domain="test") for v in outputs
    ]
    graph = helper.make_graph(calls, "graph", inputs, outputs)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("test", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=9)


def _branch(name: str) -> onnx.GraphProto:
    weights = {"W": (1, 12, 3), "R": (1, 12, 4)}
    tensors = [numpy_helper.from_array(np.full(shape, 0.25, np.float32), key) for key, shape in weights.items()]
    two = numpy_helper.from_array(np.array(2, np.float32), "number")
    nodes = [
        helper.make_node("Constant", [], ["two"], "constant", value=two),
        helper.make_node("GRU", ["x", "W", "R"], ["", f"{name}_h"], "gru", hidden_size=4),
        helper.make_node("Mul", [f"{name}_h", "two"], [f"{name}_out"], "multiply"),
    ]
    info = helper.make_tensor_value_info(f"{name}_out", onnx.TensorProto.FLOAT, [1, 2, 4])
    return helper.make_graph(nodes, name, [], [info], tensors)


GIVEN: dict[str, Callable[[], onnx.ModelProto]] = {
    "chain": lambda: chain(*THREE),
    "unsorted": unsorted,
    "aliased": aliased,
    "shaped": shaped,
    "refused": lambda: chain(Link("LSTM", "good"), Link("LSTM", "bad", {"activations": ["Foo", "Tanh", "Tanh"]})),
    "function": lambda: model(Case("unchanged_function", "LSTM", scope="function"), 17),
    "branch": lambda: model(Case("unchanged_if", "GRU", scope="if", weights="node"), 17),
    "opset 6": lambda: model(Case("unchanged_6", "GRU", ir3=True), 6),
    "branches of a function": branches_of_a_function,
    "bad function": lambda: model(Case("unchanged_bad", "LSTM", {"clip": -1.0}, scope="function"), 17),
    "constants": lambda: model(Case("unchanged_constant", "LSTM", weights="constant"), 17),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "unroll": {"to": "unroll"},
    "sizes": {"dims": {"seq": 5}},
    "sizes, refused": {"dims": {"seq": 5}, "to": "unroll", "max_unroll": 2},
    "unknown size": {"dims": {"nothing": 5}},
    "tvm": {"target": "tvm", "input_shapes": {"X": [4, 2, 3]}},
    "some": {"only": "LSTM", "to": "loop"},
}


def real() -> Iterator[Any]:
    for entry in (e for kind in ("runs", "plain") for e in entries(kind) if e["bytes"] < MOST_BYTES):
        yield pytest.param(lambda entry=entry: load(entry), id=entry["file"])


MODELS = [*(pytest.param(make, id=name) for name, make in GIVEN.items()), *thinned(list(real()), 24)]


def attempt(call: Callable[[], Any]) -> bool:
    """Whether a call succeeds; it may be refused."""
    try:
        call()
    except rl.RnnLoweringError:
        return False
    return True


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("make", MODELS)
def test_a_message_stays_as_it_was(make: Callable[[], onnx.ModelProto], options: dict[str, Any]) -> None:
    given, kept = make(), copy.deepcopy(options)
    before = given.SerializeToString(deterministic=True)
    attempt(lambda: rl.lower(given, **options))
    assert given.SerializeToString(deterministic=True) == before
    attempt(lambda: rl.preview(given, **options))
    attempt(lambda: rl.inspect(given))
    assert given.SerializeToString(deterministic=True) == before
    assert options == kept


def state(given: ir.Model) -> list[Any]:
    """Everything that a model of the intermediate form holds, with the identity of its parts."""
    found: list[Any] = [
        id(given.graph),
        dict(given.opset_imports),
        dict(given.metadata_props),
        list(given.functions),
    ]
    for graph in (
        inner
        for outer in (given.graph, *(f.graph for f in given.functions.values()))
        for inner in (outer, *outer.subgraphs())
    ):
        found += [graph.name, [id(node) for node in graph], list(graph.initializers), dict(graph.opset_imports)]
        values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
        for node in graph:
            found += [node.name, node.domain, node.op_type, dict(node.metadata_props), list(node.attributes)]
            found.append([value and id(value) for value in node.inputs])
            values += node.outputs
        for value in values:
            tensor = value.const_value
            found += [id(value), value.name, repr(value.type), repr(value.shape), dict(value.metadata_props)]
            found += [id(tensor), tensor and tensor.name]
    return found


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("make", MODELS)
def test_a_model_that_is_refused_or_looked_at_stays_as_it_was(
    make: Callable[[], onnx.ModelProto], options: dict[str, Any]
) -> None:
    message = make()
    kept = message.SerializeToString(deterministic=True)
    given = ir.from_proto(message)
    before = state(given)
    attempt(lambda: rl.preview(given, **options))
    attempt(lambda: rl.LowerRecurrentPass(**options).preview(given))
    attempt(lambda: rl.inspect(given))
    assert state(given) == before
    if not attempt(lambda: rl.lower(given, **options)):
        assert state(given) == before
        assert message.SerializeToString(deterministic=True) == kept


def test_there_are_refusals_of_each_kind() -> None:
    refused = [
        (name, how)
        for name, make in GIVEN.items()
        for how, options in OPTIONS.items()
        if not attempt(partial(rl.lower, make(), **options))
    ]
    assert {name for name, _ in refused} == GIVEN.keys()
    assert {how for _, how in refused} == OPTIONS.keys()
