"""Models as they are found: unsorted, unnamed, with shapes that are missing or wrong, unknown operators, or
functions in the place of operators. onnxruntime runs them."""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import causal_conv
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import MS, value
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


def each(edit: Callable[[onnx.NodeProto, int], object]) -> Edit:
    return lambda model: [edit(node, n) for n, node in enumerate(model.graph.node)]


def named(names: Sequence[str]) -> Edit:
    return each(lambda node, n: setattr(node, "name", names[n]))


def with_trailing_names(node: onnx.NodeProto, _: int) -> None:
    if node.op_type in ("GRU", "LSTM"):
        node.input.extend([""] * (6 - len(node.input)))
        node.output.extend([""] * (2 - len(node.output)))


def with_default(node: onnx.NodeProto, _: int) -> None:
    if node.op_type in ("GRU", "LSTM"):
        node.attribute.append(helper.make_attribute("layout", 0))


def extra_imports(model: onnx.ModelProto) -> None:
    model.opset_import.extend(helper.make_opsetid(name, 1) for name in ("ai.onnx.ml", MS, "org.example"))


def wrong_outputs(model: onnx.ModelProto) -> None:
    for output in model.graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = 7


DECLARED: list[tuple[str, Sequence[int | str]]] = [
    ("x", ["length", "batch", "features"]),
    *(("x", dims) for dims in ([5, 2, 3], [4, 2, 3], [1, 2, 3], [5, 1, 3], [5, 4, 3])),
    *(("Y", dims) for dims in ([5, 2, 2, 4], [9, 2, 2, 4])),
    ("both", [1, 1, 8]),
    # Of another rank, or impossible.
    *(("x", dims) for dims in ([5, 2, 1, 3], [10, 3], [5, 2, 8])),
    *((name, dims) for name, dims in {"Y": [5, 2], "y": [1, 1, 1, 1], "both": [5, 16]}.items()),
]
"""What models declare of inner values."""


def declared(name: str, dims: Sequence[int | str]) -> Edit:
    return lambda model: model.graph.value_info.append(value(name, dims))


EDITS: dict[str, Edit] = {
    "a graph without a name": lambda model: model.graph.ClearField("name"),
    "nodes with names of values": each(lambda node, _: setattr(node, "name", node.output[0])),
    "nodes with long names": named(LONG),
    "nodes with strange names": named(STRANGE),
    "trailing names": each(with_trailing_names),
    "default attributes": each(with_default),
    "extra imports": extra_imports,
    "no declared outputs": lambda model: [output.ClearField("type") for output in model.graph.output],
    "wrong declared outputs": wrong_outputs,
    "unsorted": unsorted,
    **{f"{name} is declared {dims}": declared(name, dims) for name, dims in DECLARED},
}


@pytest.mark.few(5)
@pytest.mark.filterwarnings("ignore:.*declared shape.*:rnn_lowering.RnnLoweringWarning")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EDITS)
def test_computes_the_same(name: str, form: str) -> None:
    """The result is right; straight-line code may be refused where a declared shape has been dropped."""
    original = parse(TWO_LAYERS)
    EDITS[name](original)
    reason = refusal(lambda: assert_same(original, random_feed(original), form, check=accepted(original)))
    assert not reason or (form == "unroll" and "not known" in reason)


def accepted(model: onnx.ModelProto) -> bool:
    """Whether the checker accepts a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


UNSORTED_BODY = """
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
"""


@pytest.mark.parametrize("form", FORMS)
def test_unsorted_graphs(form: str) -> None:
    """One whose shapes are declared is right; an unsorted body, which onnxruntime does not run, may be refused."""
    original = onnx.shape_inference.infer_shapes(parse(TWO_LAYERS))
    unsorted(original)
    assert_same(original, random_feed(original), form, check=False)
    refusal(lambda: lowered(parse(UNSORTED_BODY), form, check=False))


@pytest.mark.parametrize("form", ["auto", "scan", "loop"])
@pytest.mark.parametrize("dims", ["-1,2,3", "5,-1,3", "-1,-1,3", "-1,-1,-1", ""])
def test_sizes_that_are_not_known(dims: str, form: str) -> None:
    """Old exporters write -1, which onnxruntime accepts; an input may have no shape at all."""
    text = TWO_LAYERS.replace("float[5,2,3] X", f"float[{dims}] X")
    original = parse(text.replace("float[5,2,8] Z, float[2,2,4] Y_h", "float[t,n,8] Z, float[2,n,4] Y_h"))
    if not dims:
        original.graph.input[0].type.tensor_type.ClearField("shape")
    assert_same(original, random_feed(parse(TWO_LAYERS)), form, check=not dims and accepted(original))


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_an_input_of_unknown_rank_with_lengths(form: str) -> None:
    original = parse("""
        main (float[5,2,3] X, int32[2] lens) => (float[5,1,2,4] Y) <float[1,12,3] W = {}, float[1,12,4] R = {}> {
            Y = GRU <hidden_size=4, direction="reverse"> (X, W, R, "", lens)
        }
    """)
    feed = {**random_feed(original), "lens": np.array([5, 2], np.int32)}
    for given in original.graph.input:
        given.type.tensor_type.ClearField("shape")
    assert_same(original, feed, form, check=accepted(original))


def test_a_size_of_minus_one_does_not_take_inference_down(tmp_path: Path) -> None:
    text = STEP.replace("float[5,2,3] X", "float[-1,2,3] X").replace("[5,1,2,4] Y", "[t,1,2,4] Y")
    backwards = parse(text.replace("<hidden_size=4>", '<hidden_size=4, direction="reverse">'))
    infer = "import onnx, sys; onnx.shape_inference.infer_shapes(onnx.load(sys.argv[1]))"
    for name, model in {"original": parse(text), "lowered": rl.lower(backwards, "scan")}.items():
        onnx.save(model, tmp_path / name)
        done = subprocess.run([sys.executable, "-c", infer, str(tmp_path / name)], capture_output=True, check=False)
        assert done.returncode == 0, name


@pytest.mark.parametrize("form", FORMS)
def test_nodes_of_one_name_and_of_none(form: str) -> None:
    """onnxruntime refuses nodes of one name, the checker does not."""
    original, unnamed = parse(TWO_LAYERS), parse(TWO_LAYERS)
    named(["node"] * 9)(original)
    new = lowered(original, form)
    kept = [n for n in nodes(new) if n.name == "node"]
    assert len(kept) == len(original.graph.node) - 3
    for n, node in enumerate(kept):
        node.name = f"kept_{n}"
    feed = random_feed(original)
    assert_close(run(new, feed), run(unnamed, feed))
    assert not any(node.name for node in unnamed.graph.node)
    new = assert_same(unnamed, feed, form)
    assert [n.name for n in new.graph.node if n.output[0] == "x"] == [""]
    alone = {"LSTM_second"} if form == "unroll" else set()  # otherwise it shares the loop of the first
    assert {n.name.split("/")[0] for n in nodes(new) if n.name} == {"GRU_Y", "LSTM_first"} | alone


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs", [["idle"], ["idle", "idle_h"], ["", ""], ["", "", ""], []])
def test_a_node_whose_outputs_nothing_uses(outputs: list[str], form: str) -> None:
    original = parse(STEP)
    original.graph.node.append(helper.make_node("LSTM", ["x", "W", "R"], outputs, "idle", hidden_size=4))
    if outputs:
        new = assert_same(original, random_feed(original), form)
        assert initializers(new).isdisjoint({"W", "R"})
    else:
        lowered(original, form, check=accepted(original))


# Operators of other domains


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_operators_of_a_custom_domain_around_the_node(form: str) -> None:
    """One gives W, and is not what it is called."""
    text = STEP.replace("x = Neg(X)", 'x, V = org.example.Transpose <level=3, mode="fast"> (X, W)')
    text = text.replace("Y = LSTM", "y = LSTM").replace(
        "(x, W, R)", "(x, V, R) Y = org.example.Attend <heads=2> (y)"
    )
    original = parse(text, domains=', "org.example": 1')
    new = lowered(original, form)
    assert [node for node in new.graph.node if node.domain] == [node for node in original.graph.node if node.domain]
    assert [new.graph.node[n].op_type for n in (0, -1)] == ["Transpose", "Attend"]
    assert new.opset_import == original.opset_import
    assert "W" in initializers(new)


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


@pytest.mark.parametrize("operator", ["AttnLSTM", "VarlenCausalConvWithState", "GatedDeltaNetOfTheFuture"])
def test_recurrent_nodes_of_other_domains_are_named_and_left_alone(operator: str) -> None:
    original = parse(FOREIGN.replace("AttnLSTM", operator), domains=f', "{MS}": 1')
    new, report = rl.lower(original, full=True)
    assert [node.name for node in report.nodes] == ["plain"]
    (left,) = report.left
    assert left.startswith(f"{operator} node 'foreign' in main graph > ")
    assert left.endswith("then_branch: not an operator of ONNX")
    (before, after) = ([n for n in nodes(m) if n.domain == MS] for m in (original, new))
    assert before == after
    told = [(p.form, p.reason) for p in rl.preview(original)]
    assert (told[0][0], told[1]) == ("scan", ("left as it is", "not an operator of ONNX"))
    with pytest.raises(rl.UnsupportedError, match=rf"{operator} node 'foreign' .*: tract does not support it"):
        rl.lower(original, target="tract")
    rl.lower(original, target="onnxruntime")


def test_an_aten_node_is_named_by_its_operator() -> None:
    text = FOREIGN.replace("com.microsoft.AttnLSTM <hidden_size=4>", 'aten.ATen <operator="gru">')
    (left,) = rl.lower(parse(text, domains=', "aten": 1'), full=True)[1].left
    assert "ATen node 'foreign'" in left
    assert rl.lower(parse(text.replace("gru", "add"), domains=', "aten": 1'), full=True)[1].left == []


CONV = replace(causal_conv.STANDARD, domain=MS, opset=21)
FUNCTION = """
main () => () { }
<domain: "com.microsoft", opset_import: ["": 21]>
CausalConvWithState <activation> (input, weight, bias, past_state) => (output, present_state) {
    one = Constant <value_ints = [1]> () from = Constant <value_ints = [-3]> ()
    to = Constant <value_ints = [2147483648]> () axis = Constant <value_ints = [2]> ()
    z = Concat <axis = 2> (past_state, input)
    w = Identity (weight)
    y = Conv <group = 3> (z, w, bias)
    s = Sigmoid (y)
    output = Mul (y, s)
    present_state = Slice (z, from, to, axis)
}
"""


def with_function(rank: int) -> onnx.ModelProto:
    """Add a function of the name of the operator; with rank 2, as onnxruntime-genai wrote it for onnxruntime before
    1.26: weight is [channels, k]."""
    proto = causal_conv.model(CONV)
    text = FUNCTION if rank == 3 else FUNCTION.replace("Identity (weight)", "Unsqueeze (weight, one)")
    proto.functions.extend(parse(text, 21).functions)
    if rank == 2:
        weight = numpy_helper.from_array(causal_conv.arrays(CONV)["weight"][:, 0], "weight")
        proto.graph.initializer[0].CopyFrom(weight)
    return proto


def test_a_node_that_fits_the_operator_is_the_operator() -> None:
    with pytest.warns(rl.RnnLoweringWarning, match="'conv' in main graph is lowered as the operator"):
        new = rl.lower(with_function(3))
    assert not new.functions
    got = run(new, causal_conv.feed(CONV))
    for symbol, array in causal_conv.expected(CONV).items():
        np.testing.assert_allclose(got[symbol], array, atol=2e-6)


@pytest.mark.parametrize("target", ["portable", "tvm"])
def test_a_node_that_does_not_fit_is_a_call(target: Any) -> None:
    """Numbers of constants may become tensors in the function."""
    original = with_function(2)
    assert rl.inspect(original) == []
    with pytest.warns(rl.RnnLoweringWarning, match="'conv' in main graph calls a function of the model"):
        new = rl.lower(original, target=target)
    assert new.graph == original.graph
    assert [node.op_type for node in new.functions[0].node] == [node.op_type for node in original.functions[0].node]


# What would be lost, and what cannot be read


def test_two_versions_of_one_domain_are_lowered_alike_or_refused() -> None:
    original = parse(TWO_LAYERS)
    original.opset_import.append(helper.make_opsetid("", 13))
    refusal(lambda: assert_same(original, random_feed(original), check=accepted(original)))


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
SPARSE = helper.make_sparse_tensor(
    numpy_helper.from_array(np.ones(1, np.float32), "sparse"), numpy_helper.from_array(np.array([3], np.int64)), [5]
)
OF_SPARSE = helper.make_node("Constant", [], ["s"], sparse_value=SPARSE)
PLACES: dict[str, Callable[[onnx.ModelProto], onnx.GraphProto]] = {
    "main": lambda model: model.graph,
    "body": lambda model: model.graph.node[0].attribute[0].g,
    "function": lambda model: model.functions[0].node[0].attribute[0].g,
}
LOST: dict[str, tuple[Callable[[onnx.GraphProto], object], str]] = {
    "initializer": (lambda graph: graph.sparse_initializer.append(SPARSE), "sparse initializers"),
    "constant": (
        lambda graph: graph.node.insert(0, OF_SPARSE),
        "^Constant node '-> s' in graph '[a-z]+' has a sparse tensor; make it dense",
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", [*LOST, "training"])
def test_what_would_be_lost_is_refused(what: str, place: str, tmp_path: Path) -> None:
    """By all entries to the package; none writes a file."""
    original = parse(IN_A_BODY, domains=', "local": 1')
    assert rl.lower(original)
    if what == "training":
        original.training_info.add().algorithm.name = "step"
    else:
        LOST[what][0](PLACES[place](original))
    reason = LOST[what][1] if what in LOST else "training_info"
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


def twice(field: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        (values := getattr(model.graph, field)).append(values[0])

    return edit


def data_of_w(change: Callable[[TensorProto], object]) -> Edit:
    return lambda model: change(model.graph.initializer[0])


def as_floats(tensor: TensorProto) -> None:
    numbers = numpy_helper.to_array(tensor).ravel().tolist()
    tensor.ClearField("raw_data")
    tensor.float_data.extend(numbers[1:])


def without_its_node(model: onnx.ModelProto) -> None:
    model.graph.node[-1].output[0] = ""


def attribute_twice(model: onnx.ModelProto) -> None:
    model.graph.node[-1].attribute.append(model.graph.node[-1].attribute[0])


CONTRADICTIONS: dict[str, tuple[Edit, str]] = {
    "an input twice": (twice("input"), "input 'X' is declared twice; keep one of them"),
    "an initializer twice": (twice("initializer"), "initializer 'W' is declared twice; keep one of them"),
    "an attribute twice": (attribute_twice, "in LSTM node '-> Y', attribute 'hidden_size' is declared twice"),
    "an output that nothing gives": (
        without_its_node,
        "output 'Y' is no output of a node, no input and no initializer; was the model cut? Export it again, or",
    ),
    "bytes that are missing": (
        data_of_w(lambda w: setattr(w, "raw_data", w.raw_data[4:])),
        "tensor 'W' [1,16,3] has 188 bytes instead of 192; is the file complete?",
    ),
    "more bytes": (data_of_w(lambda w: setattr(w, "raw_data", w.raw_data * 2)), "has 384 bytes instead of 192"),
    "numbers that are missing": (data_of_w(as_floats), "tensor 'W' [1,16,3] has 47 numbers instead of 48"),
    "a negative size": (data_of_w(lambda w: w.dims.__setitem__(0, -1)), "tensor 'W' [-1,16,3] has 192 bytes"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_model_that_contradicts_itself_is_refused(name: str, tmp_path: Path) -> None:
    """Runtimes would read it in two ways, or not at all."""
    original = parse(STEP)
    edit, reason = CONTRADICTIONS[name]
    edit(original)
    onnx.save(original, tmp_path / "in.onnx")
    for given in (original, tmp_path / "in.onnx"):
        with pytest.raises(rl.ModelFileError, match=re.escape(reason)):
            rl.lower(given)


def test_packed_numbers_are_counted() -> None:
    """Two numbers of four bits are in one entry."""
    original = parse(STEP)
    for raw in (False, True):
        numbers = np.array([1, -2, 3], ml_dtypes.int4)
        tensor = numpy_helper.from_array(numbers, f"packed{raw}")
        if not raw:
            tensor.ClearField("raw_data")
            tensor.int32_data.extend([0xE1, 0x03])
        original.graph.initializer.append(tensor)
    rl.lower(original)


def test_the_cause_of_what_cannot_be_read_is_told() -> None:
    """An error about a graph shows its tensors, which raise errors of their own where their fields contradict."""
    original, inconsistent = parse(STEP), parse(TWO_LAYERS)
    original.graph.initializer[0].data_type = 99
    with pytest.raises(rl.ModelFileError, match=r"is not a valid ONNX model: .*99"):
        rl.lower(original)
    circle = parse(STEP.replace("x = Neg(X)", "V = Identity(U) U = Identity(V)").replace("(x, W", "(X, V"))
    with pytest.raises(rl.UnsupportedError, match="does a value depend on itself"):
        rl.lower(circle)
    inconsistent.graph.node[0].input[0] = "nothing"
    damaged = TensorProto(name="damaged", dims=[2], data_type=TensorProto.FLOAT, int32_data=[1, 2])
    inconsistent.graph.initializer.append(damaged)
    for given in (inconsistent, ir.from_proto(inconsistent)):
        with pytest.raises(rl.InvalidNodeError, match="its input 'nothing' is no output of a node"):
            rl.lower(given, input_shapes={"X": (5, 2, 3)})


def test_weights_that_nothing_gives_are_named() -> None:
    original = parse(STEP)
    original.graph.node[1].input[1] = "nothing"
    with pytest.raises(
        rl.InvalidNodeError, match=r"^LSTM node '.*' in main graph: its input 'nothing' is no output"
    ):
        rl.lower(original)


@pytest.mark.parametrize("call", [rl.inspect, rl.preview, rl.lower], ids=lambda call: call.__name__)
def test_an_ir_model_whose_node_reads_what_nothing_defines_is_refused(call: Callable[[ir.Model], object]) -> None:
    model = ir.from_proto(
        parse(
            "m (float[T,N,3] X) => (Y) <float[1,12,3] W = {}, float[1,12,4] R = {}> {\n"
            "x = Neg (X)  Y = GRU <hidden_size = 4> (x, W, R) }"
        )
    )
    model.graph[0].replace_input_with(0, ir.Value(name="stray"))
    with pytest.raises(rl.InvalidNodeError, match="its input 'stray' is no output of a node"):
        call(model)
