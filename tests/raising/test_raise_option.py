"""`--raise-loops`: what becomes of other nodes, what is said of each Loop, and a Loop without a step."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from commands import Command
from onnx import numpy_helper
from running import assert_close, nodes, run
from texts import parse

import rnn_lowering as rl

GRU, LSTM, RNN = "GRU", "LSTM", "RNN"
GATES = {RNN: 1, GRU: 3, LSTM: 4}
H, I = 3, 2  # noqa: E741


def weights(op_type: str) -> dict[str, np.ndarray]:
    rng, gates = np.random.default_rng(5), GATES[op_type]
    shapes = {"W": (1, gates * H, I), "R": (1, gates * H, H), "B": (1, 2 * gates * H)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def model_of(op_type: str, attributes: str = "", state: str = "h0", name: str = "cell") -> onnx.ModelProto:
    """One node, whose name is `cell`."""
    model = parse(f"""g (float[T,N,{I}] X, float[1,N,{H}] h0) => (float[T,1,N,{H}] Y, float[1,N,{H}] Y_h) {{
        Y, Y_h = {op_type} <hidden_size = {H}{attributes}> (X, W, R, B, "", {state}) }}""")
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights(op_type).items())
    model.graph.node[0].name = name
    return model


def looped(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """The model with a Loop, as if an exporter had written it."""
    new: onnx.ModelProto = rl.lower(model, to="loop", **options)
    copy = onnx.ModelProto()
    copy.ParseFromString(new.SerializeToString())
    return copy


def kinds(model: onnx.ModelProto) -> list[str]:
    """The cells and loops of a model."""
    return [node.op_type for node in nodes(model) if node.op_type in ("Loop", "Scan", *GATES)]


def feed(T: int, N: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(T)
    return {"X": rng.normal(size=(T, N, I)).astype(np.float32), "h0": rng.normal(size=(1, N, H)).astype(np.float32)}


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("form", ["scan", "loop"])
def test_a_lowering_is_undone(op_type: str, form: Any) -> None:
    model = model_of(op_type)
    new = rl.lower(onnx.load_from_string(rl.lower(model, to=form).SerializeToString()), raise_loops=True)
    assert kinds(new) == [op_type]
    assert_close(run(new, feed(5)), run(model, feed(5)), "float32")


def test_alone_it_keeps_other_nodes() -> None:
    both = onnx.compose.merge_models(looped(model_of(GRU)), model_of(RNN), io_map=[], prefix1="a_", prefix2="b_")
    new, report = rl.lower(both, raise_loops=True, full=True)
    assert sorted(kinds(new)) == [GRU, RNN]
    assert [(loop.operator, loop.form) for loop in report.loops] == [("Loop", GRU)]
    assert report.nodes == []


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"to": "scan"}, ["Scan"]),
        ({"lower_loops": True}, ["Scan"]),
        ({"target": "mnn"}, ["Loop"]),
        ({"to": "keep"}, [GRU]),
    ],
)
def test_with_a_form_or_target_the_node_is_lowered(options: Any, left: list[str]) -> None:
    new, report = rl.lower(looped(model_of(GRU)), raise_loops=True, full=True, **options)
    assert kinds(new) == left
    assert [loop.form for loop in report.loops] == [GRU]
    assert_close(run(new, feed(5)), run(model_of(GRU), feed(5)), "float32")


def test_a_stream_has_the_state_of_the_node() -> None:
    new, report = rl.lower(looped(model_of(GRU, state='""')), raise_loops=True, stream="T=1", full=True)
    assert kinds(new) == []
    assert report.stream is not None
    assert [state.shape for state in report.stream.states] == [(1, "N", H)]


def test_a_model_of_which_nothing_is_raised_stays() -> None:
    summed = parse("""g (float[T,2] X, float[2] s0) => (float[2] s) {
        s = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] x) => (float[2] c) {
            c = Add (a, x) }> (s0, X) }""")
    new, report = rl.lower(summed, raise_loops=True, full=True)
    assert new == summed
    assert report.left == ["Scan node '-> s' in main graph: not raised: its step computes no RNN, GRU or LSTM"]


def test_one_that_stays_is_as_it_was_beside_one_that_is_raised() -> None:
    model = looped(model_of(GRU))
    other = parse("""g (float[5,2] Z, int64 M) => (float[M,2] rows) <bool yes = {1}> {
        rows = Loop (M, yes) <body = b (int64 i, bool c) => (bool c1, float[2] row) {
            x = Gather (Z, i) row = Erf (x) c1 = Identity (c) }> }""")
    both = onnx.compose.merge_models(model, other, io_map=[], prefix1="a_", prefix2="b_")
    new = rl.lower(both, raise_loops=True)
    assert sorted(kinds(new)) == [GRU, "Loop"]
    both = onnx_ir.to_proto(onnx_ir.from_proto(both))  # the parser writes empty names
    (before,) = [node for node in both.graph.node if node.op_type == "Loop" and "b_rows" in node.output]
    (after,) = [node for node in new.graph.node if node.op_type == "Loop"]
    assert before == after


def test_float64_stays_a_loop() -> None:
    """onnxruntime has no kernel of the node."""
    model = parse("""g (double[T,2] X, double[2] s0) => (double[2] s) <double[2,2] R = {0.1, 0.2, 0.3, 0.4}> {
        s = Scan <num_scan_inputs = 1, body = b (double[2] a, double[2] x) => (double[2] c) {
            p = MatMul (a, R) q = Add (p, x) c = Tanh (q) }> (s0, X) }""")
    new, report = rl.lower(model, raise_loops=True, full=True)
    assert new == model
    assert "onnxruntime has no RNN, GRU and LSTM of double" in report.left[0]


def test_without_a_step_the_loop_returns_its_first_state() -> None:
    """The node returns zeros."""
    body = "p = MatMul (a, R) q = Add (p, x) c = Tanh (q) d = Identity (g)"
    model = parse(f"""g (float[T,2] X, float[1,2] s0, int64 M) => (float[1,2] s)
        <bool yes = {{1}}, float[2,2] R = {{0.1, 0.2, 0.3, 0.4}}> {{
        s = Loop (M, yes, s0) <body = b (int64 i, bool g, float[1,2] a) => (bool d, float[1,2] c) {{
            x = Gather (X, i) {body} }}> }}""")
    new = rl.lower(model, raise_loops=True)
    assert kinds(new) == [RNN]
    for M in (0, 1, 3):
        given = {"X": np.ones((3, 2), np.float32), "s0": np.ones((1, 2), np.float32), "M": np.array(M)}
        assert_close(run(new, given), run(model, given), "float32")


def test_a_gru_that_may_have_no_step_is_named() -> None:
    _, report = rl.lower(looped(model_of(GRU)), raise_loops=True, full=True)
    assert any("with T = 0 onnxruntime ends the process; feed at least" in note for note in report.notes)
    _, fixed = rl.lower(looped(model_of(GRU)), raise_loops=True, dims={"T": 4}, full=True)
    assert not any("T = 0" in note for note in fixed.notes)


def test_a_model_without_loops_has_nothing_to_raise() -> None:
    _, report = rl.lower(model_of(GRU), raise_loops=True, full=True)
    assert "no Loop or Scan to raise, and no loop that was traced step by step" in report.notes


def test_a_state_whose_next_value_no_polynomial_gives_is_named() -> None:
    model = parse("""g (float[T,2] X, float[1,2] s0, int64 M) => (float[1,2] s)
        <bool yes = {1}, float[1,2] R = {0.1, 0.2}> {
        s = Loop (M, yes, s0) <body = b (int64 i, bool g, float[1,2] a) => (bool d, float[1,2] c) {
            c = Identity (R) d = Identity (g) }> }""")
    _, report = rl.lower(model, raise_loops=True, full=True)
    assert "the next value of its state 'a' does not depend on a state or row" in str(report.left)


def test_a_state_whose_next_value_is_not_known_is_named() -> None:
    model = parse("""g (float[T,2] X, float[N,2] s0, int64 M) => (float[N,2] s)
        <bool yes = {1}, int64[1] zero = {0}, int64[1] one = {1}> {
        s = Loop (M, yes, s0) <body = b (int64 i, bool g, float[N,2] a) => (bool d, float[N,2] c) {
            r = Slice (a, zero, one, zero) c = Add (a, r) d = Identity (g) }> }""")
    _, report = rl.lower(model, raise_loops=True, full=True)
    assert "the next value of its state 'a' is not known" in str(report.left)


def test_only_and_except_hold() -> None:
    model = looped(model_of(GRU))
    assert kinds(rl.lower(model, raise_loops=True, except_="Loop")) == ["Loop"]
    assert kinds(rl.lower(model, raise_loops=True, only="Loop")) == [GRU]


def test_the_command_says_what_became_of_a_loop(tmp_path: Path, rnn_lower: Command) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(looped(model_of(GRU)), source)
    done = rnn_lower(source, target, "--raise-loops")
    assert done.code == 0
    assert "in main graph: GRU" in done.out
    assert "verified" in done.out
    assert kinds(onnx.load(target)) == [GRU]
    assert "it computes one" in rnn_lower(source, "--list", "--raise-loops").out


STEP = "p = MatMul (a, R) q = Add (p, x) t = Add (q, bias) c = Tanh (t)"
OPEN_SIZES = {
    "the rows of the batch have numbers": """zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> () last = Constant <value = int64[1] {1}> ()
        sizes = Shape (a) N = Gather (sizes, zero) n = Range (zero, N, one) later = Less (one, n)
        f = Cast <to = 1> (later) bias = Unsqueeze (f, last)""",
    "the size of the batch is a factor": """zero = Constant <value = int64 {0}> () sizes = Shape (a)
        N = Gather (sizes, zero) f = Cast <to = 1> (N) half = Constant <value = float {0.5}> ()
        bias = Mul (f, half)""",
    "constants are summed": """axis = Constant <value = int64[1] {0}> ()
        sizes = Shape (a) filled = ConstantOfShape <value = float[1] {0.5}> (sizes)
        bias = ReduceSum <keepdims = 1> (filled, axis)""",
    "constants are cut": """sizes = Shape (a) f = ConstantOfShape <value = float[1] {0.5}> (sizes)
        two = Constant <value = float[2,2] {0., 0., 0., 0.}> () both = Concat <axis = 0> (two, f)
        from = Constant <value = int64[1] {0}> () to = Constant <value = int64[1] {-2}> ()
        bias = Slice (both, from, to, from)""",
}


@pytest.mark.parametrize("bias", OPEN_SIZES)
def test_an_open_size_is_in_no_weight(bias: str) -> None:
    """With two sequences, each of these steps is that of an RNN."""
    model = parse(f"""g (float[T,N,2] X, float[N,2] s0) => (float[N,2] s) <float[2,2] R = {{0.1, 0.2, 0.3, 0.4}}> {{
        s = Scan <num_scan_inputs = 1, body = b (float[N,2] a, float[N,2] x) => (float[N,2] c) {{
            {OPEN_SIZES[bias]} {STEP} }}> (s0, X) }}""")
    given = {"X": np.ones((3, 4, 2), np.float32), "s0": np.ones((4, 2), np.float32)}
    assert np.isfinite(run(model, given)["s"]).all()
    assert rl.lower(model, raise_loops=True) == model


def test_the_size_of_the_batch_may_be_a_shape() -> None:
    model = parse(f"""g (float[T,N,2] X, float[N,2] s0) => (float[N,2] s) <float[2,2] R = {{0.1, 0.2, 0.3, 0.4}}> {{
        s = Scan <num_scan_inputs = 1, body = b (float[N,2] a, float[N,2] x) => (float[N,2] c) {{
            sizes = Shape (a) bias = ConstantOfShape <value = float[1] {{0.5}}> (sizes) {STEP} }}> (s0, X) }}""")
    new = rl.lower(model, raise_loops=True)
    assert kinds(new) == [RNN]
    given = {"X": np.ones((3, 4, 2), np.float32), "s0": np.ones((4, 2), np.float32)}
    assert_close(run(new, given), run(model, given), "float32")


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axis", "moves"), [(17, 1, True), (17, -1, True), (17, 0, True), (12, 1, False)])
def test_a_head_with_a_softmax_leaves_the_loop(op_type: str, opset: int, axis: int, moves: bool) -> None:
    """Behind a Gemm, as nn.Linear and softmax in a step; axis 0 of a row is the batch."""
    rng = np.random.default_rng(0)
    weights = {"W": (2, 3), "R": (3, 3), "V": (4, 3), "b": (4,)}
    model = parse(
        f"""g (float[T,2,2] X, float[2,3] s0) => (float[2,3] s, float[T,2,4] ys) {{
        s, ys = Scan <num_scan_inputs = 1, body = b (float[2,3] h, float[2,2] x) => (float[2,3] n, float[2,4] y) {{
            p = MatMul (h, R) q = MatMul (x, W) r = Add (p, q) n = Tanh (r)
            l = Gemm <transB = 1> (n, V, b) y = {op_type} <axis = {axis}> (l) }}> (s0, X) }}""",
        opset=opset,
    )
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in weights.items()}
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    new = rl.lower(model, raise_loops=True)
    assert kinds(new) == [RNN if moves else "Scan"]
    for T in (1, 5):
        given = {"X": rng.normal(size=(T, 2, 2)), "s0": rng.normal(size=(2, 3))}
        feed = {name: array.astype(np.float32) for name, array in given.items()}
        assert_close(run(new, feed), run(model, feed), "float32")


def test_a_head_is_left_behind_the_node() -> None:
    """A Dense layer and a Sigmoid that a step computes of h and stacks."""
    model = parse(f"""g (float[T,N,2] X, float[N,2] s0) => (float[T,N,3] y)
        <float[2,2] R = {{0.1, 0.2, 0.3, 0.4}}, float[2,3] D = {{1., 2., 3., 4., 5., 6.}},
         float[2] bias = {{1., 2.}}> {{
        s, y = Scan <num_scan_inputs = 1, body = b (float[N,2] a, float[N,2] x) => (float[N,2] c, float[N,3] o) {{
            {STEP} d = MatMul (c, D) o = Sigmoid (d) }}> (s0, X) }}""")
    new = rl.lower(model, raise_loops=True)
    assert kinds(new) == [RNN]
    given = {"X": np.ones((3, 4, 2), np.float32), "s0": np.ones((4, 2), np.float32)}
    assert_close(run(new, given), run(model, given), "float32")


@pytest.mark.parametrize("op_type", [GRU, LSTM])
def test_the_loop_for_onnxruntime_is_undone(op_type: str) -> None:
    """It stacks two parts of h, which an Add or a Mul joins behind it."""
    new = rl.lower(looped(model_of(op_type), target="onnxruntime"), raise_loops=True)
    assert kinds(new) == [op_type]
    assert_close(run(new, feed(5)), run(model_of(op_type), feed(5)), "float32")


def test_a_list_says_which_loop_could_be_a_node(tmp_path: Path, rnn_lower: Command) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(looped(model_of(GRU)), source)
    (preview,) = rl.preview(source)
    assert preview.reason.endswith("it computes a GRU: raise_loops=True")
    assert "it computes a GRU: --raise-loops" in rnn_lower(source, "--list").out
    assert "it computes a GRU: --raise-loops" in rnn_lower(source, "--list", "--to", "scan").out


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("op_type", "options", "integers"),
    [
        (LSTM, {}, "DynamicQuantizeLSTM"),
        (GRU, {"to": "scan"}, "MatMulInteger"),
        (GRU, {"to": "loop"}, "MatMulInteger"),
    ],
)
def test_a_quantizer_knows_the_node(tmp_path: Path, op_type: str, options: Any, integers: str) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    model = looped(model_of(op_type))
    onnx.save(rl.lower(model, raise_loops=True, **options), tmp_path / "float.onnx")
    quantization.quantize_dynamic(
        tmp_path / "float.onnx", tmp_path / "int8.onnx", extra_options={"EnableSubgraph": True}
    )
    quantized = onnx.load(tmp_path / "int8.onnx")
    assert integers in {node.op_type for node in nodes(quantized)}
    expected, found = run(model, feed(5)), run(quantized, feed(5))
    assert np.abs(found["Y"] - expected["Y"]).max() < 0.1


TANH = "p = MatMul (a, R) q = Add (p, x) c = Tanh (q)"
LARGE = {
    "a million sequences": ("[1000000,2]", "float[2,2] R = {0.1, 0.2, 0.3, 0.4}", TANH),
    "a product of sizes": (
        "[1000,1,1]",
        "float[1,1] R = {0.1}, int64[3] ones = {1,1,1}, int64[3] k = {1,4000,1}, int64[3] l = {1,1,4000}",
        """e = Expand (a, k) f = Expand (a, l) g = Mul (e, f) n = ReduceSum <keepdims = 1> (g) z = Sub (n, n)
           s = Add (a, z) t = Reshape (s, ones) p = Add (t, x) c = Tanh (p)""",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_hostile_sizes_end_soon(name: str) -> None:
    shape, constants, step = LARGE[name]
    sizes = shape.strip("[]")
    model = parse(f"""g (float[T,{sizes}] X, float{shape} s0) => (float{shape} s) <{constants}> {{
        s = Scan <num_scan_inputs = 1, body = b (float{shape} a, float{shape} x) => (float{shape} c) {{
            {step} }}> (s0, X) }}""")
    new, report = rl.lower(model, raise_loops=True, full=True)
    assert new == model
    assert "not raised" in report.left[0]


@pytest.mark.few(1)
@pytest.mark.parametrize(("units", "why"), [(128, "R is nearly empty"), (20_000, "a weight would need")])
def test_units_that_do_not_mix_stay_a_loop(units: int, why: str) -> None:
    """A node would multiply by a matrix of zeros."""
    model = parse(f"""g (float[T,1,{units}] X, float[1,{units}] s0) => (float[1,{units}] s) {{
        s = Scan <num_scan_inputs = 1, body = b (float[1,{units}] a, float[1,{units}] x) => (float[1,{units}] c) {{
            p = Mul (a, R) q = Add (p, x) c = Tanh (q) }}> (s0, X) }}""")
    weights = np.random.default_rng(1).normal(size=units).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "R"))
    new, report = rl.lower(model, raise_loops=True, full=True)
    assert new == model
    assert why in report.left[0]


def test_loops_of_one_name_in_two_scopes() -> None:
    """One that is no cell, in a branch, has the name of one that is."""
    model = looped(model_of(RNN))
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    other = onnx.NodeProto()
    other.CopyFrom(loop)
    (body,) = (attribute.g for attribute in other.attribute if attribute.name == "body")
    (tanh,) = (node for node in body.node if node.op_type == "Tanh")
    tanh.op_type = "Cos"
    other.output[:] = [f"other_{name}" for name in loop.output]
    kind = onnx.helper.make_tensor_value_info(other.output[0], onnx.TensorProto.FLOAT, None)
    branch = onnx.helper.make_graph([other], "branch", [], [kind])
    result = onnx.helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, None)
    model.graph.node.append(
        onnx.helper.make_node("If", ["yes"], ["result"], "if", then_branch=branch, else_branch=branch)
    )
    model.graph.input.append(onnx.helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
    model.graph.output.append(result)
    new, report = rl.lower(model, raise_loops=True, full=True)
    assert sorted(kinds(new)) == ["Loop", "Loop", RNN]
    assert [(loop.name, loop.scope) for loop in report.loops] == [(loop.name, "main graph")]
    given = {**feed(4), "yes": np.array(True)}
    assert_close(run(new, given), run(model, given), "float32")


@pytest.mark.few(2)
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("options", [{"to": "unroll"}, {"target": "tvm"}])
def test_a_loop_goes_through_the_node_if_that_is_smaller(op_type: str, options: Any) -> None:
    model = looped(model_of(op_type), dims={"T": 4})
    new, report = rl.lower(model, **options, full=True)
    assert [(loop.operator, loop.form) for loop in report.loops] == [("Loop", op_type)]
    assert [node.operator for node in report.nodes] == [op_type]
    as_loop = rl.lower(model, **options, only="Loop")
    assert len(list(nodes(new))) < len(list(nodes(as_loop)))
    assert_close(run(new, feed(4)), run(model_of(op_type), feed(4)), "float32")


@pytest.mark.parametrize(
    ("dims", "options"),
    [
        (None, {"to": "scan"}),  # it may have no step
        ({"T": 4}, {"to": "scan"}),  # a Loop of ours is smaller than a node's
        ({"T": 4}, {}),  # onnxruntime runs Loops: it is not lowered
        ({"T": 4}, {"except_": "Loop", "to": "unroll"}),
        ({"T": 4}, {"only": "Loop", "to": "unroll"}),
    ],
)
def test_a_loop_stays_one(dims: Any, options: Any) -> None:
    report = rl.lower(looped(model_of(GRU), dims=dims), **options, full=True)[1]
    assert "GRU" not in {loop.form for loop in report.loops}
    assert report.nodes == []
