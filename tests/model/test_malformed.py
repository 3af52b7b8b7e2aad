"""Models as they are found: unsorted, unnamed, with shapes that are missing or wrong. onnxruntime runs them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from running import assert_close, nodes, run
from texts import FORMS, assert_same, initializers, lowered, parse, random_feed, refusal

import rnn_lowering as rl

TWO_LAYERS = """
main (float[5,2,3] X) => (float[5,2,8] Z, float[2,2,4] Y_h)
<float[2,12,3] W = {}, float[2,12,4] R = {}, float[1,16,8] V = {}, float[1,16,4] S = {}, int64[3] flat = {0,0,-1}> {
    x = Neg(X)
    Y, Y_h = GRU <hidden_size=4, direction="bidirectional"> (x, W, R)
    y = Transpose <perm=[0,2,1,3]> (Y)
    both = Reshape(y, flat)
    first = LSTM <hidden_size=4> (both, V, S)
    second = LSTM <hidden_size=4, direction="reverse"> (both, V, S)
    together = Concat <axis=3> (first, second)
    z = Transpose <perm=[0,2,1,3]> (together)
    Z = Reshape(z, flat)
}
"""
STEP = """
main (float[5,2,3] X) => (float[5,1,2,4] Y) <float[1,16,3] W = {}, float[1,16,4] R = {}> {
    x = Neg(X)
    Y = LSTM <hidden_size=4> (x, W, R)
}
"""
Edit = Callable[[onnx.ModelProto], object]


LONG = ["/module.7" * 200 + str(n) for n in range(9)]
STRANGE = ["层/循环", "a b\n{x}", "[red]%s[/]", "../..", "\U0001f600", " ", "%", "//", "\\"]


def unsorted(model: onnx.ModelProto) -> None:
    backwards = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(backwards)


def named(names: list[str] | None) -> Edit:
    """An edit that gives names to nodes, by default those of their outputs."""

    def edit(model: onnx.ModelProto) -> None:
        for n, node in enumerate(model.graph.node):
            node.name = names[n] if names else node.output[0]

    return edit


def trailing_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type in ("GRU", "LSTM"):
            node.input.extend([""] * (6 - len(node.input)))
            node.output.extend([""] * (2 - len(node.output)))


def default_attributes(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type in ("GRU", "LSTM"):
            node.attribute.append(helper.make_attribute("layout", 0))


def extra_imports(model: onnx.ModelProto) -> None:
    for domain in ("ai.onnx.ml", "com.microsoft", "org.example"):
        model.opset_import.append(helper.make_opsetid(domain, 1))


def no_declared_outputs(model: onnx.ModelProto) -> None:
    for value in model.graph.output:
        value.ClearField("type")


def wrong_declared_outputs(model: onnx.ModelProto) -> None:
    for value in model.graph.output:
        value.type.tensor_type.shape.dim[0].dim_value = 7


def declared(name: str, *dims: int | str) -> dict[str, Edit]:
    """An edit that adds a value_info."""
    info = helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    return {f"{name} is declared {list(dims)}": lambda model: model.graph.value_info.append(info)}


EDITS: dict[str, Edit] = {
    "a graph without a name": lambda model: model.graph.ClearField("name"),
    "nodes with names of values": named(None),
    "nodes with long names": named(LONG),
    "nodes with strange names": named(STRANGE),
    "trailing names": trailing_names,
    "default attributes": default_attributes,
    "extra imports": extra_imports,
    "no declared outputs": no_declared_outputs,
    "wrong declared outputs": wrong_declared_outputs,
    "unsorted": unsorted,
    **declared("x", "length", "batch", "features"),
    **declared("x", 5, 2, 3),
    **declared("Y", 5, 2, 2, 4),
    **declared("Y", 9, 2, 2, 4),
    **declared("x", 4, 2, 3),
    **declared("x", 1, 2, 3),
    **declared("x", 5, 1, 3),
    **declared("x", 5, 4, 3),
    **declared("both", 1, 1, 8),
}
WRONG: dict[str, Edit] = {
    **declared("Y", 5, 2),
    **declared("y", 1, 1, 1, 1),
    **declared("x", 5, 2, 1, 3),
    **declared("x", 10, 3),
    **declared("x", 5, 2, 8),
    **declared("both", 5, 16),
}


WARNED = pytest.mark.filterwarnings("ignore:.*declared shape.*:rnn_lowering.RnnLoweringWarning")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*EDITS, *(pytest.param(name, marks=WARNED) for name in WRONG)])
def test_computes_the_same(name: str, form: str) -> None:
    """The result is right; straight-line code may be refused where a declared shape has been dropped."""
    original = parse(TWO_LAYERS)
    {**EDITS, **WRONG}[name](original)
    reason = refusal(lambda: assert_same(original, random_feed(original), form, check=accepted(original)))
    assert not reason or (form == "unroll" and "not known" in reason)


def accepted(model: onnx.ModelProto) -> bool:
    """Whether the checker accepts a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


@pytest.mark.parametrize("form", FORMS)
def test_an_unsorted_graph_whose_shapes_are_declared(form: str) -> None:
    original = onnx.shape_inference.infer_shapes(parse(TWO_LAYERS))
    unsorted(original)
    assert_same(original, random_feed(original), form, check=False)


@pytest.mark.parametrize("form", FORMS)
def test_an_unsorted_body_is_lowered_or_refused(form: str) -> None:
    """onnxruntime supports none."""
    original = parse("""
        main (float[5,2,3] X, bool go) => (float[5,1,2,4] Y)
        <float[1,12,3] W = {}, float[1,12,4] R = {}, float[5,1,2,4] O = {}> {
            Y = If (go) <
                then_branch = yes () => (float[5,1,2,4] yes_Y) {
                    yes_Y = Neg(inner)
                    inner = GRU <hidden_size=4> (x, W, R)
                    x = Neg(X)
                },
                else_branch = no () => (float[5,1,2,4] no_Y) { no_Y = Identity(O) }
            >
        }
    """)
    refusal(lambda: lowered(original, form, check=False))


@pytest.mark.parametrize("form", ["auto", "scan", "loop"])
@pytest.mark.parametrize("dims", ["-1,2,3", "5,-1,3", "-1,-1,3", "-1,-1,-1"])
def test_a_size_of_minus_one_is_not_known(dims: str, form: str) -> None:
    """Old exporters write it; onnxruntime accepts it."""
    text = TWO_LAYERS.replace("float[5,2,3] X", f"float[{dims}] X")
    original = parse(text.replace("float[5,2,8] Z, float[2,2,4] Y_h", "float[t,n,8] Z, float[2,n,4] Y_h"))
    assert_same(original, random_feed(parse(TWO_LAYERS)), form, check=False)


@pytest.mark.xfail(reason="onnx aborts at a Slice backwards of a value whose declared size is -1", strict=True)
def test_a_size_of_minus_one_does_not_take_inference_down(tmp_path: Path) -> None:
    original = parse(STEP.replace("float[5,2,3] X", "float[-1,2,3] X").replace("[5,1,2,4] Y", "[t,1,2,4] Y"))
    infer = "import onnx, sys; onnx.shape_inference.infer_shapes(onnx.load(sys.argv[1]))"
    for name, model in {"original": original, "lowered": rl.lower(reverse(original), "scan")}.items():
        onnx.save(model, tmp_path / name)
        done = subprocess.run([sys.executable, "-c", infer, str(tmp_path / name)], capture_output=True, check=False)
        assert done.returncode == 0, name


def reverse(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.node[-1].attribute.append(helper.make_attribute("direction", "reverse"))
    return model


@pytest.mark.parametrize("form", FORMS)
def test_nodes_of_one_name(form: str) -> None:
    """onnxruntime refuses them, the checker does not."""
    original = parse(TWO_LAYERS)
    for node in original.graph.node:
        node.name = "node"
    new = lowered(original, form)
    kept = [n for n in nodes(new) if n.name == "node"]
    assert len(kept) == len(original.graph.node) - 3
    for n, node in enumerate(kept):
        node.name = f"kept_{n}"
    for n, node in enumerate(original.graph.node):
        node.name = f"kept_{n}"
    feed = random_feed(original)
    assert_close(run(new, feed), run(original, feed))


@pytest.mark.parametrize("form", FORMS)
def test_several_nodes_without_names(form: str) -> None:
    original = parse(TWO_LAYERS)
    assert not any(node.name for node in original.graph.node)
    new = assert_same(original, random_feed(original), form)
    kept = [n for n in new.graph.node if n.output[0] in {o for n in original.graph.node for o in n.output}]
    assert [n.name for n in kept if n.op_type == "Neg"] == [""]
    made = [n.name for n in nodes(new) if n.name]
    alone = {"LSTM_second"} if form == "unroll" else set()  # otherwise it shares the loop of the first
    assert {name.split("/")[0] for name in made} == {"GRU_Y", "LSTM_first"} | alone


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [["idle"], ["idle", "idle_h"], ["", ""], ["", "", ""], []])
def test_a_node_whose_outputs_nothing_uses(outputs: list[str], form: str) -> None:
    original = parse(STEP)
    original.graph.node.append(helper.make_node("LSTM", ["x", "W", "R"], outputs, "idle", hidden_size=4))
    if outputs:
        new = assert_same(original, random_feed(original), form)
        assert initializers(new).isdisjoint({"W", "R"})
    else:
        assert_same(parse(STEP), random_feed(original), form)
        lowered(original, form, check=accepted(original))


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_an_input_of_unknown_rank(form: str) -> None:
    original = parse(TWO_LAYERS.replace("float[5,2,3] X", "float[] X"))
    original.graph.input[0].type.tensor_type.ClearField("shape")
    feed = {"X": np.random.default_rng(0).normal(0, 1, (5, 2, 3)).astype(np.float32)}
    assert_same(original, feed, form, check=accepted(original))


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_an_input_of_unknown_rank_with_lengths(form: str) -> None:
    original = parse("""
        main (float[5,2,3] X, int32[2] lens) => (float[5,1,2,4] Y) <float[1,12,3] W = {}, float[1,12,4] R = {}> {
            Y = GRU <hidden_size=4, direction="reverse"> (X, W, R, "", lens)
        }
    """)
    for value in original.graph.input:
        value.type.tensor_type.ClearField("shape")
    X = np.random.default_rng(0).normal(0, 1, (5, 2, 3)).astype(np.float32)
    feed = {"X": X, "lens": np.array([5, 2], np.int32)}
    assert_same(original, feed, form, check=accepted(original))


def test_wrong_sizes_of_a_graph_input_are_refused() -> None:
    original = parse(STEP.replace("float[5,2,3] X", "float[5,2,8] X").replace("x = Neg(X)", "").replace("(x", "(X"))
    with pytest.raises(rl.InvalidNodeError, match="X has shape"):
        rl.lower(original)


CUSTOM = """
main (float[5,2,3] X) => (float[5,2,4] Z, float[1,2,4] Y_h) <float[1,12,3] W = {}, float[1,12,4] R = {}> {
    x, mask = org.example.Preprocess <level=3, mode="fast"> (X)
    Y, Y_h = GRU <hidden_size=4> (x, W, R)
    Z = org.example.Attend <heads=2> (Y, mask)
}
"""


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_operators_of_a_custom_domain_around_the_node(form: str) -> None:
    original = parse(CUSTOM, domains=', "org.example": 1')
    new = lowered(original, form)
    custom = [node for node in new.graph.node if node.domain]
    assert custom == [node for node in original.graph.node if node.domain]
    assert new.graph.node[0] == custom[0]
    assert new.graph.node[-1] == custom[-1]
    assert new.opset_import == original.opset_import


@pytest.mark.parametrize("form", FORMS)
def test_weights_from_a_custom_operator(form: str) -> None:
    text = STEP.replace("{\n    x =", "{\n    V = org.example.Decode(W)\n    x =").replace("(x, W", "(x, V")
    original = parse(text, domains=', "org.example": 1')
    new = lowered(original, form)
    assert new.graph.node[0].op_type == "Decode"
    assert "W" in initializers(new)


def test_two_versions_of_one_domain_are_lowered_alike_or_refused() -> None:
    original = parse(TWO_LAYERS)
    original.opset_import.append(helper.make_opsetid("", 13))
    refusal(lambda: assert_same(original, random_feed(original), check=accepted(original)))


def test_missing_opset_imports_are_refused() -> None:
    original = parse(TWO_LAYERS)
    del original.opset_import[:]
    with pytest.raises(rl.RnnLoweringError):
        rl.lower(original)


# What would be lost


def sparse() -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([3], np.int64)), [5])


IN_A_BODY = """
main (float[5,2,3] X, bool go) => (float[5,1,2,4] Y) <float[1,16,3] W = {}, float[1,16,4] R = {}> {
    x = If (go) <
        then_branch = yes () => (float[5,2,3] a) { a = Neg(X) },
        else_branch = no () => (float[5,2,3] b) { b = local.maybe(X, go) }
    >
    Y = LSTM <hidden_size=4> (x, W, R)
}
<domain: "local", opset_import: ["": 17]>
maybe (X, go) => (Z) {
    Z = If (go) <
        then_branch = yes () => (c) { c = Neg(X) },
        else_branch = no () => (d) { d = Identity(X) }
    >
}
"""


def place(model: onnx.ModelProto, where: str) -> onnx.GraphProto:
    holder = {"body": model.graph.node[0], "function": model.functions[0].node[0]}.get(where)
    return model.graph if holder is None else holder.attribute[0].g


@pytest.mark.parametrize("where", ["main", "body", "function"])
def test_sparse_initializers_are_refused(where: str, tmp_path: Path) -> None:
    original = parse(IN_A_BODY, domains=', "local": 1')
    assert rl.lower(original)
    place(original, where).sparse_initializer.append(sparse())
    refused(original, tmp_path, "sparse initializers")


def refused(original: onnx.ModelProto, tmp_path: Path, reason: str) -> None:
    """All entries to the package refuse a model; none writes a file."""
    onnx.save(original, tmp_path / "in.onnx")
    for call in (
        lambda: rl.lower(original),
        lambda: rl.inspect(original),
        lambda: rl.inspect(tmp_path / "in.onnx"),
        lambda: rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=0),
    ):
        with pytest.raises(rl.UnsupportedError, match=reason):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_training_information_is_refused(tmp_path: Path) -> None:
    original = parse(STEP)
    original.training_info.add().algorithm.name = "step"
    refused(original, tmp_path, "training_info")


@pytest.mark.parametrize("where", ["main", "body", "function"])
def test_sparse_constants_are_refused(where: str, tmp_path: Path) -> None:
    original = parse(IN_A_BODY, domains=', "local": 1')
    place(original, where).node.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=sparse()))
    refused(original, tmp_path, "^Constant node 's' in graph '[a-z]+' has a sparse tensor; make it dense")


def test_the_cause_of_what_cannot_be_read_is_told() -> None:
    original = parse(STEP)
    original.graph.initializer[0].data_type = 99
    with pytest.raises(rl.ModelFileError, match=r"is not a valid ONNX model: .*99"):
        rl.lower(original)


FOREIGN = """
main (float[5,2,3] X, bool go) => (float[5,1,2,4] Y, float[5,1,2,4] Z)
<float[1,16,3] W = {}, float[1,16,4] R = {}> {
    [plain] Y = LSTM <hidden_size=4> (X, W, R)
    Z = If (go) <
        then_branch = yes () => (float[5,1,2,4] a) {
            [foreign] a = com.microsoft.AttnLSTM <hidden_size=4> (X, W, R)
        },
        else_branch = no () => (float[5,1,2,4] b) { b = Identity(Y) }
    >
}
"""


def test_recurrent_nodes_of_other_domains_are_named_and_left_alone() -> None:
    original = parse(FOREIGN, domains=', "com.microsoft": 1')
    new, report = rl.lower(original, full=True)
    assert [node.name for node in report.nodes] == ["plain"]
    (left,) = report.left
    assert "AttnLSTM node 'foreign'" in left
    (before, after) = ([n for n in nodes(m) if n.domain == "com.microsoft"] for m in (original, new))
    assert before == after
    assert [p.form for p in rl.preview(original)] == ["scan", "left as it is"]
    with pytest.raises(rl.UnsupportedError, match="AttnLSTM node 'foreign'"):
        rl.lower(original, target="tract")
    rl.lower(original, target="onnxruntime")


def test_an_aten_node_is_named_by_its_operator() -> None:
    text = FOREIGN.replace("com.microsoft.AttnLSTM <hidden_size=4>", 'aten.ATen <operator="gru">')
    (left,) = rl.lower(parse(text, domains=', "aten": 1'), full=True)[1].left
    assert "ATen node 'foreign'" in left
    other = text.replace("gru", "add")
    assert rl.lower(parse(other, domains=', "aten": 1'), full=True)[1].left == []


def test_an_inconsistent_model_that_cannot_even_be_shown() -> None:
    """An error about a graph shows its tensors, which raise errors of their own where their fields contradict."""
    model = parse(TWO_LAYERS)
    model.graph.node[0].input[0] = "nothing"
    damaged = TensorProto(name="damaged", dims=[2], data_type=TensorProto.FLOAT, int32_data=[1, 2])
    model.graph.initializer.append(damaged)
    with pytest.raises(rl.UnsupportedError, match="inconsistent"):
        rl.lower(model, input_shapes={"X": (5, 2, 3)})
