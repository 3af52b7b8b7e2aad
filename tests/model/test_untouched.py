"""What a lowering does not concern stays, field by field, as it was."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from cases import Case, model
from chains import Link, chain
from onnx import TensorProto, helper
from oracle import GATES
from running import bodies, scopes
from stored_models import entries, load
from texts import FORMS, parse

import rnn_lowering as rl
from rnn_lowering.files import one_file

LARGEST = 60_000
"""Bytes of a stored model that is looked at here."""


def is_recurrent(node: onnx.NodeProto) -> bool:
    if node.op_type == "DynamicQuantizeLSTM":
        return node.domain == "com.microsoft"
    return node.op_type in GATES and node.domain in ("", "ai.onnx")


# Comparison


def assert_untouched(original: onnx.ModelProto, lowered: onnx.ModelProto) -> None:
    """Everything but the recurrent nodes of all graphs, and what only they used, is equal."""
    old, new = normal(original), normal(lowered)
    keep_the_rest(old.graph, new.graph)
    assert new == old
    try:
        onnx.checker.check_model(original, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return
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


def keep_the_rest(old: onnx.GraphProto, new: onnx.GraphProto) -> None:
    """Remove recurrent nodes from a graph, what took their place from the new one, and what only they used."""
    left = {name for node in new.node for name in node.output} | {tensor.name for tensor in new.initializer}
    dropped = only_for_recurrent(old) - left
    kept = [n for n in old.node if not is_recurrent(n) and not dropped & set(n.output)]
    names = {name for node in kept for name in node.output if name}
    replace(old.node, kept)
    replace(new.node, [node for node in new.node if names & set(node.output)])
    for field in ("initializer", "value_info"):
        of_old = [item for item in getattr(old, field) if item.name not in dropped]
        of_new = [item for item in getattr(new, field) if item.name in {item.name for item in of_old}]
        by_name = (lambda item: item.name) if field == "value_info" else (lambda item: 0)
        replace(getattr(old, field), sorted(of_old, key=by_name))
        replace(getattr(new, field), sorted(of_new, key=by_name))
    for before, after in zip(old.node, new.node, strict=False):
        for pair in zip(bodies(before), bodies(after), strict=False):
            keep_the_rest(*pair)


def replace(field: Any, items: list[Any]) -> None:
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)


def only_for_recurrent(graph: onnx.GraphProto) -> set[str]:
    """The values that only recurrent nodes use, and nodes that only they need."""
    return {name for scope in scopes(graph) for node in scope.node for name in node.input} - needed(graph)


def needed(graph: onnx.GraphProto) -> set[str]:
    used = {name for scope in scopes(graph) for node in scope.node for name in node.input}
    found = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if not is_recurrent(node) and (found & set(node.output) or not used & set(node.output)):
            found |= {*node.input}.union(*map(needed, bodies(node)))
    return found


# A model with all that a model can hold

ALL = """
main (float[seq,batch,3] X, bool flag, string[strings,3] unread)
=> (int64[2] sizes, float[seq,batch,8] out, float[seq,batch,8] chosen, float[seq,1,batch,4] Y0, seq(float[]) parts)
<float[1,16,3] W0 = {}, float[1,16,4] R0 = {}, float[2,12,4] W1 = {}, float[2,12,4] R1 = {},
 int64[3] merged = {0,0,8}, int64[1] one = {1}, float upper = {2.5}, int64[5] spare = {0,1,2,3,4}> {
    sizes = Shape <start=0, end=2> (X)
    [first] Y0 = LSTM <hidden_size=4> (X, W0, R0)
    x0 = Squeeze (Y0, one)
    [second] Y1 = GRU <hidden_size=4, direction="bidirectional"> (x0, W1, R1)
    turned = Transpose <perm=[0,2,1,3]> (Y1)
    out = Reshape (turned, merged)
    [call] twice = com.example.Twice (out)
    [choice] chosen = If (flag) <
        then_branch = yes () => (float[seq,batch,8] positive) { positive = Abs (out) },
        else_branch = no () => (float[seq,batch,8] negative) { negative = Neg (out) }
    >
    "", half = Split <axis=2, num_outputs=2> (twice)
    clipped = Clip (half, "", upper)
    parts = SequenceConstruct (half, clipped)
    unused = Identity (X)
}
<domain: "com.example", opset_import: ["": 18]>
Twice (a) => (b) { [add] b = Add (a, a) }
"""


def decorated(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with texts and properties wherever there is room for them."""
    proto.producer_name, proto.producer_version, proto.domain = "a producer", "1.2.3", "org.example"
    proto.model_version, graph = 42, proto.graph
    values = [*graph.input, *graph.output, *graph.value_info]
    for value in values:
        if value.type.tensor_type.shape.dim:
            value.type.denotation = "TENSOR"
            value.type.tensor_type.shape.dim[0].denotation = "DATA_TIME"
    for holder in (proto, graph, *graph.node, *values, *graph.initializer):
        named = getattr(holder, "name", "the model")
        holder.doc_string = f"text of {named}"
        for key in ("b", "a"):
            holder.metadata_props.add(key=f"{key} of {named}", value="a value")
    return proto


def with_all(*, static: bool = False) -> onnx.ModelProto:
    """Two recurrent nodes amid values, nodes and functions of many kinds."""
    text = ALL.replace("seq,", "3,").replace("batch,", "2,") if static else ALL
    proto = parse(text, 18, domains=', "com.example": 3')
    dims: list[int | str] = [3, 2] if static else ["seq", "batch"]
    for name, shape in {"twice": [*dims, 8], "x0": [*dims, 4], "Y1": [dims[0], 2, dims[1], 4]}.items():
        proto.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    return decorated(proto)


def without_recurrent_nodes() -> onnx.ModelProto:
    proto = with_all()
    replace(proto.graph.node, [node for node in proto.graph.node if not is_recurrent(node)])
    replace(proto.graph.output, [value for value in proto.graph.output if value.name != "Y0"])
    for name in ("Y0", "Y1"):
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return proto


def shared_weight() -> onnx.ModelProto:
    """A weight that another node uses too, whose result is an output."""
    proto = chain(Link("LSTM", "first"), dims=(3, 2))
    proto.graph.node.append(helper.make_node("Relu", ["W0"], ["relu_of_W"], "relu"))
    proto.graph.output.append(helper.make_tensor_value_info("relu_of_W", TensorProto.FLOAT, [1, 16, 3]))
    return proto


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "all": with_all,
    "all, static": lambda: with_all(static=True),
    "unnamed": lambda: chain(Link("LSTM", ""), Link("GRU", ""), dims=(3, 2)),
    "in branches": lambda: decorated(model(Case("untouched_if", "LSTM", scope="if"), 17)),
    "IR version 3": lambda: model(Case("untouched_ir3", "GRU", ir3=True, x="symbolic"), 8),
    "shared weight": shared_weight,
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MODELS)
def test_untouched(name: str) -> None:
    original = MODELS[name]()
    onnx.checker.check_model(original, full_check=True)
    known = all(dim.HasField("dim_value") for dim in original.graph.input[0].type.tensor_type.shape.dim)
    scan = original.opset_import[0].version >= 9
    form: Any
    for form in [*(["scan"] if scan else []), "loop", *(["unroll"] if known else [])]:
        lowered = rl.lower(original, form)
        assert not any(is_recurrent(node) for node in lowered.graph.node)
        assert_untouched(original, lowered)


def stored() -> list[Any]:
    """Small models of real exporters; functions are inlined, and models of old opsets converted."""
    small = [e for e in entries("runs") + entries("plain") if e["bytes"] <= LARGEST and e["ort"]["runs"]]
    return [pytest.param(e, id=e["file"], marks=pytest.mark.shared) for e in small if e["opsets"]["ai.onnx"] >= 7]


@pytest.mark.few(6)
@pytest.mark.parametrize("entry", stored())
def test_stored_model(entry: dict[str, Any]) -> None:
    original = load(entry)
    if original.functions:
        pytest.skip("functions are inlined")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rl.RnnLoweringWarning)
        assert_untouched(original, rl.lower(original))


@pytest.mark.parametrize("form", FORMS)
def test_nodes_stand_where_the_node_stood(form: Any) -> None:
    original = chain(Link("LSTM", "first"), Link("GRU", "second"), dims=(3, 2))
    order = [node.name.split("/")[0] for node in rl.lower(original, form).graph.node]
    assert list(dict.fromkeys(order)) == ["first", "turn0", "merge0", "second", "turn1", "merge1", "last"]


def test_only_the_selected_node_is_concerned() -> None:
    original = with_all()
    lowered = rl.lower(original, only=["second"])
    (kept,) = [node for node in lowered.graph.node if is_recurrent(node)]
    assert normal(kept) == normal(next(node for node in original.graph.node if node.name == "first"))
    weights = {tensor.name: normal(tensor) for tensor in lowered.graph.initializer}
    assert all(weights[tensor.name] == normal(tensor) for tensor in original.graph.initializer[:2])
    onnx.checker.check_model(lowered, full_check=True)


# Nothing to lower


def test_a_model_with_nothing_to_lower_is_equal(tmp_path: Path) -> None:
    """In memory, with nothing selected, in a file; a file may have fields of a newer ONNX: number 900, one byte."""
    plain, custom, whole = without_recurrent_nodes(), chain(Link("LSTM", "first")), with_all()
    custom.graph.node[0].domain = "com.example"
    custom.opset_import.append(helper.make_opsetid("com.example", 1))
    form: Any
    for form in ("auto", *FORMS):
        for original in (plain, custom):
            assert rl.lower(original, form).SerializeToString() == original.SerializeToString()
    assert rl.lower(whole, except_=["LSTM", "GRU"]).SerializeToString() == whole.SerializeToString()
    for n, more in enumerate((b"", b"\xa2\x38\x01\x07")):
        source, target = tmp_path / f"in{n}.onnx", tmp_path / f"out{n}.onnx"
        source.write_bytes(plain.SerializeToString() + more)
        rl.lower_file(source, target)
        assert target.read_bytes() == source.read_bytes()


# What the model does not declare

HELD = """float[4] {0}_one = {{}}, float[4] {0}_two = {{}}, float[4] {0}_held = {{}}> {{
    {0}_sum = Add ({0}_one, {0}_two)"""
IN_BODIES = {
    "If": "If (flag) <then_branch = yes () => (float[4] yes_sum, float[4] yes_held) <"
    + HELD.format("yes")
    + "}, else_branch = no () => (float[4] no_sum, float[4] no_held) <"
    + HELD.format("no")
    + "}>",
    "Loop": "Loop (two, flag, start) <body = step (int64 i, bool go, float[4] carried) => "
    "(bool still, float[4] step_sum, float[4] step_held) <" + HELD.format("step") + "still = Identity (go) }>",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("body", IN_BODIES)
@pytest.mark.parametrize("way", ["in memory", "a file", "a data file", "a large file"])
def test_nothing_else_is_declared(body: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body has initializers, of which one is an output and one is declared, beside an LSTM."""
    dims = "4" if body == "If" else "2,4"
    original = parse(
        f"""main (float[3,2,3] X, bool flag) => (float[3,1,2,4] more, float[4] chosen, float[{dims}] held)
        <float[1,16,3] W = {{}}, float[1,16,4] R = {{}}, float factor = {{2}}, int64 two = {{2}},
         float[4] start = {{}}> {{
            Y = LSTM <hidden_size=4> (X, W, R)
            [multiply] more = Mul (Y, factor)
            [body] chosen, held = {IN_BODIES[body]}
        }}""",
        18,
    )
    for scope in bodies(original.graph.node[2]):
        scope.value_info.append(helper.make_tensor_value_info(scope.initializer[1].name, TensorProto.FLOAT, [4]))
    onnx.checker.check_model(original, full_check=True)
    if way == "in memory":
        lowered = rl.lower(original, "unroll", only="LSTM")
    else:
        if way == "a large file":
            monkeypatch.setattr(one_file, "LARGE", 1)
            monkeypatch.setattr(one_file, "TENSOR_BYTES", 64)
        onnx.save(original, tmp_path / "in.onnx")
        policy = "always" if way == "a data file" else "never"
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", "unroll", only="LSTM", external_data=policy)
        lowered = onnx.load(tmp_path / "out.onnx")
    kept = {node.name: node for node in lowered.graph.node}
    assert [normal(kept[node.name]) for node in original.graph.node[1:]] == [*map(normal, original.graph.node[1:])]
    old = {tensor.name for tensor in original.graph.initializer}
    old |= {name for node in original.graph.node[1:] for name in node.output}
    assert [info.name for info in lowered.graph.value_info if info.name in old] == []
