"""What is stored of ONNX's tests of operators is what the clients do today, in a sample."""

from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from running import assert_close, run
from texts import parse

import rnn_lowering as rl
from clients.environments import CLIENTS, version
from clients.operators import (
    NodeTest,
    in_a_net,
    judged,
    modes_in,
    node_tests,
    outcomes,
    outcomes_at_once,
    stored,
    telling,
    thinned,
)

SAMPLE = 20
"""Operators of each kind."""

MEASURED = [client for client in CLIENTS if client in stored()]


@pytest.mark.parametrize("client", MEASURED)
def test_does_with_a_sample_of_onnxs_tests_what_it_did(client: str) -> None:
    """Measure again where a client has learned an operator: python -m clients.operators CLIENT."""
    entries = stored()[client]["operators"]
    never = thinned([name for name, (_, *counts) in entries.items() if not counts[0]], SAMPLE)
    always = thinned([name for name, (_, *counts) in entries.items() if counts[0] and not any(counts[1:])], SAMPLE)
    tests = {name: thinned(node_tests()[name], 2 if name in never else 1) for name in (*never, *always)}
    modes = {name: with_modes(name) for name in thinned(sorted(stored()[client]["wrong with"]), 5)}
    every = {test.name: test for found in (tests | modes).values() for test in found}
    became = outcomes_at_once(client, list(every.values()))
    right = {name for name, found in tests.items() if any(became[test.name] == "right" for test in found)}
    assert right == set(always)
    assert all("wrong" in {became[test.name] for test in found} for found in modes.values())


def with_modes(key: str) -> list[NodeTest]:
    """The tests of an operator with some modes, named as in the data."""
    operator, _, modes = key.partition(".")
    given = frozenset(filter(None, modes.split(",")))
    return [test for test in telling(node_tests()[operator]) if modes_in(test) == given]


@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
@pytest.mark.parametrize("client", MEASURED)
def test_computes_what_takes_the_place_of_operators(client: str) -> None:
    replaced = []
    never = [name for name, (_, right, *_others) in stored()[client]["operators"].items() if not right]
    tests = {name: thinned(node_tests()[name], 2) for name in never}
    tests |= {name: thinned(with_modes(name), 2) for name in stored()[client]["wrong with"]}
    for found in tests.values():
        for test in map(in_a_net, found):
            with suppress(rl.UnsupportedError):  # MNN's QuantizeLinear
                model, report = rl.lower(test.model, target=cast(Any, client), full=True)
                replaced += [replace(test, model=model)] if report.replaced else []
    became = judged(client, replaced)
    assert became == dict.fromkeys(became, "right")


LESS = """g (float[3, 4, 5] a, float[5] b) => (float[3, 4, 5] y) { c = Less (a, b) y = Cast <to = 1> (c) }"""


@pytest.mark.environments("mnn")
@pytest.mark.parametrize("opset", [7, 9, 17])
def test_less_of_negative_numbers_in_mnn(opset: int) -> None:
    """MNN compares two negative floats the wrong way round; Greater is right, of NaN too."""
    net, rng = parse(LESS, opset), np.random.default_rng(0)
    a, b = (-rng.integers(0, 4, shape).astype(np.float32) for shape in ((3, 4, 5), (5,)))
    a[0, 0, :2], b[3] = np.nan, np.nan
    feed = {"a": a, "b": b}
    test = NodeTest("less", "Less", opset, net, feed, run(net, feed))
    assert judged("mnn", [test]) == {"less": "wrong"}
    lowered = rl.lower(net, target="mnn")
    assert [node.op_type for node in lowered.graph.node] == ["Greater", "Cast"]
    assert judged("mnn", [replace(test, model=lowered)]) == {"less": "right"}


SHAPE = "s = Shape (x)  z = Expand (one, s)  y = Add (x, z)"
ROW = "r = Gather <axis = 1> (x, two)  z = Unsqueeze (r, axis)  y = Add (x, z)"


@pytest.mark.parametrize(("client", "net"), [("ncnn", SHAPE), ("rknn", SHAPE), ("ncnn", ROW)])
def test_runs_in_a_net_what_it_rejects_in_onnxs_tests(client: str, net: str) -> None:
    """There the output of Shape is that of the model, and Gather takes several rows."""
    model = parse(f"g (float[1,4,3] x) => (float[1,4,3] y) {{ {net} }}", 17)
    constants = {"one": np.ones(1, np.float32), "two": np.array(2), "axis": np.array([1])}
    used = {name for node in model.graph.node for name in node.input}
    tensors = [onnx.numpy_helper.from_array(a, name) for name, a in constants.items() if name in used]
    model.graph.initializer.extend(tensors)
    feed = {"x": np.arange(12, dtype=np.float32).reshape(1, 4, 3)}
    lowered, report = rl.lower(model, target=cast(Any, client), full=True)
    assert not report.unsupported
    test = NodeTest("net", "Shape", 15, lowered, feed, run(model, feed))
    assert judged(client, [test]) == {"net": "right"}


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_stored_is_of_the_version_and_operators_of_today(name: str) -> None:
    entry = stored()[name]
    assert entry["version"] == version(name)
    if entry["onnx"] == onnx.__version__:
        assert entry["operators"].keys() == node_tests().keys()


def test_a_test_in_a_net_computes_the_same_in_onnxruntime() -> None:
    for operator in ("Add", "ArgMax", "ConstantOfShape", "Not", "QuantizeLinear", "Size", "Where"):
        for test in node_tests()[operator]:
            net = in_a_net(test)
            assert len(net.feed) == 1
            assert_close(run(net.model, net.feed), net.expected, "float32")


def test_a_wrong_number_and_a_wrong_shape_are_wrong() -> None:
    x = np.ones((2, 3), np.float32)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    shown = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [value], [shown])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    expected = {"right": x, "number": x + 0.01, "shape": x[None]}
    tests = [NodeTest(name, "Abs", 13, model, {"x": x}, {"y": array}) for name, array in expected.items()]
    missing = onnx.ModelProto()
    missing.CopyFrom(model)
    missing.graph.node[0].op_type = "Absent"
    tests.append(NodeTest("operator", "Abs", 13, missing, {"x": x}, {"y": x}))
    became = outcomes("onnxruntime", tests)
    assert became == {"right": "right", "number": "wrong", "shape": "wrong", "operator": "rejected"}
