"""What a lowering does not concern stays, field by field, as it was."""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Case, model
from chains import Link, chain
from onnx import TensorProto, helper, numpy_helper
from oracle import GATES
from paths import MODELS as STORED
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.files import one_file

FORMS = ("scan", "loop", "unroll")
LARGEST = 60_000
"""Bytes of a stored model that is looked at here."""


def is_recurrent(node: onnx.NodeProto) -> bool:
    if node.op_type == "DynamicQuantizeLSTM":
        return node.domain == "com.microsoft"
    return node.op_type in GATES and node.domain in ("", "ai.onnx")


def accepted(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return False
    return True


# Comparison


def assert_untouched(original: onnx.ModelProto, lowered: onnx.ModelProto) -> None:
    """Everything but the recurrent nodes of all graphs, and the constants that only they used."""
    original, lowered = normal(original), normal(lowered)
    for field in original.DESCRIPTOR.fields:
        if field.name != "graph":
            assert listed(getattr(lowered, field.name)) == listed(getattr(original, field.name)), field.name
    assert_graph_untouched(original.graph, lowered.graph)
    if accepted(original):
        onnx.checker.check_model(lowered, full_check=True)


def normal(message: Any) -> Any:
    """A copy in which no field is set to what it is anyway, and properties are in the order of their keys."""
    copy = type(message)()
    copy.CopyFrom(message)
    _clear_defaults(copy)
    return copy


def _clear_defaults(message: Any) -> None:
    for field, value in message.ListFields():
        if field.message_type is None:
            if value == field.default_value:
                message.ClearField(field.name)
            continue
        for inner in value if field.is_repeated else [value]:
            _clear_defaults(inner)
        if field.name == "metadata_props":
            value.sort(key=lambda entry: entry.key)


def listed(value: Any) -> Any:
    return value if isinstance(value, str | int | bytes) else list(value)


def assert_graph_untouched(original: onnx.GraphProto, lowered: onnx.GraphProto) -> None:
    for name in ("name", "doc_string"):
        assert getattr(lowered, name) == getattr(original, name)
    for name in ("input", "output", "metadata_props", "quantization_annotation", "sparse_initializer"):
        assert list(getattr(lowered, name)) == list(getattr(original, name)), name
    dropped = assert_nodes_untouched(original, lowered)
    assert_kept(original.initializer, lowered.initializer, dropped)
    old = {value.name for value in original.value_info}
    assert_kept(original.value_info, [v for v in lowered.value_info if v.name in old], dropped, in_order=False)


def assert_nodes_untouched(original: onnx.GraphProto, lowered: onnx.GraphProto) -> set[str]:
    """Compare the nodes; return the names of the values that only the replaced nodes used."""
    made = {name for node in lowered.node for name in node.output if name}
    kept = [n for n in original.node if not is_recurrent(n) and made & set(n.output)]
    twins = [n for n in lowered.node if {name for k in kept for name in k.output if name} & set(n.output)]
    assert [n.output for n in twins] == [n.output for n in kept]
    for old, new in zip(kept, twins, strict=True):
        assert_node_untouched(old, new)
    gone = [n for n in original.node if n not in kept]
    used = {name for n in lowered.node for name in outer_names(n)} | {value.name for value in original.output}
    lost = {name for n in gone if not is_recurrent(n) for name in n.output}
    assert not lost & used
    return lost | {name for n in original.node for name in outer_names(n) if name not in used}


def outer_names(node: onnx.NodeProto) -> Iterator[str]:
    """What a node and its subgraphs take."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            made = {value.name for value in (*graph.input, *graph.initializer)}
            made |= {name for inner in graph.node for name in inner.output}
            taken = {name for inner in graph.node for name in outer_names(inner)}
            yield from (taken | {value.name for value in graph.output}) - made


def assert_node_untouched(old: onnx.NodeProto, new: onnx.NodeProto) -> None:
    if not any(attribute.HasField("g") for attribute in old.attribute):
        assert new == old
        return
    for field in old.DESCRIPTOR.fields:
        if field.name != "attribute":
            assert listed(getattr(new, field.name)) == listed(getattr(old, field.name)), field.name
    assert [a.name for a in new.attribute] == [a.name for a in old.attribute]
    for before, after in zip(old.attribute, new.attribute, strict=True):
        if before.HasField("g"):
            assert_graph_untouched(before.g, after.g)
        else:
            assert after == before


def assert_kept(before: Iterable[Any], after: Iterable[Any], dropped: set[str], *, in_order: bool = True) -> None:
    """The named messages of `before` are there, but for dropped ones."""
    remaining = {item.name: item for item in after}
    wanted = [item for item in before if item.name in remaining or item.name not in dropped]
    for item in wanted:
        assert remaining[item.name] == item, item.name
    if in_order:
        names = {item.name for item in wanted}
        assert [name for name in remaining if name in names] == [item.name for item in wanted]


# A model with all that a model can hold


def property_of(key: str) -> onnx.StringStringEntryProto:
    return onnx.StringStringEntryProto(key=key, value=f"value of {key}")


def decorated(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with texts and properties wherever there is room for them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.producer_name, copy.producer_version, copy.domain = "a producer", "1.2.3", "org.example"
    copy.model_version, copy.doc_string = 42, "the model's text"
    copy.metadata_props.extend(map(property_of, ("b of the model", "a of the model")))
    copy.opset_import.append(helper.make_opsetid("com.example", 3))
    graph = copy.graph
    graph.name, graph.doc_string = "the graph", "the graph's text"
    graph.metadata_props.append(property_of("of the graph"))
    for node in graph.node:
        node.doc_string = f"text of {node.name}"
        node.metadata_props.append(property_of(f"of {node.name}"))
    for value in (*graph.input, *graph.output):
        value.doc_string = f"text of {value.name}"
        value.metadata_props.append(property_of(f"of {value.name}"))
        if value.type.tensor_type.shape.dim:
            value.type.denotation = "TENSOR"
            value.type.tensor_type.shape.dim[0].denotation = "DATA_TIME"
    return copy


def with_all(dims: tuple[int | str, ...] = ("seq", "batch")) -> onnx.ModelProto:
    """Two recurrent nodes amid values, nodes and functions of many kinds."""
    proto = chain(Link("LSTM", "first"), Link("GRU", "second", {"direction": "bidirectional"}), dims=dims, opset=18)
    proto.functions.append(_twice())
    proto.graph.node.insert(0, helper.make_node("Shape", ["X"], ["sizes"], start=0, end=2))
    proto.graph.node.extend(_other_nodes(dims))
    _add_tensors(proto.graph)
    _add_ends(proto.graph, dims)
    whole = decorated(proto)
    info = helper.make_tensor_value_info("x0", TensorProto.FLOAT, [*dims, 4], doc_string="text of x0")
    info.metadata_props.append(property_of("of x0"))
    whole.graph.value_info.extend([helper.make_tensor_value_info("twice", TensorProto.FLOAT, [*dims, 8]), info])
    return whole


def _twice() -> onnx.FunctionProto:
    body = [helper.make_node("Add", ["a", "a"], ["b"], "add")]
    return helper.make_function("com.example", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 18)])


def _other_nodes(dims: tuple[int | str, ...]) -> list[onnx.NodeProto]:
    """A function call, branches, absent inputs and outputs, a sequence, an unnamed and an unused node."""
    branches = {}
    for branch, op in {"then_branch": "Abs", "else_branch": "Neg"}.items():
        nodes = [helper.make_node(op, ["out"], [f"{op}_of_out"])]
        info = helper.make_tensor_value_info(f"{op}_of_out", TensorProto.FLOAT, [*dims, 8])
        branches[branch] = helper.make_graph(nodes, f"{op} branch", [], [info])
    return [
        helper.make_node("Twice", ["out"], ["twice"], "call", domain="com.example"),
        helper.make_node("If", ["flag"], ["chosen"], "choice", **branches),
        helper.make_node("Split", ["twice"], ["", "half"], axis=2, num_outputs=2),
        helper.make_node("Clip", ["half", "", "upper"], ["clipped"], ""),
        helper.make_node("SequenceConstruct", ["half", "clipped"], ["parts"], "sequence"),
        helper.make_node("Identity", ["X"], ["unused"]),
    ]


def _add_tensors(graph: onnx.GraphProto) -> None:
    graph.initializer[0].doc_string = "text of a weight"
    raw = helper.make_tensor("raw", TensorProto.FLOAT, [2], [0.5, 1.5])
    raw.doc_string = "text of a tensor"
    raw.metadata_props.append(property_of("of a tensor"))
    graph.initializer.append(numpy_helper.from_array(np.array(2.5, np.float32), "upper"))
    graph.initializer.append(numpy_helper.from_array(np.arange(5), "used by nobody"))
    graph.initializer.append(raw)


def _add_ends(graph: onnx.GraphProto, dims: tuple[int | str, ...]) -> None:
    graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    graph.input.append(helper.make_tensor_value_info("not used", TensorProto.STRING, ["strings", 3]))
    graph.output.insert(0, helper.make_tensor_value_info("sizes", TensorProto.INT64, [2]))
    graph.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, [*dims, 8]))
    graph.output.append(helper.make_tensor_value_info("Y0", TensorProto.FLOAT, [dims[0], 1, dims[1], 4]))
    graph.output.append(helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None))


def without_recurrent_nodes() -> onnx.ModelProto:
    proto = with_all()
    kept = [node for node in proto.graph.node if not is_recurrent(node)]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    for name in ("Y0", "Y1"):
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    outputs = [value for value in proto.graph.output if value.name != "Y0"]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    return proto


def shared_weight() -> onnx.ModelProto:
    """A weight that another node uses too, and one that is an output."""
    proto = chain(Link("LSTM", "first"), dims=(3, 2))
    proto.graph.node.append(helper.make_node("Relu", ["W0"], ["relu_of_W"], "relu"))
    proto.graph.output.append(helper.make_tensor_value_info("relu_of_W", TensorProto.FLOAT, [1, 16, 3]))
    return proto


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "all": with_all,
    "all, static": lambda: with_all((3, 2)),
    "static": lambda: decorated(chain(Link("LSTM", "first"), Link("GRU", "second"), dims=(3, 2))),
    "unnamed": lambda: chain(Link("LSTM", ""), Link("GRU", ""), dims=(3, 2)),
    "in branches": lambda: decorated(model(Case("untouched_if", "LSTM", scope="if"), 17)),
    "IR version 3": lambda: model(Case("untouched_ir3", "GRU", ir3=True, x="symbolic"), 8),
    "shared weight": shared_weight,
}


def possible_forms(proto: onnx.ModelProto) -> list[str]:
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    without_scan = [] if proto.opset_import[0].version < 9 else ["scan"]
    return [*without_scan, "loop", *(["unroll"] if all(dim.HasField("dim_value") for dim in dims) else [])]


@pytest.mark.parametrize("name", MODELS)
def test_untouched(name: str) -> None:
    original = MODELS[name]()
    onnx.checker.check_model(original, full_check=True)
    for form in possible_forms(original):
        lowered = rl.lower(original, form)
        assert not any(is_recurrent(node) for node in lowered.graph.node)
        assert_untouched(original, lowered)


def test_what_takes_the_place_of_an_output() -> None:
    """Names, types, shapes and texts of a node's outputs go to the values in their place."""
    original = with_all()
    info = helper.make_tensor_value_info("Y1", TensorProto.FLOAT, ["seq", 2, "batch", 4], doc_string="text of Y1")
    info.metadata_props.append(property_of("of Y1"))
    original.graph.value_info.append(info)
    for form in possible_forms(original):
        lowered = rl.lower(original, form)
        (kept,) = [value for value in lowered.graph.value_info if value.name == "Y1"]
        assert kept == info


@pytest.mark.parametrize("form", FORMS)
def test_nodes_stand_where_the_node_stood(form: str) -> None:
    original = chain(Link("LSTM", "first"), Link("GRU", "second"), dims=(3, 2))
    order = [node.name.split("/")[0] for node in rl.lower(original, form).graph.node]
    assert list(dict.fromkeys(order)) == ["first", "turn0", "merge0", "second", "turn1", "merge1", "last"]


def test_only_the_selected_node_is_concerned() -> None:
    original = with_all()
    lowered = rl.lower(original, only=["second"])
    (kept,) = [node for node in lowered.graph.node if is_recurrent(node)]
    assert kept == next(node for node in original.graph.node if node.name == "first")
    weights = {tensor.name: tensor for tensor in lowered.graph.initializer}
    for tensor in original.graph.initializer[:4]:
        assert weights[tensor.name] == tensor
    onnx.checker.check_model(lowered, full_check=True)


def test_operators_of_other_domains_with_these_names_are_others() -> None:
    original = chain(Link("LSTM", "first"))
    original.graph.node[0].domain = "com.example"
    original.opset_import.append(helper.make_opsetid("com.example", 1))
    assert rl.lower(original) == original


# Without recurrent nodes


@pytest.mark.parametrize("form", ["auto", *FORMS])
def test_a_model_without_recurrent_nodes_is_equal(form: str) -> None:
    original = without_recurrent_nodes()
    assert rl.lower(original, form).SerializeToString() == original.SerializeToString()


def test_a_model_with_nothing_selected_is_equal() -> None:
    original = with_all()
    assert rl.lower(original, except_=["LSTM", "GRU"]).SerializeToString() == original.SerializeToString()


def test_a_file_without_recurrent_nodes_is_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(without_recurrent_nodes(), source)
    rl.lower_file(source, target)
    assert target.read_bytes() == source.read_bytes()


def test_unknown_fields_of_a_newer_onnx_are_copied(tmp_path: Path) -> None:
    """A field that this version of ONNX does not know: number 900, one byte."""
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    source.write_bytes(without_recurrent_nodes().SerializeToString() + b"\xa2\x38\x01\x07")
    rl.lower_file(source, target)
    assert target.read_bytes() == source.read_bytes()


# Checked models stay checked


@pytest.mark.parametrize(
    ("op_type", "opset"),
    thinned(list(product(GATES, [7, 8, 9, 10, 11, 12, 13, 15, 18, 20, 23, 25, 28])), 4),
)
def test_checker(op_type: str, opset: int) -> None:
    optional = ("B", "sequence_lens", "initial_h", "initial_c", "P")
    for x in ("static", "symbolic", "unknown", "unranked"):
        case = Case(
            "untouched_checked", op_type, {"direction": "bidirectional", "clip": 1.0}, optional=optional, x=x
        )
        original = model(case, opset)
        onnx.checker.check_model(original, full_check=True)
        for form in ["loop", *(["scan"] if opset > 8 else []), *(["unroll"] if case.knows_length else [])]:
            lowered = rl.lower(original, form)
            onnx.checker.check_model(lowered, full_check=True)
            assert lowered.ir_version == original.ir_version
            assert list(lowered.opset_import) == list(original.opset_import)


# Stored models


def stored() -> list[Any]:
    manifest = STORED / "manifest.json"
    if not manifest.exists():
        return [pytest.param("", marks=pytest.mark.skip(reason="the folder of stored models is not there"))]
    entries = json.loads(manifest.read_text())
    small = [entry["file"] for entry in entries if entry["bytes"] <= LARGEST and entry["ort"]["runs"]]
    return [pytest.param(name, id=name) for name in small]


@pytest.mark.parametrize("name", stored())
def test_stored_model(name: str) -> None:
    original = onnx.load(STORED / name)
    if original.functions:
        pytest.skip("functions are inlined")
    if min(entry.version for entry in original.opset_import if entry.domain in ("", "ai.onnx")) < 7:
        pytest.skip("models of old opsets are converted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rl.RnnLoweringWarning)
        lowered = rl.lower(original)
    assert_untouched(original, lowered)


# What the model does not declare


def with_undeclared(body: str) -> onnx.ModelProto:
    """A body with initializers, of which one is an output and one is declared, beside an LSTM."""
    proto = chain(Link("LSTM", "first"), dims=(3, 2), opset=18)
    graph = proto.graph
    graph.initializer.append(numpy_helper.from_array(np.array(2, np.float32), "factor"))
    graph.node.append(helper.make_node("Mul", ["out", "factor"], ["more"], "multiply"))
    graph.output.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [3, 2, 4]))
    results = ["chosen", "held"]
    if body == "If":
        graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
        branches = {name: _with_initializers(name) for name in ("then_branch", "else_branch")}
        graph.node.append(helper.make_node("If", ["flag"], results, "choice", **branches))
    else:
        graph.initializer.append(numpy_helper.from_array(np.array(2), "steps"))
        graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "start"))
        step = _with_initializers("step")
        step.node.append(helper.make_node("Identity", ["go"], ["go_on"]))
        scalars = {"iteration": TensorProto.INT64, "go": TensorProto.BOOL}
        step.input.extend(helper.make_tensor_value_info(name, dtype, []) for name, dtype in scalars.items())
        step.input.append(helper.make_tensor_value_info("carried", TensorProto.FLOAT, [4]))
        step.output.insert(0, helper.make_tensor_value_info("go_on", TensorProto.BOOL, []))
        graph.node.append(helper.make_node("Loop", ["steps", "", "start"], results, "loop", body=step))
    shapes = [[4], [4] if body == "If" else [2, 4]]
    graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(results, shapes, strict=True)
    )
    return proto


def _with_initializers(name: str) -> onnx.GraphProto:
    tensors = [numpy_helper.from_array(np.ones(4, np.float32), f"{name}_{n}") for n in ("one", "two", "held")]
    nodes = [helper.make_node("Add", [f"{name}_one", f"{name}_two"], [f"{name}_sum"], f"{name}_add")]
    outputs = [helper.make_tensor_value_info(f"{name}_{n}", TensorProto.FLOAT, [4]) for n in ("sum", "held")]
    declared = [helper.make_tensor_value_info(f"{name}_two", TensorProto.FLOAT, [4])]
    return helper.make_graph(nodes, name, [], outputs, tensors, value_info=declared)


@pytest.mark.parametrize("body", ["If", "Loop"])
@pytest.mark.parametrize("way", ["in memory", "a file", "a data file", "a large file"])
def test_nothing_else_is_declared(body: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = with_undeclared(body)
    onnx.checker.check_model(original, full_check=True)
    if way == "in memory":
        lowered = rl.lower(original, "unroll")
    else:
        if way == "a large file":
            monkeypatch.setattr(one_file, "LARGE", 1)
            monkeypatch.setattr(one_file, "TENSOR_BYTES", 64)
        onnx.save(original, tmp_path / "in.onnx")
        policy = "always" if way == "a data file" else "never"
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", "unroll", external_data=policy)
        lowered = onnx.load(tmp_path / "out.onnx")
    kept = {node.name: node for node in lowered.graph.node}
    for node in original.graph.node:
        if not is_recurrent(node):
            assert normal(kept[node.name]) == normal(node)
    old = {tensor.name for tensor in original.graph.initializer}
    old |= {name for node in original.graph.node if not is_recurrent(node) for name in node.output}
    assert [info.name for info in lowered.graph.value_info if info.name in old] == []
