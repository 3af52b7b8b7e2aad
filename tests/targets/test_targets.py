"""Targets: what each supports, what is refused for it, and formulas for the operators that it does not support."""

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import causal_conv
import numpy as np
import onnx
import pytest
from attention import Attention
from cases import FUNCTIONS, Case, expected, feed, model
from forms import fitting
from graphs import MS
from running import assert_close, operators, recurrent_left, run
from scope_models import LOOP, SCAN
from texts import parse, random_feed
from thinning import exhaustive, thinned

import rnn_lowering as rl
from rnn_lowering.cli.command import main
from rnn_lowering.targets.table import TARGETS
from rnn_lowering.targets.target import target_named

LOOPS = {"scan": "Scan", "loop": "Loop"}
RAGGED = Case("ragged", "LSTM", {"direction": "bidirectional"}, optional=("B", "sequence_lens"))
UNKNOWN = Case("unknown", "GRU", x="symbolic")

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


def opset_for(target: str) -> int:
    """An opset that a target supports."""
    return min(17, TARGETS[target].newest_opset or 17)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("target", "op_type", "ragged"), thinned(list(product(TARGETS, ["RNN", "GRU", "LSTM"], [False, True])), 5)
)
def test_preferred_form(target: Any, op_type: str, ragged: bool) -> None:
    fields: dict[str, Any] = {"optional": ("B", "sequence_lens"), "lengths": (5, 3, 0)} if ragged else {}
    case = fitting(Case("targets", op_type, {"direction": "bidirectional"}, **fields), target)
    lowered = rl.lower(model(case, opset_for(target)), target=target)
    assert recurrent_left(lowered) == []
    form = "unroll" if TARGETS[target].loops.unroll_up_to >= case.T else TARGETS[target].forms[0]
    form = "scan" if (target, op_type) == ("openvino", "LSTM") else form
    assert operators(lowered) & {"Scan", "Loop"} == ({LOOPS[form]} if form in LOOPS else set())
    assert not operators(lowered) & set(TARGETS[target].unsupported)
    assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.few(6)
@pytest.mark.parametrize("target", TARGETS)
def test_other_forms_and_no_more(target: Any) -> None:
    case = fitting(Case("forms", "LSTM"), target)
    for form in ("scan", "loop", "unroll"):
        if form in TARGETS[target].forms:
            assert recurrent_left(rl.lower(model(case, opset_for(target)), form, target=target)) == []
            continue
        with pytest.raises(
            rl.UnsupportedError, match=f"LSTM node 'recurrent' in main graph: {target} does not support"
        ):
            rl.lower(model(case, opset_for(target)), form, target=target)


TOO_NEW = {"jaxonnxruntime": 20, "onnx2torch": 17, "executorch": 17, "rknn": 19, "onnxruntime-webgpu": 21}


@pytest.mark.parametrize("target", TOO_NEW)
@pytest.mark.parametrize("function", [False, True])
def test_an_opset_above_the_newest_goes_down(target: Any, function: bool) -> None:
    """An opset is refused only where a node needs it, or where it is to stay."""
    newest = TOO_NEW[target]
    original = beside_lstm(newest + 1, "y = Relu (Y)", function=function)
    new = rl.lower(original, target=target)
    assert [entry.version for entry in new.opset_import if not entry.domain] == [17]
    assert {entry.version for each in new.functions for entry in each.opset_import if not entry.domain} <= {17}
    given = {"X": np.random.default_rng(0).standard_normal((3, 2, 4), np.float32)}
    assert_close(run(new, given), run(original, given))
    message = f"opset {newest} or earlier, but the model has {newest + 1}; export it at opset {newest}"
    with pytest.raises(rl.UnsupportedError, match=message):
        rl.lower(original, target=target, keep_rest=True)
    needs = beside_lstm(24, "y = TensorScatter (Y, Y)", function=function)
    with pytest.raises(rl.UnsupportedError, match=f"opset {newest} or earlier, but the model has 24"):
        rl.lower(needs, target=target)


@pytest.mark.parametrize("target", TOO_NEW)
def test_so_does_that_of_a_stream(target: Any) -> None:
    """CausalConvWithState is lowered before the model becomes a stream."""
    conv = dataclasses.replace(causal_conv.STANDARD, domain=MS, opset=22)
    original = causal_conv.model(conv)
    new = rl.lower(original, target=target, stream={"input:2": 1})
    assert [entry.version for entry in new.opset_import if not entry.domain] == [17]
    with pytest.raises(rl.UnsupportedError, match="or earlier, but the model has 22"):
        rl.lower(original, target=target, stream={"input:2": 1}, keep_rest=True)


def beside_lstm(opset: int, text: str, *, function: bool) -> onnx.ModelProto:
    """Return a model with an LSTM and a node, which may be in a function that imports the same opset."""
    rng = np.random.default_rng(1)
    weights = {"W": rng.random((1, 12, 4), np.float32), "R": rng.random((1, 12, 3), np.float32)}
    inner, call = (text.replace("Y", "a"), "y = local.f (Y)") if function else ("", text)
    domain = ', "local": 1' if function else ""
    told = f"""<ir_version: 10, opset_import: ["": {opset}{domain}]>
    g (float[3,2,4] X) => (y) {{
      [recurrent] Y = LSTM <hidden_size = 3> (X, W, R)
      {call}
    }}"""
    if function:
        told += f"""
    <domain: "local", opset_import: ["": {opset}]>
    f (a) => (y) {{ {inner} }}"""
    model = onnx.parser.parse_model(told)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


REFUSED = {
    "coreml": (RAGGED, 17, "needs constant sequence_lens: coremltools does not convert their comparison; "),
    "iree": (Case("c", "RNN"), 12, "opset 13 or later"),
    "ncnn": (RAGGED, 17, "needs constant sequence_lens: pnnx .* of integers; .*sequence_lens.: .*FILE.npy"),
    "tinygrad": (UNKNOWN, 17, "sequence length is not known.*dims="),
    "tvm": (UNKNOWN, 17, "sequence length is not known.*dims="),
}


@pytest.mark.parametrize("target", REFUSED)
def test_refuses_what_it_does_not_support(target: Any) -> None:
    case, opset, message = REFUSED[target]
    with pytest.raises(rl.UnsupportedError, match=f"{case.op_type} node 'recurrent' in main graph: .*{message}"):
        rl.lower(model(case, opset), target=target)


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("tvm", r"dims=\{.seq.: \?\}, or try a stream of one step a call \(stream=.seq=1.\)$"),
        ("tract", "or use to=.scan.$"),
    ],
)
def test_a_hint_names_forms_that_the_target_supports(target: Any, hint: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=hint):
        rl.lower(model(UNKNOWN, 17), "unroll", target=target)


def test_a_single_step_is_not_chunked() -> None:
    """One step needs no loop, but at opset 7 the rows of an open batch can be numbered in a Loop only."""
    case = Case("one step", "LSTM", T=1, x="batch", optional=("sequence_lens",), lengths=(1, 0, 1))
    for to in ("auto", "chunked"):
        with pytest.raises(rl.UnsupportedError) as caught:
            rl.lower(model(case, 7), to, target="tvm")
        assert "chunked" not in str(caught.value)
    with pytest.raises(rl.UnsupportedError, match=r"tvm does not support the form loop; use to=.unroll.$"):
        rl.lower(model(case, 17), "loop", target="tvm")
    assert_close(run(rl.lower(model(case, 17), "chunked", target="tvm"), feed(case)), expected(case))


def test_openvino_has_no_computed_weights_in_a_scan() -> None:
    """It rejects a Scan whose body uses a value of the graph around it."""
    for symbols, case in {
        "R and P are": Case("given", "LSTM", weights="input", optional=("B", "P")),
        "R and B are": Case("given", "GRU", {"linear_before_reset": 1}, weights="input"),
        "R is": Case("given", "RNN", weights="input"),
    }.items():
        given = model(case, 17)
        with pytest.raises(rl.UnsupportedError, match=f"{symbols} not; use to=.loop. or to=.unroll."):
            rl.lower(given, "scan", target="openvino")
        assert "Scan" not in operators(rl.lower(given, target="openvino"))
        assert "Scan" in operators(rl.lower(given, "scan"))


def test_iree_needs_all_sizes() -> None:
    with pytest.raises(rl.UnsupportedError, match="known sequence length and batch size"):
        rl.lower(model(UNKNOWN, 17), target="iree")
    lowered = rl.lower(model(UNKNOWN, 17), target="iree", input_shapes={"X": feed(UNKNOWN)["X"].shape})
    assert_close(run(lowered, feed(UNKNOWN)), expected(UNKNOWN))


def test_the_second_form_where_the_first_cannot_be() -> None:
    long = Case("long", "RNN", T=600)
    assert "Loop" in operators(rl.lower(model(long, 17), target="mnn"))
    assert "Loop" in operators(rl.lower(model(Case("old", "RNN"), 8)))
    with pytest.raises(rl.UnsupportedError, match=r"600 steps are more than the limit of 512.*max_unroll=600"):
        rl.lower(model(long, 17), target="tvm")


def test_without_recurrent_nodes_nothing_is_refused() -> None:
    plain = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    assert rl.lower(plain, target="jaxonnxruntime") == plain


WITHOUT_RECURRENCE = """
main (float[2] x) => (float[2] h) <int64 three = {3}, bool yes = {1}> {
    h = Loop (three, yes, x) <body = again (int64 i, bool go, float[2] before) => (bool still, float[2] after) {
        still = Identity(go)
        after = Neg(before)
    }>
}
"""
LOOPS_OF_MODELS = [text.replace("[k,", "[3,") for text in (WITHOUT_RECURRENCE, LOOP, SCAN)]
UNTIL_A_SUM = WITHOUT_RECURRENCE.replace(
    "still = Identity(go)",
    "sum = ReduceSum<keepdims=0>(before)\n        none = Sub(sum, sum)\n        still = Less(sum, none)",
)


@pytest.mark.few(3)
@pytest.mark.parametrize("target", TARGETS)
def test_loops_of_the_model_are_what_a_target_runs(target: Any) -> None:
    runs = {LOOPS[form] for form in TARGETS[target].loop_forms if form in LOOPS}
    for text in LOOPS_OF_MODELS[: 3 if opset_for(target) >= 13 else 2]:  # ReduceSum with axes as an input
        original = parse(text.replace("5,2,3]", "5,1,3]").replace("1,2,4]", "1,1,4]"), opset_for(target))
        known = TARGETS[target].documented
        if known is not None and not operators(original) & {"ReduceSum"} <= known.operators:
            with pytest.raises(rl.UnsupportedError, match=f"{target} is not known to support ReduceSum "):
                rl.lower(original, target=target)
            continue
        if target == "ncnn" and len(original.graph.output) > 1:
            with pytest.raises(rl.UnsupportedError, match="ncnn has tensors of at most 4 axes"):
                rl.lower(original, target=target)
            continue
        lowered = rl.lower(original, target=target)
        assert operators(lowered) & {"Loop", "Scan"} <= runs
        assert_close(run(lowered, random_feed(original)), run(original, random_feed(original)))


@pytest.mark.few(4)
@pytest.mark.parametrize("target", TARGETS)
def test_a_loop_that_the_data_ends(target: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a Loop can be one."""
    original = parse(UNTIL_A_SUM, opset_for(target))
    onnx.save(original, tmp_path / "in.onnx")
    if "loop" in TARGETS[target].loop_forms:
        assert "Loop" in operators(rl.lower(original, target=target))
        return
    with pytest.raises(rl.UnsupportedError, match=r"^Loop node '-> h' in main graph: ") as refused:
        rl.lower(original, target=target)
    assert main([str(tmp_path / "in.onnx"), "--list", "--target", target]) == 1
    assert refused.value.reason[:40] in capsys.readouterr().out


COMPOSING = [name for name, target in TARGETS.items() if target.unsupported and not target.documented]


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("target", "opset", "function"), thinned(list(product(COMPOSING, [10, 14, 17], FUNCTIONS)), 4)
)
def test_composed_activations(target: Any, opset: int, function: str) -> None:
    """Against the operator specification, arguments from far below to far above zero and at thresholds included."""
    if not (TARGETS[target].oldest_opset or 0) <= opset <= (TARGETS[target].newest_opset or opset):
        pytest.skip(f"{target} does not support opset {opset}")
    attributes = {"activations": [function], "activation_alpha": [0.5], "activation_beta": [0.25]}
    for scale in (1.0, 30.0, 1e4):
        case = Case("composed", "RNN", attributes, T=4, N=8, x_scale=scale)
        lowered = rl.lower(model(case, opset), target=target)
        assert not operators(lowered) & set(TARGETS[target].unsupported)
        assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_composed_clip(op_type: str, opset: int) -> None:
    case = Case("composed_clip", op_type, {"clip": 0.3}, x_scale=1e6)
    lowered = rl.lower(model(case, opset), target="jaxonnxruntime")
    assert "Clip" not in operators(lowered)
    assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_for_opencv_tanh_is_bounded_and_rows_are_gathered_by_rank_1(op_type: str) -> None:
    case = Case("bounded", op_type, x_scale=60.0)
    for to in ("unroll", "loop"):
        lowered = rl.lower(model(case, 17), to, target="opencv")
        bodies = [a.g for node in lowered.graph.node for a in node.attribute if node.op_type == "Loop"]
        nodes = [node for graph in (lowered.graph, *bodies) for node in graph.node]
        clipped = {node.output[0] for node in nodes if node.op_type == "Clip"}
        bounded = {node.input[0] for node in nodes if node.op_type == "Tanh"}
        assert bounded
        assert bounded <= clipped
        gathered = [node.input[1] for graph in bodies for node in graph.node if node.op_type == "Gather"]
        reshaped = {node.output[0] for node in nodes if node.op_type == "Reshape"}
        assert bool(gathered) == (to == "loop")
        assert set(gathered) <= reshaped
        assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_for_mnn_an_open_length_is_not_flipped(op_type: str, dtype: str) -> None:
    """It computes a Slice with step -1 of unknown length wrongly, and leaves a ConstantOfShape of float16 unset."""
    case = Case("open", op_type, {"direction": "bidirectional"}, x="symbolic", dtype=dtype)
    lowered = rl.lower(model(case, 17), target="mnn")
    assert operators(lowered) >= {"Loop", "ConstantOfShape"}
    assert "Slice" not in operators(lowered)
    made = [node for node in lowered.graph.node if node.op_type == "ConstantOfShape"]
    assert {node.attribute[0].t.data_type for node in made} == {onnx.TensorProto.FLOAT}
    assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.parametrize("op_type", ["LSTM", exhaustive("RNN"), exhaustive("GRU")])
def test_for_opencv_no_two_states_start_from_one_value(op_type: str) -> None:
    """Its Loop would make one state of the two."""
    case = Case("apart", op_type, {"direction": "bidirectional"}, x="symbolic")
    for join, count in ((True, 1), (False, 2)):
        lowered = rl.lower(model(case, 17), target="opencv", join=join)
        loops = [node for node in lowered.graph.node if node.op_type == "Loop"]
        assert len(loops) == count
        assert all(len(set(node.input)) == len(node.input) for node in loops)
        assert_close(run(lowered, feed(case)), expected(case))


def test_relu_at_an_opset_from_which_on_it_is_supported() -> None:
    """jaxonnxruntime has no Relu of opset 13."""
    case = Case("relu", "RNN", {"activations": ["Relu"]}, N=8)
    for opset, operator in {13: "Max", 14: "Relu"}.items():
        lowered = rl.lower(model(case, opset), target="jaxonnxruntime")
        assert operators(lowered) & {"Max", "Relu"} == {operator}
        assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.parametrize("ir_version", [3, 8])
def test_jaxonnxruntime_gets_sizes_and_axes_as_initializers(ir_version: int) -> None:
    """It takes those of a Split or a Slice from there only, and exporters write Constants."""
    net = parse("""g (float[2, 3, 4] x) => (float[a, b, c, d] y) {
        s = Constant <value_ints = [1, 2]> () k = Constant <value = int64[1] {1}> ()
        p, q = Split <axis = 1> (x, s) y = Unsqueeze (q, k) }""")
    net.ir_version = ir_version
    lowered = rl.lower(net, target="jaxonnxruntime")
    assert ("Constant" in operators(lowered)) == (ir_version < 4)
    feed = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4)}
    assert_close(run(lowered, feed), run(net, feed))


def test_tract_gets_no_declared_shapes_of_computed_values() -> None:
    """tract unifies them with what it infers, and exporters write those of other sizes. What a graph returns keeps
    its own, and a model without recurrent nodes loses them, too."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[T, N, 2] X, float[1, 4, 2] W, float[1, 4, 4] R)
        => (float[T, 1, N, 4] Y) <float[T, N, 2] inner> {{ inner = Relu(X)
        {} }}"""
    for node in (
        "Y = RNN<hidden_size: int = 4>(inner, W, R)",
        "a = MatMul(inner, W) b = MatMul(a, R) Y = Unsqueeze(b, i)",
    ):
        named = onnx.parser.parse_model(
            text.format(node)
            .replace("float[1, 4, 2] W", "float[1, 2, 4] W" if "MatMul" in node else "float[1, 4, 2] W")
            .replace("R)", "R, int64[1] i)" if "MatMul" in node else "R)", 1)
        )
        kept, lowered = rl.lower(named), rl.lower(named, target="tract")
        assert "inner" in {value.name for value in kept.graph.value_info}
        assert not {value.name for value in lowered.graph.value_info} & {"inner", "a", "b"}
        assert [d.dim_param for d in lowered.graph.output[0].type.tensor_type.shape.dim] == ["T", "", "N", ""]


def test_tract_gets_no_declared_shapes_of_what_takes_the_place_of_a_node() -> None:
    net = parse(
        """g (float[N, 5] x) => (float[N, 5] y) <float s = {0.1}, int8 z = {0}> {
        a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)  p = Softmax <axis = -1> (b)
        q = QuantizeLinear (p, s, z)  y = DequantizeLinear (q, s, z) }""",
        17,
    )
    lowered = rl.lower(net, target="tract")
    assert "Softmax" not in operators(lowered)
    assert "p" not in {value.name for value in lowered.graph.value_info}


def test_for_onnxruntime() -> None:
    """A Gemm per activation, which it fuses, and one loop for both directions of a small node."""
    case = Case("fused", "LSTM", {"direction": "bidirectional"}, H=16, N=1)
    lowered = rl.lower(model(case, 17), target="onnxruntime")
    (scan,) = [n for n in lowered.graph.node if n.op_type == "Scan"]
    body = next(a.g for a in scan.attribute if a.name == "body")
    counts = [n.op_type for n in body.node if n.op_type not in ("Constant",)]
    assert counts.count("Gemm") == 2
    assert not {"MatMul", "Unsqueeze"} & set(counts)
    assert len(counts) <= 11
    assert_close(run(lowered, feed(case)), expected(case))


@pytest.mark.parametrize(("op_type", "most"), [("RNN", 3), ("GRU", 11), ("LSTM", 11)])
def test_operators_per_step_for_onnxruntime(op_type: str, most: int) -> None:
    attributes = {"linear_before_reset": 1} if op_type == "GRU" else {}
    lowered = rl.lower(model(Case("fused", op_type, attributes, H=256), 17), target="onnxruntime")
    bodies = [a.g for n in lowered.graph.node for a in n.attribute if a.name == "body"]
    assert [len(body.node) <= most for body in bodies] == [True]


def test_unknown_targets() -> None:
    with pytest.raises(rl.UnsupportedError, match=r"'cray' does not .* to=\"unroll\" .* rl.TARGETS lists 30$"):
        rl.lower(model(UNKNOWN, 17), target="cray")  # type: ignore[call-overload]
    with pytest.raises(SystemExit) as end:
        main(["in.onnx", "out.onnx", "--target", "cray"])
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("trt", "tensorrt"),
        ("TensorRT", "tensorrt"),
        ("NVIDIA", "tensorrt"),
        ("TVM", "tvm"),
        ("ORT", "onnxruntime"),
        ("onnxruntime_web", "onnxruntime-web"),
        ("ST Edge AI", "stedgeai"),
        ("Core ML", "coreml"),
    ],
)
def test_other_names_of_targets(given: Any, name: str) -> None:
    assert rl.Lowering(target=given).target == name


def test_the_options(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # each target has one line
    case = Case("option", "LSTM")
    onnx.save(model(case, 17), tmp_path / "in.onnx")
    assert main([str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--target", "tvm", "-q"]) == 0
    assert not operators(onnx.load(tmp_path / "out.onnx")) & {"Scan", "Loop", "LSTM"}
    with pytest.raises(SystemExit) as end:
        main(["--targets"])
    assert end.value.code == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:] if line.startswith(" ")]
    assert [row[0] for row in rows] == list(TARGETS)
    assert ["tinygrad", "measured", "0.14.0", "unroll", "any", "any"] in rows
    assert [row[1] for row in rows] == [target.evidence for target in TARGETS.values()]


def test_the_report_names_it(tmp_path: Any) -> None:
    onnx.save(model(Case("report", "RNN"), 17), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", target="tract", verify=0)
    assert report.target == "tract"
    assert report.to_dict()["target"] == "tract"
    assert [node.reason for node in report.nodes] == ["first choice for target tract"]


def test_the_reason_is_that_of_the_form() -> None:
    """OpenVINO has an operator for the Scan of an LSTM, and runs short nodes fastest unrolled."""
    for operator, form, reason in (
        ("LSTM", "scan", "openvino runs this Scan as an operator of its own"),
        ("GRU", "unroll", "fastest in openvino for up to 100 steps"),
    ):
        _, report = rl.lower(model(Case("reason", operator, T=16), 17), target="openvino", full=True)
        assert [(node.form, node.reason) for node in report.nodes] == [(form, reason)]
    for T, form in ((100, "unroll"), (101, "loop")):
        (preview,) = rl.preview(model(Case("long", "GRU", T=T), 17), target="openvino")
        assert preview.form == form


@pytest.mark.parametrize(("target", "to"), [("mnn", "unroll"), ("mnn", "loop"), ("ncnn", "unroll")])
def test_outputs_that_nodes_read_are_apart(target: Any, to: Any) -> None:
    """MNN drops such an output or its shape, and the converter of ncnn aborts at an Identity of one."""
    case = Case("read", "LSTM")
    net = model(case, 17)
    for symbol in case.results:
        net.graph.node.append(onnx.helper.make_node("Relu", [symbol], [f"read {symbol}"]))
        net.graph.output.append(
            onnx.helper.make_tensor_value_info(f"read {symbol}", 1, [None] * (4 if symbol == "Y" else 3))
        )
    lowered = rl.lower(net, to, target=target)
    read = {name for node in lowered.graph.node for name in node.input}
    assert not read & {value.name for value in lowered.graph.output}
    assert_close(run(lowered, feed(case)), run(net, feed(case)))


@pytest.mark.parametrize("to", ["unroll", "loop"])
def test_relu_of_an_output_is_max_in_mnn(to: Any) -> None:
    """MNN fuses Relu with the sum that it reads, and loses the sum: the cell state is an output of each body."""
    case = Case("keras", "LSTM", {"activations": ["Sigmoid", "Relu", "Relu"]})
    lowered = rl.lower(model(case, 17), to, target="mnn")
    graphs = [lowered.graph, *(a.g for node in lowered.graph.node for a in node.attribute if a.HasField("g"))]
    for graph in graphs:
        given = {value.name for value in graph.output}
        assert not [node for node in graph.node if node.op_type == "Relu" and given & set(node.input)]
    assert {"Max", "Relu"} <= operators(lowered)
    assert_close(run(lowered, feed(case)), expected(case))
    old = rl.lower(model(case, 7), to, target="mnn")  # whose Max does not broadcast
    assert {"Clip", "Relu"} <= operators(old)
    assert_close(run(old, feed(case)), expected(case))


@pytest.mark.few(1)
@pytest.mark.parametrize("opset", [11, 14, 21])
def test_on_webgpu_no_integer_is_64_bits_and_no_shader_has_more_than_8_buffers(opset: int) -> None:
    """Lengths that are an input are computed in int32, and 60 steps are split in groups."""
    for op_type in ("RNN", "GRU", "LSTM"):
        case = Case("webgpu", op_type, {"direction": "reverse"}, T=60, N=3, optional=("B", "sequence_lens"))
        lowered = rl.lower(model(case, opset), target="onnxruntime-webgpu")
        assert max(len(node.output) for node in lowered.graph.node) < 8
        assert not operators(lowered) & {"Loop", "Scan", "If", "Shape", "Softsign"}
        inferred = onnx.shape_inference.infer_shapes(lowered, strict_mode=True, data_prop=True)
        computed = {name for node in lowered.graph.node for name in node.output}
        types = {v.type.tensor_type.elem_type for v in inferred.graph.value_info if v.name in computed}
        assert onnx.TensorProto.INT32 in types
        assert onnx.TensorProto.INT64 not in types
        assert_close(run(lowered, feed(case)), expected(case))


def test_webgpu_has_kernels_of_opsets_11_to_21() -> None:
    for opset, limit in ((10, "11 or later"), (22, "21 or earlier")):
        with pytest.raises(rl.UnsupportedError, match=f"onnxruntime-webgpu supports opset {limit}"):
            rl.lower(model(Case("opsets", "GRU"), opset), target="onnxruntime-webgpu", keep_rest=True)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (
            """g (double[5, 2, 3] X, double[1, 4, 3] W, double[1, 4, 4] R) => (double[5, 1, 2, 4] Y) {
                Y = RNN <hidden_size = 4> (X, W, R) }""",
            "RNN node '-> Y'",
        ),
        (
            """g (double[3] h, double[5, 3] X) => (double[3] Y, double[5, 3] Z) {
                Y, Z = Scan <num_scan_inputs = 1,
                    body = b (double[3] s, double[3] x) => (double[3] t, double[3] z) {
                    t = Add (s, x)  z = Neg (t) }> (h, X) }""",
            "Scan node '-> Y'",
        ),
    ],
)
def test_webgpu_has_no_float64(text: str, node: str) -> None:
    said = f"{node} in main graph: onnxruntime-webgpu has no float64; export the model in float32"
    with pytest.raises(rl.UnsupportedError, match=said):
        rl.lower(parse(text), target="webgpu")
    assert recurrent_left(rl.lower(parse(text), target="onnxruntime-web")) == []
    single = rl.lower(parse(text.replace("double", "float")), target="webgpu")
    assert not operators(single) & {"RNN", "Scan"}


def test_each_rewrite_says_why() -> None:
    tried = [target for target in TARGETS.values() if not target.documented and target.name != "portable"]
    rules = [rule for target in tried for _, rule in target.instead] + [f for t in tried for f in t.finish]
    assert rules
    assert all(getattr(rule, "func", rule).__doc__ for rule in rules)


def test_other_names_mean_one_target() -> None:
    known = [*TARGETS, *(name for target in TARGETS.values() for name in target.other_names)]
    assert len(set(known)) == len(known)
    assert all(target_named(name) is target for name, target in TARGETS.items())
    assert all(target_named(other) is target for target in TARGETS.values() for other in target.other_names)


def test_tensors_of_too_many_axes_are_refused() -> None:
    """QNN's HTP computes tensors of at most 5; fewer heads of queries than of states need 6."""
    for T in (5, 17, 40):
        for by_key in (False, True):
            case = Attention(T=T, by_key=by_key, opset=17)
            assert "LinearAttention" not in operators(rl.lower(case.model(), target="qnn"))
    with pytest.raises(rl.UnsupportedError, match=r"at most 5 axes, .* some of 6; use another runtime"):
        rl.lower(Attention(Hq=2, H=4, n=2, opset=17).model(), target="qnn")


def test_far_below_zero_an_exp_is_bounded_for_qnn() -> None:
    """The HTP's is 131008 at -300."""
    attributes = {"activations": ["Softplus"]}
    lowered = rl.lower(model(Case("far", "RNN", attributes, T=1, N=1), 17), target="qnn")
    producers = {name: node for node in lowered.graph.node for name in node.output}
    exps = [node for node in lowered.graph.node if node.op_type == "Exp"]
    assert [producers[node.input[0]].op_type for node in exps] == ["Clip"]


@pytest.mark.parametrize(("alpha", "beta", "kept"), [(1.0, 0.0, False), (0.0, 0.5, False), (0.2, 0.5, True)])
def test_a_hard_sigmoid_with_a_zero_is_composed_for_openvino(alpha: float, beta: float, kept: bool) -> None:
    """It takes the default in place of a 0."""
    attributes = {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [alpha], "activation_beta": [beta]}
    case = Case("hard", "GRU", attributes)
    lowered = rl.lower(model(case, 17), target="openvino")
    assert ("HardSigmoid" in operators(lowered)) == kept
    assert_close(run(lowered, feed(case)), expected(case))


def test_each_conv_names_its_strides_for_ezkl() -> None:
    lowered = rl.lower(causal_conv.model(causal_conv.ConvCase(MS)), target="ezkl")
    convs = [node for node in lowered.graph.node if node.op_type == "Conv"]
    assert [any(a.name == "strides" for a in node.attribute) for node in convs] == [True]


def test_an_output_without_numbers_stays_a_copy_for_executorch() -> None:
    """The state of a kernel of 1: ExecuTorch aborts at a Max of nothing."""
    conv = dataclasses.replace(causal_conv.STANDARD, domain=MS, opset=17, kernel=1)
    lowered = rl.lower(causal_conv.model(conv), target="executorch")
    assert "Max" not in operators(lowered)
    assert_close(run(lowered, causal_conv.feed(conv)), causal_conv.expected(conv))


@pytest.mark.parametrize("target", ["ncnn", "rknn", "litert", "ezkl", "executorch"])
def test_a_state_that_is_an_output_twice_is_computed_twice(target: Any) -> None:
    """These runtimes lose or reject an output that is an Identity."""
    case = Case("twice", "GRU", T=3, N=1, outputs=("Y", "Y_h"))
    step = rl.lower(model(case, 17), target=target, stream="X:0=1")
    made = {output: node for node in step.graph.node for output in node.output}
    assert "Identity" not in {made[output.name].op_type for output in step.graph.output}
    given, state = feed(case)["X"], dict[str, Any]()
    for frame in given:
        fed = {value.name: state.get(value.name) for value in step.graph.input[1:]}
        zeros = {name: np.zeros((1, 1, case.H), np.float32) for name, array in fed.items() if array is None}
        got = run(step, {"X": frame[None]} | fed | zeros)
        state = {step.graph.input[1].name: got[step.graph.output[2].name]}
    assert_close({"Y_h": got["Y_h"]}, {"Y_h": expected(case)["Y_h"]})


@pytest.mark.parametrize(
    ("channels", "outputs", "wide"), [(9, 4, True), (9, 5, False), (12, 4, False), (3, 4, False)]
)
def test_convolutions_that_webgpu_misreads_get_an_output_channel(channels: int, outputs: int, wide: bool) -> None:
    """Of input channels in threes and output channels in fours."""
    case = Case("behind", "GRU", T=3, N=1, I=outputs, outputs=("Y_h",))
    original, rng = model(case, 17), np.random.default_rng(0)
    weights = rng.standard_normal((outputs, channels, 1)).astype(np.float32)
    held = {"K": weights, "bias": rng.standard_normal(outputs).astype(np.float32)}
    original.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in held.items())
    del original.graph.input[0]
    original.graph.input.append(onnx.helper.make_tensor_value_info("image", 1, [1, channels, 3]))
    before = [
        onnx.helper.make_node("Conv", ["image", "K", "bias"], ["mixed"], name="conv"),
        onnx.helper.make_node("Transpose", ["mixed"], ["X"], perm=[2, 0, 1]),
    ]
    nodes = [*before, *original.graph.node]
    del original.graph.node[:]
    original.graph.node.extend(nodes)
    lowered = rl.lower(original, target="onnxruntime-webgpu")
    sizes = {each.name: each.dims[0] for each in lowered.graph.initializer}
    (conv,) = (node for node in lowered.graph.node if node.op_type == "Conv")
    assert [sizes[name] for name in conv.input[1:]] == [outputs + wide] * 2
    given = {"image": rng.standard_normal((1, channels, 3)).astype(np.float32)}
    assert_close(run(lowered, given), run(original, given))


EMBEDDING = """
    embedded (KIND[4, 1] ids) => (float[4, 1, 1, 2] Y)
    <float[5, 3] table = {VALUES}, float[1, 2, 3] W = {}, float[1, 2, 2] R = {}, KIND one = {1}> {
        found = INDEX
        x = Gather <axis = 0> (table, found)
        Y = RNN <hidden_size = 2> (x, W, R)
    }
"""


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("opset", [11, 12, 17])
def test_pnnx_looks_rows_up_in_a_table(kind: str, opset: int) -> None:
    """It runs the model on any integers, so an index is clipped to the rows; and ncnn does not load axis = 0."""
    table = ", ".join(map(str, range(15)))
    text = EMBEDDING.replace("KIND", kind).replace("VALUES", table).replace("INDEX", "Identity (ids)")
    original = parse(text, opset)
    lowered, report = rl.lower(original, target="ncnn", full=True)
    (gather,) = (node for node in lowered.graph.node if node.op_type == "Gather")
    assert not gather.attribute
    assert ("Clip" in operators(lowered)) == (opset >= 12)
    assert any("changed 1 Gather" in note for note in report.notes)
    given = {"ids": np.array([[0], [3], [-5], [2]], kind)}
    assert_close(run(lowered, given), run(original, given))
    if opset >= 12:
        run(lowered, {"ids": np.full((4, 1), 1_046_031_954, kind)})  # such as pnnx feeds
    assert "Gather" not in " ".join(rl.lower(original, target="mnn", full=True)[1].notes)


NO_STEP = """
    loops (float[5, 3] X) => (float[3] last, float[0, 3] ys) <float[3] zeros = {0, 0, 0}> {
        trips = Constant <value = int64 {0}> ()
        true = Constant <value = bool {1}> ()
        last, ys = Loop (trips, true, zeros) <
            body = b (int64 i, bool c, float[3] h) => (bool k, float[3] g, float[3] y) {
            k = Identity (c)
            x = Gather <axis = 0> (X, i)
            g = Add (h, x)
            y = Identity (g)
        }>
    }
"""


@pytest.mark.parametrize("target", ["ezkl", "mnn", "ncnn", "onnxruntime-webgpu", "opencv", "qnn", "rknn", "webnn"])
def test_an_output_without_elements_is_refused_where_it_is_lost(target: Any) -> None:
    """pnnx crashes; the others reject it, or return no array."""
    with pytest.raises(
        rl.UnsupportedError, match=r"takes no output without elements, such as 'ys' \[0, 3\]"
    ) as found:
        rl.lower(parse(NO_STEP), target=target)
    assert found.value.node is not None
    assert found.value.node.operator == "Loop"
    assert "remove this output" in found.value.hint
    cut = parse(NO_STEP)
    del cut.graph.output[1]
    assert_close(run(rl.lower(cut, target=target), random_feed(cut)), {"last": np.zeros(3, np.float32)})


@pytest.mark.parametrize("target", ["onnx2torch", "executorch", "tvm"])
def test_an_output_that_is_a_constant_is_that_of_a_node(target: Any) -> None:
    """onnx2torch does not find an initializer that is an output."""
    lowered = rl.lower(parse(NO_STEP), target=target)
    made = {output for node in lowered.graph.node for output in node.output}
    assert {output.name for output in lowered.graph.output} <= made
    assert_close(run(lowered, random_feed(lowered)), run(parse(NO_STEP), random_feed(lowered)))


@pytest.mark.parametrize(
    ("nodes", "hint"),
    [
        ("n = Identity (a)", 'make them constants: set_inputs={"a": numpy.load("FILE.npy")}'),
        ("f = Cast <to = 1> (a)  r = Bernoulli (f)  n = Cast <to = 6> (r)", "export the model without lengths"),
    ],
)
def test_lengths_that_no_option_makes_constant(nodes: str, hint: str) -> None:
    """What is drawn at random is no constant, though its inputs are."""
    model = parse(
        f"""g (float[T,2,3] X, int32[2] a) => (float[T,1,2,4] Y) <float[1,12,3] W = {{}}, float[1,12,4] R = {{}}> {{
        {nodes}  Y = GRU <hidden_size = 4> (X, W, R, , n) }}"""
    )
    with pytest.raises(rl.UnknownLengthsError) as caught:
        rl.lower(model, target="coreml")
    assert caught.value.hint.startswith(hint)


def test_the_table_prints_short() -> None:
    assert repr(TARGETS).startswith(f"<{len(TARGETS)} targets: portable, onnxruntime, ")


def test_only_words_that_are_shown_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--targets", "tvm", "apachetvm"])
    said = capsys.readouterr().out
    assert "measured: " in said
    assert "documented: " not in said
    assert "other names: tvm (apachetvm)" in said
