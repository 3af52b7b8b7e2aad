"""Names of what a lowering adds are unique in the whole model, at every IR version and opset, in every scope, for
every subset of outputs; each output of a node becomes a value of its own."""

import re
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import onnx
import pytest
from cases import RESULTS, Case, feed, model
from chains import Link, chain
from graphs import value
from onnx import helper
from running import nodes, run
from texts import FORMS, lowered
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


def case_of(op_type: str, outputs: tuple[str, ...], length: str, weights: str, scope: str = "main") -> Case:
    T, x = LENGTHS[length]
    return Case("named", op_type, T=T, outputs=outputs, x=x, weights=weights, scope=scope, optional=())  # type: ignore[arg-type]


def of_ir_version(case: Case, opset: int, ir_version: int) -> onnx.ModelProto:
    """A model whose initializers, if it has any, are inputs too where the IR version wants that."""
    proto = model(case, opset)
    proto.ir_version = ir_version
    known = {given.name for given in proto.graph.input}
    for tensor in proto.graph.initializer if ir_version == 3 else ():
        if tensor.name not in known:
            proto.graph.input.append(value(tensor.name, tensor.dims))
    return proto


def check(original: onnx.ModelProto, form: str = "loop") -> onnx.ModelProto:
    """Lower; names are unique, no node is without one, and those of inputs and outputs are the same."""
    new = lowered(original, form)
    assert all(node.name for node in nodes(new))
    for field in ("input", "output"):
        names = ([v.name for v in getattr(proto.graph, field)] for proto in (original, new))
        assert next(names) == next(names)
    return new


@pytest.mark.few(1)
@pytest.mark.parametrize(("opset", "op_type", "length"), thinned(list(product(OPSETS, RESULTS, LENGTHS)), 5))
def test_every_ir_version_and_subset_of_outputs(op_type: str, opset: int, length: str) -> None:
    for outputs in subsets(op_type):
        for ir_version, weights in IR_VERSIONS:
            check(of_ir_version(case_of(op_type, outputs, length, weights), opset, ir_version))
        if opset == 13:
            check(model(case_of(op_type, outputs, length, "initializer", scope="if"), opset))


@pytest.mark.parametrize("op_type", RESULTS)
@pytest.mark.parametrize("ir_version", [3, 8])
def test_without_steps_every_output_is_computed(op_type: str, ir_version: int) -> None:
    for opset, outputs in ((o, s) for o in (7, 13) for s in subsets(op_type)):
        case = case_of(op_type, outputs, "T=0", "constant")
        results = run(rl.lower(of_ir_version(case, opset, ir_version)), feed(case))
        assert results.keys() == {*outputs}
        assert not any(array.any() for array in results.values())


@pytest.mark.parametrize("ir_version", [3, 8])
def test_two_nodes_without_steps_share_constants(ir_version: int) -> None:
    """Each output of both is a value of its own, also where a branch uses it."""
    case = case_of("LSTM", ("Y_h", "Y_c"), "T=0", "constant")
    original = of_ir_version(case, 13, ir_version)
    graph, truth = original.graph, onnx.helper.make_tensor("truth", onnx.TensorProto.BOOL, [], [True])
    twin = onnx.NodeProto.FromString(graph.node[-1].SerializeToString())
    twin.name, twin.output[:] = "twin", ["", "Y_h2", "Y_c2"]
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Add", ["Y_h", taken], [f"{name}_sum"], f"{name}_add")],
            name,
            [],
            [value(f"{name}_sum", [1, None, None])],
        )
        for name, taken in (("then", "Y_c"), ("else", "Y_c2"))
    }
    condition = helper.make_node("Constant", [], ["condition"], "condition", value=truth)
    graph.node.extend([twin, condition, helper.make_node("If", ["condition"], ["sum"], "if", **branches)])
    graph.output.extend(value(name, [1, None, None]) for name in ("Y_h2", "Y_c2", "sum"))
    assert run(check(original, "auto"), feed(case)).keys() == {"Y_h", "Y_c", "Y_h2", "Y_c2", "sum"}


# Where nodes come from


@pytest.mark.parametrize("form", FORMS)
def test_nodes_tell_where_they_come_from(form: Any) -> None:
    """Unrolled, two steps in the middle tell it for all; other nodes tell nothing."""
    new = rl.lower(chain(Link("LSTM", "first", {"direction": "bidirectional"}), dims=(6, 2)), form)
    told = {n.name: {p.key.removeprefix("rnn_lowering."): p.value for p in n.metadata_props} for n in nodes(new)}
    assert told["last"] == {}
    ours = {name: t for name, t in told.items() if name.startswith("first/")}
    steps_apart = re.compile("first/(forward|reverse)/[0145]/")
    assert all(steps_apart.match(name) for name, t in ours.items() if not t)
    assert all(t.get("node") == "first" and t["operator"] == "LSTM" for t in ours.values() if t and "step" not in t)
    steps = {t["step"] for t in ours.values() if "step" in t}
    assert steps == ({f"{d}/{t}" for d in ("forward", "reverse") for t in (2, 3)} if form == "unroll" else set())
    symbols = {s for t in ours.values() for s in t.get("symbols", "").split(",") if s}
    assert symbols >= {"it", "ot", "ft", "ct", "Ct", "Ht", "XW"}
    assert {w for t in ours.values() for w in t.get("weights", "").split(",") if w} == {"W", "R", "B"}


def test_names_in_steps_do_not_repeat_the_path_of_the_node() -> None:
    """A step costs 75 bytes for each of the 11 operators of an LSTM; the path of the node is only in the names of
    its row of X W^T, of R and of the sizes of two Splits."""
    links = Link("LSTM", "/encoder/layers.0/LSTM"), Link("LSTM", "/encoder/layers.1/LSTM")
    names = [node.name for node in nodes(rl.lower(chain(*links, dims=(5, 2)), "unroll"))]
    for t in range(5):
        assert {"LSTM" + n for n in ("", "_1")} <= {n.split("/")[0] for n in names if n.split("/")[1:2] == [str(t)]}
    assert {n.rpartition("/")[0] for n in names if n.startswith("/encoder")} == {link.name for link in links}

    def step(path: str) -> float:
        models = (rl.lower(chain(Link("LSTM", path), dims=(T, 1)), "unroll") for T in (20, 40))
        few, many = (len(model.SerializeToString()) for model in models)
        return (many - few) / 20

    path = "/a/long/path/of/modules/"
    assert step("lstm") <= 11 * 75
    assert step(f"{path}lstm") <= step("lstm") + 5 * (len(path) + 1)
