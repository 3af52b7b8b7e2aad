"""Nodes that no recurrence has, and that a target was measured not to run, are named, or refused on request."""

import json
import warnings
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from lacking import found, operators
from running import assert_close, run
from texts import parse, random_feed

import rnn_lowering as rl
from rnn_lowering.cli.command import main
from rnn_lowering.targets import onnx_tests
from rnn_lowering.targets.names import TargetName

DATA = Path(onnx_tests.__file__).with_name("onnx_tests.json")

NET = """g (float[T, 1, 4] X, int64[1] L) => (float[T, 1, 4] Y) <float[1, 12, 4] W = {}, float[1, 12, 4] R = {}> {
    H, Hn = GRU <hidden_size = 4> (X, W, R)
    axes = Constant <value_ints = [1]> ()
    S = Squeeze (H, axes)
    [turn] Y = FAKE (S, L)
}"""
LACKED = "ReverseSequence <time_axis = 0, batch_axis = 1>"
SAYS = "which tract 1.2 rejected in 5 and computed wrongly in 1 of 6 of ONNX's tests"
NAMED = f"left for tract: ReverseSequence node 'turn' in main graph, {SAYS}"


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["ReverseSequence:10/0/1/5", "HardSwish:22/0/0/3", "Softmax:13/1/0/2", "Less:13/0/2/0", "Not:1/0/0/2"]
    found(monkeypatch, words, integers=["Not"])


def net(node: str = LACKED, opset: int = 17) -> onnx.ModelProto:
    return parse(NET.replace("FAKE", node), opset)


def test_a_node_that_was_never_right_is_named() -> None:
    with pytest.warns(rl.RnnLoweringWarning) as warned:
        lowered, report = rl.lower(net(), target="tract", full=True)
    assert [str(each.message) for each in warned] == [NAMED]
    assert any(node.op_type == "ReverseSequence" for node in lowered.graph.node)
    assert report.to_dict()["unsupported"] == [
        {
            "name": "turn",
            "operator": "ReverseSequence",
            "scope": "main graph",
            "reason": "tract 1.2 rejected it in 5 and computed it wrongly in 1 of 6 of ONNX's tests",
        }
    ]


def test_several_of_one_operator_have_one_warning() -> None:
    model = net()
    model.graph.node.append(onnx.helper.make_node("ReverseSequence", ["S", "L"], ["Z"], time_axis=0, batch_axis=1))
    model.graph.output.append(onnx.helper.make_tensor_value_info("Z", 1, ["T", 1, 4]))
    with pytest.warns(rl.RnnLoweringWarning) as warned:
        report = rl.lower(model, target="tract", full=True)[1]
    assert [str(each.message) for each in warned] == [f"{NAMED}, and 1 more"]
    assert [each.node.name for each in report.unsupported] == ["turn", "-> Z"]


@pytest.mark.parametrize("target", ["portable", "onnxruntime", "tvm"])
def test_a_target_that_was_not_measured_names_none(target: TargetName) -> None:
    assert rl.lower(net(), target=target, dims={"T": 3}, full=True)[1].unsupported == []


@pytest.mark.parametrize("node", ["Softmax", "HardSwish"])
def test_an_operator_with_a_right_test_and_an_older_version_are_not_named(node: str) -> None:
    """HardSwish-22 was tested, the node is of version 14."""
    model = parse(NET.replace("FAKE (S, L)", f"{node} (S)"))
    assert rl.lower(model, target="tract", full=True)[1].unsupported == []


def test_tests_with_float32_say_nothing_of_integers() -> None:
    def named(kind: str) -> list[str]:
        text = f"g ({kind}[2] a, {kind}[2] b) => (bool[2] Y) {{ l = Less (a, b) Y = Not (l) }}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [each.node.operator for each in rl.lower(parse(text), target="tract", full=True)[1].unsupported]

    assert named("float") == ["Less", "Not"]
    assert named("int64") == ["Not"]


WRONG = {
    "ArgMax": ("ArgMax.select_last_index=1:13/1/3/0", "3 of 4 of ONNX's tests with select_last_index=1"),
    "CumSum": ("CumSum.:14/0/5/0", "5 of 5 of ONNX's tests with default modes"),
    "GridSample": (
        "GridSample.padding_mode=reflection:16/0/1/0",
        "1 of 1 of ONNX's tests with padding_mode=reflection",
    ),
    "linear": (
        "Resize.coordinate_transformation_mode=align_corners,mode=linear:13/0/2/0",
        "2 of 2 of ONNX's tests with coordinate_transformation_mode=align_corners, mode=linear",
    ),
    "floor": (
        "Resize.coordinate_transformation_mode=align_corners,nearest_mode=floor:13/0/1/0",
        "1 of 1 of ONNX's tests with coordinate_transformation_mode=align_corners, nearest_mode=floor",
    ),
}
"""Words of the data, and what they say of a node."""

RESIZE = """s = Constant <value_floats = [1.0, 2.0]> ()
    Y = Resize <{} nearest_mode = "floor", coordinate_transformation_mode = "{}"> (x, , s)"""
GRID = """s = Constant <value_ints = [1, 1, 6, 4]> () a = Reshape (x, s)
    t = Constant <value_ints = [1, 2, 2, 2]> () c = ConstantOfShape (t)
    b = GridSample <mode = "{}", padding_mode = "reflection"> (a, c)
    u = Constant <value_ints = [2, 2]> () Y = Reshape (b, u)"""
CUMSUM = "a = Constant <value_int = 1> () Y = CumSum <reverse = {}> (x, a)"
CASES = {
    "the attribute": ("l = ArgMax <axis = 1, select_last_index = 1> (x) Y = Cast <to = 1> (l)", 17, "ArgMax"),
    "not the attribute": ("l = ArgMax (x) Y = Cast <to = 1> (l)", 17, ""),
    "another too": ("l = ArgMax <keepdims = 0, select_last_index = 1> (x) Y = Cast <to = 1> (l)", 17, ""),
    "its version is older": ("l = ArgMax <select_last_index = 1> (x) Y = Cast <to = 1> (l)", 12, ""),
    "a default": (CUMSUM.format(0), 17, "CumSum"),
    "not the default": (CUMSUM.format(1), 17, ""),
    "a default of its version": (GRID.format("bilinear"), 16, "GridSample"),
    "not a default of its version": (GRID.format("nearest"), 16, ""),
    "both": (RESIZE.format("", "align_corners"), 17, "floor"),
    "one of both": (RESIZE.format("", "asymmetric"), 17, ""),
    "one without effect": (RESIZE.format('mode = "linear",', "align_corners"), 17, "linear"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_is_named_if_tests_with_its_modes_were_wrong(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*dict.fromkeys(word.partition(".")[0] for word, _ in WRONG.values()), "Cast"]
    found(monkeypatch, [f"{name}:1/1/1/0" for name in names], wrong=[word for word, _ in WRONG.values()])
    body, opset, wrong = CASES[case]
    model = parse(f"g (float[6, 4] x) => (float[M, N] Y) {{ {body} }}", opset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unsupported = rl.lower(model, target="tract", full=True)[1].unsupported
    expected = [f"tract 1.2 computed it wrongly in {WRONG[wrong][1]}"] if wrong else []
    assert [each.reason for each in unsupported] == expected


def test_two_reasons_of_an_operator_are_two_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ["Resize:1/1/1/0"], wrong=[WRONG["linear"][0], WRONG["floor"][0]])
    first = RESIZE.format("", "align_corners").replace("Y =", "a =")
    second = RESIZE.format('mode = "linear",', "align_corners").replace("(x,", "(a,").partition("()")[2]
    model = parse(f"g (float[6, 4] x) => (float[M, N] Y) {{ {first} {second} }}")
    with pytest.warns(rl.RnnLoweringWarning) as warned:
        rl.lower(model, target="tract")
    assert ["mode=linear" in str(each.message) for each in warned] == [False, True]


def test_such_a_node_is_replaced_by_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    found(
        monkeypatch, [f"{name}:1/1/0/0" for name in sorted(operators())], wrong=["Gelu.approximate=tanh:20/0/1/1"]
    )
    texts = [f'Y = Gelu <approximate = "{kind}"> (x)' for kind in ("tanh", "none")]
    models = [parse(f"g (float[6, 4] x) => (float[6, 4] Y) {{ {text} }}", 20) for text in texts]
    lowered = [rl.lower(model, target="tract", full=True) for model in models]
    assert [[each.node.operator for each in report.replaced] for _, report in lowered] == [["Gelu"], []]
    feed = random_feed(models[0])
    assert_close(run(lowered[0][0], feed), run(models[0], feed), "float32")


def test_nodes_in_branches_are_named_and_functions_of_that_name_are_not() -> None:
    branches = f"""then_branch = a () => (float[6, 1, 4] Z) {{ [in] Z = {LACKED} (X, L) }},
        else_branch = b () => (float[6, 1, 4] V) {{ V = Neg (X) }}"""
    text = f"g (bool c, float[6, 1, 4] X, int64[1] L) => (float[6, 1, 4] Y) {{ Y = If (c) <{branches}> }}"
    with pytest.warns(rl.RnnLoweringWarning, match=r"node 'in' in main graph > -> Y \(If\) then_branch, which"):
        rl.lower(parse(text), target="tract")
    own = '<domain: "", opset_import: ["": 17]> ReverseSequence (x, l) => (y) { y = Neg (x) }'
    called = parse("g (float[6, 1, 4] X, int64[1] L) => (float[6, 1, 4] Y) { Y = ReverseSequence (X, L) }" + own)
    assert rl.lower(called, target="tract", full=True)[1].unsupported == []


def test_a_model_with_nothing_to_lower_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"g (float[6, 1, 4] X, int64[1] L) => (float[6, 1, 4] Y) {{ [turn] Y = {LACKED} (X, L) }}"
    source, result = str(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    onnx.save(parse(text), source)
    assert main([source, str(result), "--target", "tract", "--report", str(tmp_path / "r.json")]) == 0
    said = capsys.readouterr()
    assert NAMED in said.err
    assert "nothing to lower; unchanged" in said.out
    assert json.loads((tmp_path / "r.json").read_text())["unsupported"][0]["name"] == "turn"
    assert main([source, "--target", "tract", "--list"]) == 0
    said = capsys.readouterr()
    assert "no recurrent nodes\n" in said.out
    assert "left, not supported" in said.out


def test_require_supported_refuses_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, result = str(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    onnx.save(net(), source)
    arguments = ["--target", "tract", "--require-supported"]
    assert main([source, str(result), *arguments]) == 1
    assert "ReverseSequence node 'turn' in main graph: tract 1.2 rejected it in 5 and" in capsys.readouterr().err
    assert not result.exists()
    assert main([source, "--list", *arguments]) == 1
    assert "refused" in capsys.readouterr().out
    with pytest.raises(rl.UnsupportedError, match="or drop require_supported=True"):
        rl.lower(net(), target="tract", require_supported=True)
    model = ir.from_proto(net())
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with pytest.raises(rl.UnsupportedError):
        rl.LowerRecurrentPass(target="tract", require_supported=True)(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (
            ["--target", "candle"],
            "tests in candle are known, so nothing can be checked; drop --require-supported; known are",
        ),
        ([], "nothing can be checked; add --target: one of emx-onnx-cgen, espdl"),
    ],
    ids=["not measured", "no target"],
)
def test_require_supported_needs_a_target_that_was_measured(
    given: list[str], hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, result = str(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    onnx.save(net(), source)
    with pytest.raises(SystemExit, match="2"):
        main([source, str(result), "--require-supported", *given])
    assert hint in capsys.readouterr().err
    assert not result.exists()


def test_flags_are_attributes_of_onnx() -> None:
    integers = onnx.defs.OpSchema.AttrType.INT
    declared = [schema.attributes.values() for schema in onnx.defs.get_all_schemas() if not schema.domain]
    assert {each.name for found in declared for each in found if each.type == integers} >= onnx_tests.FLAGS


def test_what_is_stored_is_of_operators_that_onnx_has() -> None:
    for target, entry in json.loads(DATA.read_text()).items():
        assert target in rl.TARGETS
        words = [word.split(":") for word in " ".join(entry["operators"]).split()]
        assert len(words) > 100
        for word in " ".join(entry["wrong with"]).split():
            name, _, rest = word.partition(".")
            attributes, _, counts = rest.partition(":")
            declared = onnx.defs.get_schema(name, "").attributes
            assert {each.partition("=")[0] for each in filter(None, attributes.split(","))} <= declared.keys()
            assert name in dict(words)
            assert int(counts.split("/")[2]) > 0
        assert {"Not", "Trilu"} <= set(" ".join(entry["without float32"]).split()) <= {name for name, _ in words}
        for name, counts in words:
            since, *numbers = map(int, counts.split("/"))
            assert onnx.defs.get_schema(name, since, "").since_version == since
            assert len(numbers) == 3
            assert sum(numbers) > 0
