"""What a caller gives stays as it was: messages always, models of the intermediate form where they are refused."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from cases import Case, model
from chains import Link, chain
from scope_models import LOCAL
from stored_models import entries, load
from texts import parse
from thinning import thinned

import rnn_lowering as rl

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")

THREE = (Link("LSTM", "first"), Link("GRU", "second", {"direction": "reverse"}), Link("RNN", "third"))
SHAPED = """
main (float[seq,batch,3] X) => (float[seq,1,batch,4] Y) <float[1,12,3] W = {}, float[1,12,4] R = {}> {
    sizes = Shape (X)
    zeros = ConstantOfShape (sizes)
    x = Add (X, zeros)
    Y = GRU <hidden_size=4> (x, W, R)
}
"""
"""What fixing sizes folds: a shape that is computed, and constants that it brings together."""
BRANCH = """<float[1,12,3] W = {}, float[1,12,4] R = {}> {
    two = Constant <value = float {2}> ()
    , h = GRU <hidden_size=4> (x, W, R)
    out = Mul (h, two)
}"""
CALLED_TWICE = f"""
main (float[seq,2,3] X, bool flag) => (float[1,2,4] first, float[1,2,4] second) {{
    first = local.twice (X, flag)
    second = local.twice (X, flag)
}}
<domain: "local", opset_import: ["": 17]>
twice (x, flag) => (result) {{
    left = If (flag) <
        then_branch = yes () => (float[1,2,4] out) {BRANCH},
        else_branch = no () => (float[1,2,4] out) {BRANCH}
    >
    result = Identity (left)
}}
"""
"""A function that has constants of the same names in both branches of an If."""


def unsorted() -> onnx.ModelProto:
    proto = chain(*THREE)
    nodes = [copy.deepcopy(node) for node in proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))
    return proto


def aliased() -> onnx.ModelProto:
    proto = chain(*THREE)
    for holder in (proto.opset_import[0], *proto.graph.node):
        holder.domain = "ai.onnx"
    return proto


GIVEN: dict[str, Callable[[], onnx.ModelProto]] = {
    "chain": lambda: chain(*THREE),
    "unsorted": unsorted,
    "aliased": aliased,
    "shaped": lambda: parse(SHAPED),
    "refused": lambda: chain(Link("LSTM", "good"), Link("LSTM", "bad", {"activations": ["Foo", "Tanh", "Tanh"]})),
    "function": lambda: model(Case("unchanged_function", "LSTM", scope="function"), 17),
    "branch": lambda: model(Case("unchanged_if", "GRU", scope="if", weights="node"), 17),
    "opset 6": lambda: model(Case("unchanged_6", "GRU", ir3=True), 6),
    "branches of a function": lambda: parse(CALLED_TWICE, domains=LOCAL),
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
SMALL = [e for kind in ("runs", "plain") for e in entries(kind) if e["bytes"] < 60_000]
REAL = [pytest.param(partial(load, entry), id=entry["file"]) for entry in SMALL]
MODELS = [*(pytest.param(make, id=name) for name, make in GIVEN.items()), *thinned(REAL, 24)]


def attempt(call: Callable[[], Any]) -> bool:
    """Whether a call succeeds; it may be refused."""
    try:
        call()
    except rl.RnnLoweringError:
        return False
    return True


def state(given: ir.Model) -> list[Any]:
    """Everything that a model of the intermediate form holds, with the identity of its parts."""
    found: list[Any] = [
        id(given.graph),
        dict(given.opset_imports),
        dict(given.metadata_props),
        list(given.functions),
    ]
    outer = [given.graph, *(function.graph for function in given.functions.values())]
    for graph in (inner for each in outer for inner in (each, *each.subgraphs())):
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


@pytest.mark.few(4)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("make", MODELS)
def test_what_is_given_stays_as_it_was(make: Callable[[], onnx.ModelProto], options: dict[str, Any]) -> None:
    message, kept = make(), copy.deepcopy(options)
    before = message.SerializeToString(deterministic=True)
    given = ir.from_proto(message)
    held = state(given)
    attempt(lambda: rl.LowerRecurrentPass(**options).preview(given))
    for each in (given, message):
        attempt(partial(rl.preview, each, **options))
        attempt(partial(rl.inspect, each))
    assert state(given) == held
    attempt(lambda: rl.lower(message, **options))
    assert attempt(lambda: rl.lower(given, **options)) or state(given) == held
    assert message.SerializeToString(deterministic=True) == before
    assert options == kept


def test_there_are_refusals_of_each_kind() -> None:
    def refused(name: str, how: str) -> bool:
        return not attempt(partial(rl.lower, GIVEN[name](), **OPTIONS[how]))

    assert all(any(refused(name, how) for how in reversed(OPTIONS)) for name in GIVEN)
    assert all(any(refused(name, how) for name in reversed(GIVEN)) for how in OPTIONS)
