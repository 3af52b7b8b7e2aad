"""Names of what a lowering adds are unique in the whole model, at every IR version and opset, in every scope, for
every subset of outputs; each output of a node becomes a value of its own."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import onnx
import pytest
from cases import RESULTS, Case, feed, model
from chains import Link, chain
from running import nodes, run, scopes
from thinning import thinned

import rnn_lowering as rl

OPSETS = (7, 9, 13, 21)
IR_VERSIONS = [(3, "initializer"), *((v, "constant" if v % 2 else "initializer") for v in range(3, 11))]
"""With how the weights come: at version 3 initializers are inputs, and so not known."""

LENGTHS = {"T=0": (0, "static"), "T=1": (1, "static"), "T unknown": (2, "length")}


def subsets(op_type: str) -> Iterator[tuple[str, ...]]:
    """Every choice of at least one output."""
    for count in range(1, len(RESULTS[op_type]) + 1):
        yield from combinations(RESULTS[op_type], count)


def listed(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of values and of nodes that a graph and its bodies define, as often as they are defined."""
    for scope in scopes(graph):
        inputs = {value.name for value in scope.input}
        yield from inputs
        yield from (tensor.name for tensor in scope.initializer if tensor.name not in inputs)
        for node in scope.node:
            yield f"node {node.name}"
            yield from (name for name in node.output if name)


def check(original: onnx.ModelProto, lowered: onnx.ModelProto) -> None:
    names = Counter(listed(lowered.graph))
    assert [name for name, count in names.items() if count > 1] == []
    assert "node " not in names
    assert [v.name for v in lowered.graph.output] == [v.name for v in original.graph.output]
    assert [v.name for v in lowered.graph.input] == [v.name for v in original.graph.input]
    onnx.checker.check_model(lowered)


def case_of(op_type: str, outputs: tuple[str, ...], length: str, weights: str, scope: str = "main") -> Case:
    T, x = LENGTHS[length]
    return Case("named", op_type, T=T, outputs=outputs, x=x, weights=weights, scope=scope, optional=())  # type: ignore[arg-type]


def of_ir_version(case: Case, opset: int, ir_version: int) -> onnx.ModelProto:
    """A model whose initializers, if it has any, are inputs too where the IR version wants that."""
    proto = model(case, opset)
    proto.ir_version = ir_version
    if ir_version == 3:
        known = {value.name for value in proto.graph.input}
        for tensor in proto.graph.initializer:
            if tensor.name not in known:
                proto.graph.input.append(
                    onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                )
    return proto


@pytest.mark.parametrize(("opset", "op_type", "length"), thinned(list(product(OPSETS, RESULTS, LENGTHS)), 5))
def test_every_ir_version_and_subset_of_outputs(op_type: str, opset: int, length: str) -> None:
    for outputs in subsets(op_type):
        for ir_version, weights in IR_VERSIONS:
            original = of_ir_version(case_of(op_type, outputs, length, weights), opset, ir_version)
            check(original, rl.lower(original, "loop"))


@pytest.mark.parametrize("op_type", RESULTS)
@pytest.mark.parametrize("ir_version", [3, 8])
def test_without_steps_every_output_is_computed(op_type: str, ir_version: int) -> None:
    for opset, outputs in ((o, s) for o in (7, 13) for s in subsets(op_type)):
        case = case_of(op_type, outputs, "T=0", "constant")
        results = run(rl.lower(of_ir_version(case, opset, ir_version)), feed(case))
        assert results.keys() == {*outputs}
        assert not any(np.any(array) for array in results.values())


@pytest.mark.parametrize("op_type", RESULTS)
@pytest.mark.parametrize("length", ["T=0", "T=1"])
def test_in_branches(op_type: str, length: str) -> None:
    for outputs in subsets(op_type):
        original = model(case_of(op_type, outputs, length, "initializer", scope="if"), 13)
        check(original, rl.lower(original, "loop"))


@pytest.mark.parametrize("ir_version", [3, 8])
def test_two_nodes_without_steps_share_constants(ir_version: int) -> None:
    """Each output of both is a value of its own, also where a branch uses it."""
    original = of_ir_version(case_of("LSTM", ("Y_h", "Y_c"), "T=0", "constant"), 13, ir_version)
    twin = onnx.NodeProto()
    twin.CopyFrom(original.graph.node[-1])
    twin.name, twin.output[:] = "twin", ["", "Y_h2", "Y_c2"]
    original.graph.node.append(twin)
    for value in list(original.graph.output):
        original.graph.output.append(value)
        original.graph.output[-1].name += "2"
    branches = {
        f"{name}_branch": onnx.helper.make_graph(
            [onnx.helper.make_node("Add", ["Y_h", taken], [f"{name}_sum"], f"{name}_add")],
            name,
            [],
            [onnx.helper.make_tensor_value_info(f"{name}_sum", 1, [1, None, None])],
        )
        for name, taken in (("then", "Y_c"), ("else", "Y_c2"))
    }
    truth = onnx.helper.make_tensor("truth", onnx.TensorProto.BOOL, [], [True])
    original.graph.node.append(onnx.helper.make_node("Constant", [], ["condition"], "condition", value=truth))
    original.graph.node.append(onnx.helper.make_node("If", ["condition"], ["sum"], "if", **branches))
    original.graph.output.append(onnx.helper.make_tensor_value_info("sum", 1, [1, None, None]))
    lowered = rl.lower(original)
    check(original, lowered)
    case = case_of("LSTM", ("Y_h", "Y_c"), "T=0", "constant")
    assert run(lowered, feed(case)).keys() == {"Y_h", "Y_c", "Y_h2", "Y_c2", "sum"}


# Where nodes come from


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_nodes_tell_where_they_come_from(form: str) -> None:
    """Unrolled, two steps in the middle tell it for all."""
    lowered = rl.lower(chain(Link("LSTM", "first", {"direction": "bidirectional"}), dims=(6, 2)), form)
    told = [{p.key.removeprefix("rnn_lowering."): p.value for p in n.metadata_props} for n in nodes(lowered)]
    ours = [t for n, t in zip(nodes(lowered), told, strict=True) if n.name.startswith("first/")]
    steps_apart = re.compile("first/(forward|reverse)/[0145]/")
    silent = [n.name for n, t in zip(nodes(lowered), told, strict=True) if n.name.startswith("first/") and not t]
    assert all(map(steps_apart.match, silent))
    assert all(t.get("node") == "first" and t["operator"] == "LSTM" for t in ours if t and "step" not in t)
    steps = {t["step"] for t in ours if "step" in t}
    assert steps == ({f"{d}/{t}" for d in ("forward", "reverse") for t in (2, 3)} if form == "unroll" else set())
    symbols = {s for t in ours for s in t.get("symbols", "").split(",") if s}
    assert symbols >= {"it", "ot", "ft", "ct", "Ct", "Ht", "XW"}
    assert {w for t in ours for w in t.get("weights", "").split(",") if w} == {"W", "R", "B"}


def test_names_in_steps_do_not_repeat_the_path_of_the_node() -> None:
    links = Link("LSTM", "/encoder/layers.0/LSTM"), Link("LSTM", "/encoder/layers.1/LSTM")
    names = [node.name for node in nodes(rl.lower(chain(*links, dims=(5, 2)), "unroll"))]
    for t in range(5):
        assert {"LSTM" + n for n in ("", "_1")} <= {n.split("/")[0] for n in names if n.split("/")[1:2] == [str(t)]}
    assert {n.rpartition("/")[0] for n in names if n.startswith("/encoder")} == {link.name for link in links}


def test_what_a_step_costs_in_bytes() -> None:
    """75 for each of the 11 operators of an LSTM; the path of the node is only in the names of its row of X W^T,
    of R and of the sizes of two Splits."""

    def step(path: str) -> float:
        sizes = [
            len(rl.lower(chain(Link("LSTM", path), dims=(steps, 1)), "unroll").SerializeToString())
            for steps in (100, 200)
        ]
        return (sizes[1] - sizes[0]) / 100

    path = "/a/long/path/of/modules/"
    assert step("lstm") <= 11 * 75
    assert step(f"{path}lstm") <= step("lstm") + 5 * (len(path) + 1)


def test_other_nodes_tell_nothing() -> None:
    lowered = rl.lower(chain(Link("GRU", "first")), "scan")
    assert [list(n.metadata_props) for n in nodes(lowered) if n.name == "last"] == [[]]
