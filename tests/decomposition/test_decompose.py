"""Nodes that a target lacks are replaced by operators that are right there, and compute the same in onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from lacking import TARGET, found, without
from running import assert_close, operators, run
from texts import parse, random_feed

import rnn_lowering as rl
from rnn_lowering.cli.command import main
from rnn_lowering.decomposition.formulas import FORMULAS

LENGTHS = np.array([3, 7, 1, 0], np.int64)
A, B = "float[2, 3, 4, 5] a", "float[2, 3, 6, 5] b"
WINDOW = "<float[8] w = {}, int64 s = {3}>"

NETS = {
    "ReverseSequence": """(float[T, 4] x, int64[4] n) => (float[T, 4] y)
        { y = ReverseSequence <time_axis = 0> (x, n) }""",
    "ReverseSequence of rows": """(float[4, 7, 2, 3] x, int64[4] n) => (float[4, 7, 2, 3] y)
        { y = ReverseSequence <time_axis = 1, batch_axis = 0> (x, n) }""",
    "Einsum of batches": f"""({A}, {B}) => (float[2, 3, 4, 6] y)
        {{ y = Einsum <equation = 'bhqd,bhkd->bhqk'> (a, b) }}""",
    "Einsum of open sizes": """(float[N, T, 4] a, float[4, 5] b) => (float[N, T, 5] y)
        { y = Einsum <equation = "ntc, cd -> ntd"> (a, b) }""",
    "Einsum without a result": """(float[2, 3] a, float[4, 3] b) => (float[U, V] y)
        { y = Einsum <equation = 'ij,kj'> (a, b) }""",
    "Einsum of an outer product": """(float[2] a, float[3] b) => (float[3, 2] y)
        { y = Einsum <equation = 'i,j->ji'> (a, b) }""",
    "Einsum of a row each": """(float[5, 2, 3] a, float[5, 3] b) => (float[2, 5] y)
        { y = Einsum <equation = "nhd,nd->hn"> (a, b) }""",
    "DFT": "(float[N, 7, 1] x) => (float[N, 7, 2] y) { y = DFT (x) }",
    "DFT of one side": "(float[2, 3, 8, 1] x) => (float[2, 3, K, 2] y) { y = DFT <axis = 2, onesided = 1> (x) }",
    "DFT that is cut": "(float[2, 8, 2] x) => (float[2, 5, 2] y) <int64 n = {5}> { y = DFT (x, n) }",
    "DFT that is padded": "(float[2, 8, 1] x) => (float[2, 11, 2] y) <int64 n = {11}> { y = DFT (x, n) }",
    "DFT back": "(float[2, 6, 3, 2] x) => (float[2, 6, 3, 2] y) { y = DFT <axis = 1, inverse = 1> (x) }",
    "STFT": f"(float[N, L, 1] x) => (float[N, F, 5, 2] y) {WINDOW} {{ y = STFT (x, s, w) }}",
    "STFT of both sides": """(float[2, 32, 1] x) => (float[2, F, 8, 2] y) <int64 s = {3}, int64 n = {8}>
        { y = STFT <onesided = 0> (x, s, "", n) }""",
    "Less": "(float[N, 4] x, float[4] b) => (bool[N, 4] y) { y = Less (x, b) }",
    "HardSigmoid": "(float[N, 4] x) => (float[N, 4] y) { y = HardSigmoid (x) }",
    "Selu": "(float[N, 4] x) => (float[N, 4] y) { y = Selu <gamma = 0.7> (x) }",
    "HardSwish": "(float[N, 4] x) => (float[N, 4] y) { y = HardSwish (x) }",
    "Celu": "(float[N, 4] x) => (float[N, 4] y) { y = Celu <alpha = 0.7> (x) }",
    "Celu of a negative alpha": """(float[N, 4] x) => (float[N, 4] y) <float k = {3}>
        { a = Mul (x, k) y = Celu <alpha = -1.5> (a) }""",
    "Celu of no alpha": "(float[N, 4] x) => (float[N, 4] y) { a = Neg (x) b = Abs (a) y = Celu <alpha = 0.0> (b) }",
    "Softplus": "(float[N, 4] x) => (float[N, 4] y) { y = Softplus (x) }",
    "Softplus of large numbers": """(float[N, 4] x) => (float[N, 4] y) <float k = {300}>
        { a = Mul (x, k) y = Softplus (a) }""",
    "Elu of a negative alpha": "(float[N, 4] x) => (float[N, 4] y) { y = Elu <alpha = -0.7> (x) }",
    "ThresholdedRelu of a negative alpha": """(float[N, 4] x) => (float[N, 4] y)
        { y = ThresholdedRelu <alpha = -0.2> (x) }""",
    "Selu of a negative alpha": "(float[N, 4] x) => (float[N, 4] y) { y = Selu <alpha = -2.0> (x) }",
    "Shrink of a negative bound": """(float[N, 4] x) => (float[N, 4] y)
        { y = Shrink <lambd = -0.3, bias = 0.2> (x) }""",
    "Elu": "(float[N, 4] x) => (float[N, 4] y) { y = Elu <alpha = 0.7> (x) }",
    "Softmax": "(float[N, 4] x) => (float[N, 4] y) { y = Softmax <axis = 0> (x) }",
    "LayerNormalization": """(float[N, T, 4] x) => (float[N, T, 4] y) <float[4] g = {}, float[4] b = {}>
        { y = LayerNormalization (x, g, b) }""",
}  # fmt: skip
NEWER: dict[str, tuple[int, str]] = {
    "ReduceLogSumExp": (18, """(float[N, 4] x) => (float[N] y) <float k = {300}, int64[1] axes = {1}>
        { a = Mul (x, k) y = ReduceLogSumExp <keepdims = 0> (a, axes) }"""),
    "ReduceLogSumExp of all": (18, """(float[N, 4] x) => (float[1, 1] y) <float k = {300}>
        { a = Mul (x, k) y = ReduceLogSumExp (a) }"""),
    "DFT": (20, "(float[2, 7, 3, 1] x) => (float[2, 7, 3, 2] y) <int64 a = {1}> { y = DFT (x, \"\", a) }"),
    "Gelu": (20, "(float[N, 4] x) => (float[N, 4] y) { y = Gelu <approximate = 'tanh'> (x) }"),
    "Mish": (22, "(float[N, 4] x) => (float[N, 4] y) { y = Mish (x) }"),
    "GroupNormalization": (21, """(float[N, 4, 5] x) => (float[N, 4, 5] y) <float[4] g = {}, float[4] b = {}>
        { y = GroupNormalization <num_groups = 2> (x, g, b) }"""),
    "RMSNormalization": (23, """(float[N, 4] x) => (float[N, 4] y) <float[4] g = {}>
        { y = RMSNormalization (x, g) }"""),
    "Attention": (23, """(float[N, 2, T, 4] q, float[N, 2, S, 4] k, float[N, 2, S, 4] v) => (float[N, 2, T, 4] y)
        { y = Attention (q, k, v) }"""),
    "Attention with a boolean mask of scores": (23, """(float[1, 2, 3, 4] q, float[1, 2, 3, 4] k,
        float[1, 2, 3, 4] v) => (float[1, 2, 3, 4] y, float[1, 2, 3, 3] s)
        <bool[3, 3] mask = {1, 0, 1, 1, 1, 0, 0, 0, 0}>
        { y, "", "", s = Attention <qk_matmul_output_mode = 2, is_causal = 1> (q, k, v, mask) }"""),
    "Attention with causal scores": (23, """(float[1, 2, 3, 4] q, float[1, 2, 3, 4] k, float[1, 2, 3, 4] v) =>
        (float[1, 2, 3, 4] y, float[1, 2, 3, 3] s)
        { y, "", "", s = Attention <qk_matmul_output_mode = 2, is_causal = 1> (q, k, v) }"""),
    "Attention with a mask of floats and causal scores": (23, """(float[1, 2, 3, 4] q, float[1, 2, 3, 4] k,
        float[1, 2, 3, 4] v) => (float[1, 2, 3, 4] y, float[1, 2, 3, 3] s)
        <float[3, 3] a = {0, -1, 2, 0, 0, -1, -1, 0, 0}, float[3, 3] b = {1, 0, 1, 1, 1, 0, 1, 1, 1}>
        { l = Log (b) mask = Add (a, l)
        y, "", "", s = Attention <qk_matmul_output_mode = 2, is_causal = 1> (q, k, v, mask) }"""),
    "ScatterElements that adds": (18, """(float[2, 5, 3] x, float[2, 4, 3] u) => (float[2, 5, 3] y)
        <int64[2, 4, 3] i = {0, 1, 2, 0, 1, 2, 0, -1, -5, 4, 3, 2, 1, 1, 1, 1, -4, 1, 0, 0, 0, 3, 3, -1}>
        { y = ScatterElements <axis = 1, reduction = 'add'> (x, i, u) }"""),
    "ScatterElements that adds along the last axis": (18, """(float[2, 5] x, float[2, 4] u) => (float[2, 5] y)
        <int64[2, 4] i = {0, 1, 1, 1, 2, 4, -1, 0}>
        { y = ScatterElements <axis = -1, reduction = 'add'> (x, i, u) }"""),
    "Attention of rank 3": (23, """(float[2, 5, 8] q, float[2, 6, 8] k, float[2, 6, 8] v) => (float[2, 5, 8] y)
        { y = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (q, k, v) }"""),
}  # fmt: skip
CASES = {name: (17, text) for name, text in NETS.items()} | {f"{n} at {o}": (o, t) for n, (o, t) in NEWER.items()}


def net(name: str) -> tuple[onnx.ModelProto, Arrays]:
    opset, text = CASES[name]
    model = parse(f"g {text}".replace("'", '"'), opset, ir_version=10 if opset > 17 else 8)
    feed = random_feed(model, N=3, T=7, S=6, L=30)
    return model, feed | ({"n": LENGTHS} if name.startswith("ReverseSequence") else {})


@pytest.mark.few(8)
@pytest.mark.parametrize("name", CASES)
def test_what_takes_its_place_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feed = net(name)
    lacked = name.split()[0]
    without(monkeypatch, lacked)
    lowered, report = rl.lower(model, target=TARGET, full=True)
    assert [each.node.operator for each in report.replaced] == [lacked]
    assert report.unsupported == []
    assert lacked not in operators(lowered)
    onnx.checker.check_model(lowered, full_check=True)
    assert_close(run(lowered, feed), run(model, feed), "float32")
    assert rl.verify(model, lowered, runs=2).status == "verified"


@pytest.mark.parametrize("name", ["HardSwish", "LayerNormalization", "Attention of rank 3 at 23"])
def test_without_a_target_and_with_keep_ops_it_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = net(name)
    lacked = name.split()[0]
    without(monkeypatch, lacked)
    assert rl.lower(model).SerializeToString() == model.SerializeToString()
    with pytest.warns(rl.RnnLoweringWarning, match=f"left for tract: {lacked} node"):
        kept, report = rl.lower(model, target=TARGET, keep_rest=True, full=True)
    assert kept.SerializeToString() == model.SerializeToString()
    assert [each.node.operator for each in report.unsupported] == [lacked]
    assert report.replaced == []


def test_functions_in_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """HardSwish is x * HardSigmoid(x), and HardSigmoid is of Max and Min."""
    model, feed = net("HardSwish")
    without(monkeypatch, "HardSwish", "HardSigmoid")
    lowered = rl.lower(model, target=TARGET)
    assert not operators(lowered) & {"HardSwish", "HardSigmoid"}
    assert_close(run(lowered, feed), run(model, feed), "float32")


def test_it_stays_if_what_would_take_its_place_is_not_right_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most half of the tests of GatherND may be wrong: of Gather more are."""
    model, _ = net("ReverseSequence")
    without(monkeypatch, "ReverseSequence", "Gather")
    with pytest.warns(rl.RnnLoweringWarning, match="left for tract"):
        assert "ReverseSequence" in operators(rl.lower(model, target=TARGET))
    words = (
        "ReverseSequence:10/0/0/2 Reshape:1/1/0/0 Shape:1/1/0/0 Range:1/1/0/0 Less:1/1/0/0 Sub:1/1/0/0 Mul:1/1/0/0"
    )
    for wrong, stays in ((1, False), (2, True)):
        found(monkeypatch, f"{words} Add:1/1/0/0 Concat:1/1/0/0 Gather:1/1/{wrong}/0".split())
        with pytest.warns(rl.RnnLoweringWarning) if stays else pytest.MonkeyPatch.context():
            assert ("ReverseSequence" in operators(rl.lower(model, target=TARGET))) is stays


UNKNOWN = {
    "an open length": "(float[2, L, 1] x) => (float[2, L, 2] y) { y = DFT (x) }",
    "a window that is an input": """(float[2, 32, 1] x, float[8] w) => (float[2, F, 5, 2] y) <int64 s =
        {3}> { y = STFT (x, s, w) }""",
    "a label twice": "(float[3, 3] a, float[3] b) => (float[3] y) { y = Einsum <equation = 'ii,i->i'> (a, b) }",
}  # fmt: skip


@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN)
def test_it_stays_if_what_a_formula_needs_is_unknown(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No formula raises an error."""
    without(monkeypatch, "DFT", "STFT", "Einsum")
    model = parse(f"g {text}".replace("'", '"'))
    with caplog.at_level("DEBUG", "rnn_lowering"), pytest.warns(rl.RnnLoweringWarning, match="left for tract"):
        lowered = rl.lower(model, target=TARGET)
    assert lowered.SerializeToString() == model.SerializeToString()
    assert [record.message for record in caplog.records if record.exc_info] == []


def test_an_error_of_a_formula_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The node stays; whoever looks for the reason finds the error."""
    model, _ = net("Einsum without a result")
    without(monkeypatch, "Einsum")
    monkeypatch.setitem(FORMULAS, "Einsum", fails)
    with caplog.at_level("DEBUG", "rnn_lowering"), pytest.warns(rl.RnnLoweringWarning, match="left for tract"):
        assert "Einsum" in operators(rl.lower(model, target=TARGET))
    assert "Einsum is not replaced" in caplog.text
    assert "AttributeError: mistake" in caplog.text


def fails(*_: Any) -> None:
    """A formula with a mistake."""
    raise AttributeError("mistake")


def test_several_in_branches_and_beside_recurrent_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names stay unique, outputs of the model keep theirs, and a constant result is a copy."""
    without(monkeypatch, "HardSwish", "HannWindow", "LayerNormalization")
    branch = "(float[T, 1, 4] {0}) {{ {0} = HardSwish (H) }}"
    model = parse(
        f"""g (float[T, 1, 4] X, bool c) => (float[T, 1, 4] Y, float[T, 1, 4] Z, float[8] W)
        <float[1, 12, 4] K = {{}}, float[1, 12, 4] R = {{}}, float[4] one = {{1, 1, 1, 1}}, int64 size = {{8}}> {{
        D, h = GRU <hidden_size = 4> (X, K, R) axes = Constant <value_ints = [1]> () H = Squeeze (D, axes)
        [a] S = HardSwish (H) [a2] Z = HardSwish (S) N = LayerNormalization (S, one) W = HannWindow (size)
        B = If (c) <then_branch = t () => {branch.format("p")}, else_branch = e () => {branch.format("q")}>
        Y = Add (N, B) }}"""
    )
    lowered, report = rl.lower(model, target=TARGET, full=True)
    assert len(report.replaced) == 6
    assert not operators(lowered) & {"HardSwish", "HannWindow", "LayerNormalization", "GRU"}
    assert [output.name for output in lowered.graph.output] == ["Y", "Z", "W"]
    assert rl.verify(model, lowered, runs=1).status == "verified"
    assert any(
        "replaced 4 HardSwish nodes by Add, " in note or "replaced 4 HardSwish" in note for note in report.notes
    )


def test_streams_know_the_operator_before_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the place of LayerNormalization flattens the frames with other axes, which no stream does."""
    without(monkeypatch, "LayerNormalization", "HardSwish")
    model = parse(
        """g (float[1, T, 4] X) => (float[1, T, 4] Y) <float[4] one = {1, 1, 1, 1}, float[4, 4, 3] K = {}> {
        n = LayerNormalization (X, one) s = HardSwish (n) t = Transpose <perm = [0, 2, 1]> (s)
        c = Conv <pads = [2, 0]> (t, K) Y = Transpose <perm = [0, 2, 1]> (c) }"""
    )
    stream, report = rl.lower(model, target=TARGET, stream="T=2", full=True)
    assert sorted(each.node.operator for each in report.replaced) == ["HardSwish", "LayerNormalization"]
    assert not operators(stream) & {"LayerNormalization", "HardSwish"}
    assert rl.verify_stream(model, stream).status == "verified"


def test_the_list_the_command_and_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "HardSwish")
    source, result = str(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    onnx.save(net("HardSwish")[0], source)
    assert main([source, "--target", TARGET, "--list"]) == 4
    shown = capsys.readouterr().out
    assert "replaced" in shown
    assert "tract 1.2 rejected it in 1 of 1 of ONNX's tests: becomes " in " ".join(shown.split())
    assert main([source, str(result), "--target", TARGET, "--require-supported"]) == 0
    shown = capsys.readouterr().out
    assert (
        "replaced HardSwish node '-> y' in main graph by HardSigmoid, Mul: tract 1.2 rejected it in 1 of 1" in shown
    )
    assert "verified (onnxruntime)" in shown
    assert "HardSwish" not in operators(onnx.load(result))
    assert (
        main([source, str(tmp_path / "kept.onnx"), "--target", TARGET, "--require-supported", "--keep-rest"]) == 1
    )
    assert not (tmp_path / "kept.onnx").exists()


def test_nodes_alone_verify_no_replaced_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime has no GRU of layout 1: the nodes are compared one by one, and HardSwish with nothing."""
    without(monkeypatch, "HardSwish")
    model = parse(
        """g (float[2, 3, 4] X) => (float[2, 3, 1, 4] Y) <float[1, 12, 4] W = {}, float[1, 12, 4] R = {}>
        { H, h = GRU <hidden_size = 4, layout = 1> (X, W, R) Y = HardSwish (H) }"""
    )
    onnx.save(model, tmp_path / "in.onnx")
    given: dict[str, Any] = {"target": TARGET}
    done = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", **given)
    assert done.verification is not None
    assert done.verification.status == "not verified"
    kept = rl.lower_file(tmp_path / "in.onnx", tmp_path / "kept.onnx", target="portable")
    assert kept.verification is not None
    assert kept.verification.status == "verified"
