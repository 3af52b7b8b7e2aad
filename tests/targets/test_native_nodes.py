"""NativeRule nodes: what stays as it is for a target, what never does, and what is said of both."""

import dataclasses
from pathlib import Path
from typing import Any

import onnx
import pytest
from cases import Case, expected, feed, model
from running import assert_close, operators, run
from scope_models import SCAN
from texts import parse

import rnn_lowering as rl
from rnn_lowering.targets.native import FEATURES, Excluded, NativeRule, Speed
from rnn_lowering.targets.table import TARGETS

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")

LBR = {"linear_before_reset": 1}
GRU = Case("fast", "GRU", LBR, T=100, N=1, I=8, H=16, optional=("B", "initial_h"))
LSTM = dataclasses.replace(GRU, op_type="LSTM", attributes={}, optional=("B", "initial_h", "initial_c"))
RNN = dataclasses.replace(GRU, op_type="RNN", attributes={})
RULES = [name for name, target in TARGETS.items() if target.native is not None and target.native.right]


@pytest.fixture
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no node be too slow."""
    for name in RULES:
        rule = TARGETS[name].native
        assert rule is not None
        fast = dataclasses.replace(rule, speeds=(Speed((), 1, 1, {1: 2.0}),))
        monkeypatch.setitem(TARGETS, name, dataclasses.replace(TARGETS[name], native=fast))


def forms(original: onnx.ModelProto, target: Any, **options: Any) -> list[str]:
    return [preview.form for preview in rl.preview(original, target=target, native=True, **options)]


def test_a_node_stays_to_the_byte() -> None:
    original = model(GRU, 17)
    new, report = rl.lower(original, target="tract", native=True, full=True)
    assert new.graph.node == original.graph.node
    assert [(node.form, node.reason) for node in report.nodes] == [
        ("native", "tract 0.23.9 computes it right itself, 4.3 times as fast")
    ]
    assert report.notes == [
        "1 node stays native: measured with tract 0.23.9 on 2026-11-28; other versions may compute them wrongly"
    ]


def test_what_it_would_do_is_said() -> None:
    said = "tract 0.23.9 computes it right itself, 4.3 times as fast: native=True"
    (preview,) = rl.preview(model(GRU, 17), target="tract")
    assert (preview.form, preview.reason) == ("scan", f"first choice for target tract; {said}")
    _, report = rl.lower(model(GRU, 17), target="tract", full=True)
    assert "tract 0.23.9 computes a node right itself, 4.3 times as fast: native=True" in report.notes
    assert [node.reason for node in report.nodes] == ["first choice for target tract"]


WRONG: list[tuple[str, Case, dict[str, Any], str]] = [
    ("tract", GRU, {"attributes": LBR | {"direction": "reverse"}, "x": "length"}, "computes reverse forwards"),
    ("tract", GRU, {"attributes": LBR | {"clip": 0.5}}, "ignores clip"),
    ("tract", GRU, {"attributes": LBR | {"activations": ["Relu", "Tanh"]}}, "ignores activations"),
    ("tract", GRU, {"I": 1}, "fails at run time with I = 1"),
    ("tract", GRU, {"x": "batch"}, "if N is open"),
    ("opencv", GRU, {"N": 2, "optional": ("B",)}, "rejects a batch of a GRU without initial_h"),
    ("opencv", GRU, {"attributes": LBR | {"activations": ["Tanh", "Tanh"]}}, "rejects activations"),
    ("opencv", LSTM, {"optional": ("B", "initial_h")}, "rejects initial_h without initial_c"),
    ("opencv", LSTM, {"optional": ("B", "initial_c")}, "rejects initial_c without initial_h"),
    ("opencv", LSTM, {"optional": ("initial_h", "initial_c")}, "with an initial state and no B"),
    ("opencv", LSTM, {"optional": ("B", "P")}, "rejects P, or computes it wrongly"),
    ("opencv", LSTM, {"attributes": {"input_forget": 1}}, "ignores input_forget"),
    ("opencv", LSTM, {"attributes": {"activations": ["Sigmoid", "Relu", "Tanh"]}}, "rejects activations"),
    (
        "opencv",
        LSTM,
        {"attributes": {"direction": "bidirectional", "activations": ["Tanh", "Tanh", "Sigmoid"] * 2}},
        "rejects activations",
    ),
    ("opencv", RNN, {}, "rejects every RNN"),
    ("tract", GRU, {"optional": ("sequence_lens",), "lengths": (7,)}, "sequence_lens"),
    ("tract", GRU, {"dtype": "float64"}, "was not measured with the type double"),
    ("tract", GRU, {"x": "known"}, "was not measured with a constant X"),
    ("tract", LSTM, {"attributes": {"input_forget": 1}}, "ignores input_forget"),
    ("tract", LSTM, {"N": 2, "optional": ("B",)}, "fails at run time with Y_c beside other outputs"),
    ("openvino", LSTM, {"optional": ("P",)}, "ignores P"),
    ("openvino", LSTM, {"x": "length", "optional": ("sequence_lens",)}, "sequence_lens with open sizes"),
    (
        "openvino",
        RNN,
        {"attributes": {"activations": ["Softsign"]}},
        "was not measured with the activation Softsign",
    ),
    (
        "openvino",
        RNN,
        {"attributes": {"direction": "bidirectional", "activations": ["Tanh", "Relu"]}},
        "ignores the activations of the second direction",
    ),
    ("openvino", RNN, {"x": "batch", "optional": ("sequence_lens",), "lengths_from": "initializer"}, "open sizes"),
    ("mnn", GRU, {"attributes": {}}, "computes linear_before_reset 0 wrongly"),
    ("opencv", GRU, {"attributes": {}}, "ignores linear_before_reset 0 in its older parser"),
    ("mnn", GRU, {"x": "length"}, "computes a GRU wrongly if T is open"),
    ("mnn", LSTM, {"x": "length"}, "crashes with an initial state"),
    ("mnn", LSTM, {"T": 1, "optional": ("initial_c",)}, "crashes with initial_c and no initial_h"),
    ("mnn", RNN, {"weights": "input"}, "rejects weights"),
    ("onnxruntime-web", RNN, {"attributes": {"activations": ["Softplus"]}}, "computes Softplus as infinite"),
    ("onnxruntime-web", LSTM, {"dtype": "float64"}, "was not measured with the type double"),
    ("mnn", LSTM, {"optional": ("P",)}, "ignores P"),
    *((name, LSTM, {"attributes": {"clip": 1.0}}, "ignores clip") for name in ("mnn", "opencv")),
    ("qnn", LSTM, {}, "computes an LSTM ten times less exactly"),
    ("qnn", GRU, {"attributes": {"clip": 1.0}}, "rejects clip"),
    (
        "onnxruntime-webgpu",
        LSTM,
        {"optional": ("P",), "attributes": {"clip": 1.0}},
        "clips what P is multiplied with",
    ),
]


@pytest.mark.usefixtures("_fast")
def test_what_it_computes_wrongly_is_known() -> None:
    for target, case, fields, fault in WRONG:
        changed = dataclasses.replace(case, **{"T": 4, **fields})
        (preview,) = rl.preview(model(changed, 17), target=target, native=True)  # type: ignore[arg-type]
        assert (preview.form != "native", fault in preview.reason) == (True, True), (target, fault, preview.reason)


@pytest.mark.few(4)
@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize(("target", "case", "fields", "fault"), WRONG)
def test_what_it_computes_wrongly_is_lowered(target: Any, case: Case, fields: dict[str, Any], fault: str) -> None:
    changed = dataclasses.replace(case, **{"T": 4, **fields})
    (preview,) = rl.preview(model(changed, 17), target=target, native=True)
    new, report = rl.lower(model(changed, 17), target=target, native=True, full=True)
    assert case.op_type not in operators(new)
    assert [node.reason for node in report.nodes] == [preview.reason]


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize("target", RULES)
@pytest.mark.parametrize("case", [dataclasses.replace(c, T=4) for c in (GRU, LSTM, RNN)], ids=lambda c: c.op_type)
def test_the_plainest_stays_in_each(target: Any, case: Case) -> None:
    stays = (target, case.op_type) not in LACKS
    assert (forms(model(case, 17), target) == ["native"]) == stays
    assert forms(model(case, 17), target, to=TARGETS[target].forms[0]) != ["native"]


LACKS = {
    ("opencv", "RNN"),
    ("qnn", "LSTM"),
    ("qnn", "RNN"),
    ("onnxruntime-webgpu", "RNN"),
}


RIGHT: list[tuple[str, Case, dict[str, Any]]] = [
    ("tract", LSTM, {"optional": ("B",)}),
    ("tract", LSTM, {"N": 2, "optional": ("initial_h",)}),
    ("opencv", GRU, {"N": 2}),
    *(("opencv", LSTM, {"optional": given}) for given in ((), ("B",), ("B", "initial_h", "initial_c"))),
    ("opencv", LSTM, {"x": "symbolic", "attributes": {"direction": "bidirectional"}}),
    ("opencv", LSTM, {"attributes": {"activations": ["Tanh", "Tanh", "Sigmoid"]}}),
    ("opencv", LSTM, {"weights": "input", "scope": "if"}),
]


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize(("target", "case", "fields"), RIGHT)
def test_what_it_computes_right_stays(target: Any, case: Case, fields: dict[str, Any]) -> None:
    assert set(forms(model(dataclasses.replace(case, **fields), 17), target)) == {"native"}


@pytest.mark.usefixtures("_fast")
def test_an_empty_P_is_left_out() -> None:
    """OpenCV takes an eighth input for P, also where it is empty."""
    original = model(LSTM, 17)
    (node,) = original.graph.node
    assert list(node.input[7:]) == [""]
    new = rl.lower(original, target="opencv", native=True)
    (kept,) = (node for node in new.graph.node if node.op_type == "LSTM")
    assert list(kept.input) == list(node.input[:7])
    assert list(rl.lower(original, target="tract", native=True).graph.node[0].input) == list(node.input)


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize("end", ["input", "output"])
def test_a_size_without_a_name(end: str) -> None:
    """OpenCV then takes its older parser, which rejects most LSTMs; a GRU stays with the newer one."""
    for case, form in ((LSTM, "loop"), (GRU, "native")):
        original = model(dataclasses.replace(case, x="length"), 17)
        (dim, *_) = getattr(original.graph, end)[0].type.tensor_type.shape.dim
        dim.ClearField("dim_param")
        assert forms(original, "opencv") == [form]
        assert forms(original, "openvino") == ["native"]


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize("opset", [7, 9, 10])
def test_a_flip_of_unknown_length_takes_opset_10(opset: int) -> None:
    """A Slice has no steps before."""
    case = dataclasses.replace(GRU, x="length", attributes=LBR | {"direction": "reverse"})
    new, report = rl.lower(model(case, opset), target="opencv", native=True, full=True)
    (node,) = report.nodes
    assert (node.form == "native") == (opset >= 10)
    assert ("takes opset 10" in node.reason) == (opset < 10)
    assert_close(run(new, feed(case)), expected(case), "float32")


@pytest.mark.parametrize(
    ("target", "op", "sizes", "x", "stays"),
    [
        ("openvino", "GRU both", (33, 1, 4), "length", True),
        ("openvino", "GRU both", (33, 1, 32), "length", True),
        ("openvino", "GRU", (64, 1, 128), "static", False),
        ("openvino", "GRU", (64, 1, 16), "static", True),
        ("openvino", "GRU", (100, 8, 64), "static", True),
        ("opencv", "LSTM", (100, 1, 16), "static", True),
        ("opencv", "LSTM", (100, 1, 64), "static", False),
        ("opencv", "LSTM", (10, 8, 16), "static", False),
        ("opencv", "GRU", (50, 8, 64), "static", False),
    ],
)
def test_what_is_faster_stays(target: Any, op: str, sizes: tuple[int, int, int], x: Any, stays: bool) -> None:
    """As measured at these sizes, not at others that are near."""
    name, *both = op.split()
    attributes = (LBR if name == "GRU" else {}) | ({"direction": "bidirectional"} if both else {})
    T, N, H = sizes
    case = Case("sized", name, attributes, T=T, N=N, I=H, H=H, optional=("B", "initial_h", "initial_c"), x=x)
    assert (forms(model(case, 17), target) == ["native"]) == stays


PREPARED: dict[str, dict[str, Any]] = {
    "flipped": {"direction": "reverse"},
    "turned": {"layout": 1, "direction": "bidirectional"},
    "both": {"layout": 1, "direction": "reverse"},
    "defaults": {"activations": ["sigmoid", "tanh"]},
}


@pytest.mark.few(2)
@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize("name", PREPARED)
def test_what_tract_needs_is_around_it(name: str, tmp_path: Path) -> None:
    """Forward, layout 0, and no activations where they are the defaults; the comparison runs the node with it."""
    case = Case(name, "GRU", LBR | PREPARED[name], optional=("B", "initial_h"), x="static")
    onnx.save(model(case, 17), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", target="tract", native=True)
    assert [node.form for node in report.nodes] == ["native"]
    assert report.verification
    new = onnx.load(tmp_path / "out.onnx")
    (node,) = (node for node in new.graph.node if node.op_type == "GRU")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes.get("direction", b"forward") != b"reverse"
    assert not attributes.keys() & {"layout", *(["activations"] if name == "defaults" else [])}
    assert_close(run(new, feed(case)), expected(case), "float32")


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_what_mnn_needs_is_written(op: str) -> None:
    """A name for every output, and hidden_size."""
    case = Case(op, op, LBR if op == "GRU" else {}, outputs=("Y_h",), trimmed=True, hidden_size=False)
    original = model(case, 17)
    new, report = rl.lower(original, target="mnn", native=True, full=True)
    (node,) = new.graph.node
    assert len(node.output) == (3 if op == "LSTM" else 2)
    assert all(node.output)
    assert len(set(node.output)) == len(node.output)
    assert {a.name: a.i for a in node.attribute}["hidden_size"] == case.H
    assert [node.form for node in report.nodes] == ["native"]
    assert_close(run(new, feed(case)), expected(case), "float32")


TWO = """
main (float[T,1,3] X) => (float[T,1,1,4] Y, float[T,1,1,4] Z) <float[1,4,3] W = {}, float[1,4,4] R = {}> {
    BEFORE
    Y = RNN <hidden_size=4> (A, W, R)
    Z = RNN <hidden_size=4> (B, W, R)
}
"""
SHARED = {
    "A = Identity (X)  B = Identity (X)": True,
    "t = Transpose <perm=[1,0,2]> (X)  A = Transpose <perm=[1,0,2]> (t)  B = Identity (X)": True,
    "A = Tanh (X)  B = Tanh (X)": True,
    "A = Tanh (X)  B = Sigmoid (X)": False,
}


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize("nodes", SHARED)
def test_two_nodes_on_one_x(nodes: str) -> None:
    """OpenVINO merges equal nodes, and then computes the first wrongly."""
    original = parse(TWO.replace("BEFORE", nodes))
    assert ("native" not in forms(original, "openvino")) == SHARED[nodes]
    assert forms(original, "tract") == ["native"] * 2


ONE = """
main (float[N,T,3] X) => (float[T,N,3] A, float[T,1,N,4] Y, float[1,N,4] H)
<float[1,4,3] W = {}, float[1,4,4] R = {}> {
    BEFORE
    Y, H = RNN <hidden_size=4> (D, W, R)
}
"""
BESIDE = {
    "A = Transpose <perm=[1,0,2]> (X)  D = Transpose <perm=[1,0,2]> (X)": True,
    "D = Identity (X)  t = Identity (X)  A = Transpose <perm=[1,0,2]> (t)": True,
    "A = Identity (D)  D = Transpose <perm=[1,0,2]> (X)": True,
    "A = Tanh (X)  t = Identity (X)  D = Transpose <perm=[1,0,2]> (t)": False,
    "A = Transpose <perm=[1,0,2]> (X)  D = Identity (A)": True,
    "t = Transpose <perm=[1,0,2]> (X)  A = Tanh (t)  D = Transpose <perm=[1,0,2]> (X)": True,
    "t = Transpose <perm=[1,0,2]> (X)  D = Identity (t)  A = Tanh (t)": True,
    "t = Transpose <perm=[1,0,2]> (X)  D = Identity (t)  A = Tanh (X)": False,
}


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize("nodes", BESIDE)
def test_a_transpose_of_x_beside_the_node(nodes: str) -> None:
    """OpenVINO makes a Reshape of it: the other output was wrong, not that of the node."""
    assert ("native" not in forms(parse(ONE.replace("BEFORE", nodes)), "openvino")) == BESIDE[nodes]


@pytest.mark.usefixtures("_fast")
@pytest.mark.parametrize(("state", "stays"), [("t = Transpose <perm=[1,0,2]> (X)", False), ("t = Neg (h)", True)])
def test_a_transpose_of_x_as_the_initial_state(state: str, stays: bool) -> None:
    original = parse(
        f"""main (float[N,1,4] X, float[1,N,4] h) => (float[1,1,N,4] Y)
        <float[1,4,4] W = {{}}, float[1,4,4] R = {{}}> {{
        {state}  D = Transpose <perm=[1,0,2]> (X)  Y = RNN <hidden_size=4> (D, W, R, , , t) }}"""
    )
    assert ("native" in forms(original, "openvino")) == stays


@pytest.mark.usefixtures("_fast")
def test_in_bodies() -> None:
    in_if = model(dataclasses.replace(GRU, scope="if"), 17)
    assert forms(in_if, "tract") == ["native", "native"]
    assert forms(in_if, "mnn") == ["loop", "loop"] or "native" not in forms(in_if, "mnn")
    (preview,) = (p for p in rl.preview(parse(SCAN), target="tract", native=True) if p.spec is not None)
    assert preview.form != "native"
    in_function = model(dataclasses.replace(GRU, scope="function", x="static"), 17)
    new = rl.lower(in_function, target="tract", native=True)
    assert operators(new) >= {"GRU"}
    assert not new.functions  # tract gets it in the main graph


@pytest.mark.usefixtures("_fast")
def test_other_options() -> None:
    original = model(dataclasses.replace(GRU, x="length"), 17)
    assert forms(original, "tract") == ["native"]
    assert forms(original, "tract", to="scan") == ["scan"]
    assert "native" not in forms(original, "tract", stream={"seq": 1})
    assert forms(original, "tract", except_="GRU") == ["left as it is"]
    half = model(dataclasses.replace(GRU, dtype="float16"), 17)
    assert forms(half, "openvino") == ["native"]
    assert forms(half, "openvino", compute="float32") != ["native"]


def test_a_node_that_cannot_be_lowered_stays() -> None:
    """Opset 7 has no Scan."""
    original = model(dataclasses.replace(GRU, x="length"), 7)
    with pytest.raises(rl.UnsupportedError):
        rl.lower(original, target="tract")
    assert rl.lower(original, target="tract", native=True).graph.node == original.graph.node


@pytest.mark.parametrize(("options", "noted"), [({"to": "scan"}, True), ({"to": "keep"}, True), ({}, False)])
def test_native_without_effect_is_noted(options: dict[str, Any], noted: bool) -> None:
    _, report = rl.lower(model(GRU, 17), target="tract", native=True, full=True, **options)
    found = 'native=True had no effect: it is for to="auto" without stream'
    assert (found in report.notes) == noted


NONE_STAYS = {
    "iree": "iree runs lowered nodes 2 to 8 times as fast, so none stays native",
    "rknn": "rknn rejects most recurrent nodes, or ends the process, so none stays native",
}


@pytest.mark.parametrize("target", ["portable", "tinygrad", "onnxruntime", *NONE_STAYS])
def test_a_target_without_a_rule(target: Any) -> None:
    """Or whose rule has no node."""
    unknown = f"no rule says which recurrent nodes {target} computes right"
    with pytest.raises(rl.OptionError, match=NONE_STAYS.get(target, unknown)) as caught:
        rl.Lowering(target=target, native=True)
    hint = "add target: one of " if target == "portable" else "drop native=True; targets with rules are "
    assert caught.value.hint == hint + ", ".join(RULES)


@pytest.mark.parametrize(
    "fields",
    [
        {"right": frozenset(["sideways"])},
        {"excluded": (Excluded(("sideways",), "fails"),)},
        {"speeds": (Speed(("sideways",), 1, 1, {1: 2.0}),)},
    ],
)
def test_a_rule_names_features(fields: dict[str, Any]) -> None:
    with pytest.raises(rl.OptionError, match="a rule for native nodes names 'sideways', which is no feature"):
        NativeRule("1", "2026-11-23", **{"right": frozenset(), **fields})


@pytest.mark.parametrize(
    "fields",
    [{"excluded": (Excluded(("layout 1",), "rejects it"),)}, {"speeds": (Speed(("layout 1",), 1, 1, {1: 2.0}),)}],
)
def test_a_rule_has_no_line_for_what_is_adapted(fields: dict[str, Any]) -> None:
    """A Transpose takes the place of layout 1 before the rule is read, so the line would never match."""
    NativeRule("1", "2026-11-23", **{"right": frozenset(), **fields})
    with pytest.raises(rl.OptionError, match="'layout 1', which no node has: each gets transposed X and Y"):
        NativeRule("1", "2026-11-23", **{"right": frozenset(["transposed X and Y"]), **fields})


UNMEASURED: dict[str, tuple[dict[str, Any], str]] = {
    "in If": ({"scope": "if"}, "in a branch of an If"),
    "no hidden_size": ({"hidden_size": False}, "without hidden_size"),
    "N above 1": ({"x": "batch"}, "with N other than 1"),
    "open N": ({"x": "batch"}, "with an open N"),
    "T = 1": ({"T": 1}, "with T = 1"),
    "no initial_h": ({"optional": ("B",)}, "without initial_h"),
    "opset 7 to 21": ({}, "at opsets 7 to 21"),
}


@pytest.mark.parametrize("feature", UNMEASURED)
def test_what_was_not_measured(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields, phrase = UNMEASURED[feature]
    speeds = (Speed((), 1, 1, {1: 2.0}),)
    original = model(dataclasses.replace(GRU, **fields), 17)
    for right, expected_forms in ((FEATURES.keys(), {"native"}), (FEATURES.keys() - {feature}, set(LOWERED))):
        rule = NativeRule("1", "2026-11-23", frozenset(right), speeds=speeds)
        monkeypatch.setitem(TARGETS, "tract", dataclasses.replace(TARGETS["tract"], native=rule))
        previews = rl.preview(original, target="tract", native=True)
        assert {preview.form for preview in previews} <= expected_forms
    assert all(f"tract 1 was not measured {phrase}" in preview.reason for preview in previews)


LOWERED = ("scan", "unroll")


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.native is not None])
def test_a_rule_is_of_the_version_of_the_row(name: str) -> None:
    rule = TARGETS[name].native
    assert rule is not None
    assert TARGETS[name].version.endswith(rule.version)


def test_the_result_is_verified(tmp_path: Path) -> None:
    case = Case("two", "RNN", outputs=("Y",), trimmed=True, hidden_size=False, x="symbolic", optional=())
    onnx.save(model(case, 17), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", target="mnn", native=True)
    assert [node.form for node in report.nodes] == ["native"]
    assert report.verification
    assert operators(onnx.load(tmp_path / "out.onnx")) == {"RNN"}


def test_where_no_speed_is_known_what_is_right_stays() -> None:
    original = model(dataclasses.replace(GRU, T=4), 17)
    (node,) = rl.lower(original, target="qnn", native=True, full=True)[1].nodes
    assert (node.form, node.reason) == (
        "native",
        "qnn 2.7.0 computes it right itself; how fast was not measured",
    )
    notes = rl.lower(original, target="qnn", full=True)[1].notes
    assert "qnn 2.7.0 computes a node right itself: --native" in " ".join(notes).replace("native=True", "--native")
