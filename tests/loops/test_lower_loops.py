"""Which Loops and Scans are lowered, what else is in them, and what the limits count."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import running
from loop_models import as_meant, assert_same, bodies, operators, run
from loop_traps import TRAPS, numbers
from onnx import ModelProto, parser

import rnn_lowering as rl


def parsed(text: str) -> ModelProto:
    model: ModelProto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "f": 1]> {text}')
    return model


NESTED = parsed("""g (float[2] a, float[T,2] X) => (float[2] p) <bool yes = {1}, int64 z = {0}, int64 ten = {10}> {
    sh = Shape (X) M = Gather (sh, z)
    p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
        x = Gather (X, i)
        s1 = Loop (ten, yes, s) <body = e (int64 j, bool g, float[2] t) => (bool g1, float[2] t1) {
            t1 = Add (t, x) g1 = Identity (g) }>
        c1 = Identity (c) }> }""")

ROWS_AND_COLUMNS = parsed("""g (float[T,K] X, float s0) => (float sn) <bool yes = {1}, int64 z = {0}> {
    sh = Shape (X) M = Gather (sh, z)
    sn = Loop (M, yes, s0) <body = d (int64 i, bool c, float s) => (bool c1, float s1) {
        row = Gather (X, i)
        s1 = Scan <num_scan_inputs = 1, body = e (float t, float x) => (float t1) { t1 = Add (t, x) }> (s, row)
        c1 = Identity (c) }> }""")

WITH_LSTM = parsed("""g (float[5,1,2] X, float[1,1,3] h0, float[1,12,2] W, float[1,12,3] R) => (float[T,1,1,1,3] Y)
    <bool yes = {1}, int64 M = {5}> {
    h, Y = Loop (M, yes, h0) <body = d (int64 i, bool c, float[1,1,3] s)
        => (bool c1, float[1,1,3] s1, float[1,1,1,3] o) <int64[1] ax = {0}>
        { x = Gather (X, i) row = Unsqueeze (x, ax)
          o, s1 = LSTM <hidden_size = 3> (row, W, R, "", "", s) c1 = Identity (c) }> }""")

IN_A_FUNCTION = parsed("""g (float[2] a) => (float[2] p) <int64 two = {2}, int64 three = {3}> {
    q = f.twice (a, two) p = f.twice (q, three) }
    <domain: "f", opset_import: ["": 17]> twice (s, M) => (r) {
        yes = Constant <value = bool {1}> ()
        r = Loop (M, yes, s) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
            s1 = Add (s, s) c1 = Identity (c) }> }""")


BACKWARDS = parsed("""g (float[2] a, float[3,2] X) => (float[2] p)
    <bool yes = {1}, int64 M = {3}, int64[1] from = {-2}, int64[1] to = {-9}, int64[1] z = {0},
     int64[1] back = {-1}> {
    p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
        many = Unsqueeze (i, z) at = Slice (many, from, to, z, back) row = Gather (X, at) x = Squeeze (row, z)
        s1 = Add (s, x) c1 = Identity (c) }> }""")


def test_a_slice_from_before_the_first_element_takes_the_first() -> None:
    feed = {"a": numbers(2), "X": numbers(3, 2)}
    lowered = rl.lower(BACKWARDS, target="tvm")
    assert_same(run(lowered, feed), run(as_meant(BACKWARDS), feed))


def test_a_target_without_loops_gets_steps() -> None:
    feed = {"a": numbers(2), "X": numbers(3, 2)}
    lowered, report = rl.lower(NESTED, target="tvm", dims={"T": 3}, full=True)
    assert operators(lowered) == {"Add", "Gather"}
    assert_same(run(lowered, feed), run(as_meant(NESTED), feed))
    (loop,) = report.loops
    assert (loop.name, loop.operator, loop.form, loop.steps) == ("-> p", "Loop", "unroll", 3 + 3 * 10)
    assert any("Loop node '-> p' in main graph: unroll, 33 steps" in note for note in report.notes)


def test_a_target_that_runs_them_keeps_them() -> None:
    assert rl.lower(NESTED, target="onnxruntime") == NESTED


BOTH = parsed("""g (float[4,2] X, float[2] a, float[1,1,2] x, float[1,4,2] W, float[1,4,1] R) =>
    (float[2] p, float[2] q, float[1,1,1,1] Y) <bool yes = {1}, int64 M = {4}> {
    Y = LSTM <hidden_size = 1> (x, W, R)
    p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
        r = Gather (X, i) s1 = Add (s, r) c1 = Identity (c) }>
    q = Scan <num_scan_inputs = 1, body = e (float[2] t, float[2] r) => (float[2] t1)
        { t1 = Mul (t, r) }> (p, X) }""")


@pytest.mark.parametrize(("form", "left"), [("unroll", set()), ("scan", {"Scan"}), ("loop", {"Loop"})])
@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_a_form_holds_for_the_loops_of_the_model_too(target: Any, form: Any, left: set[str]) -> None:
    """Who asks for a form has a runtime without the others."""
    lowered, report = rl.lower(BOTH, form, target=target, full=True)
    assert operators(lowered) & {"Loop", "Scan", "LSTM"} <= left
    assert {loop.form for loop in report.loops} == {form}
    feed = {"X": numbers(4, 2), "a": numbers(2), "x": numbers(1, 1, 2)}
    feed |= {"W": numbers(1, 4, 2), "R": numbers(1, 4, 1)}
    assert_same(run(lowered, feed), run(as_meant(BOTH), feed))
    kept: Any
    for kept in ({"only": "LSTM"}, {"except_": ("Loop", "Scan")}):
        assert operators(rl.lower(BOTH, form, target=target, **kept)) >= {"Loop", "Scan"}
    assert operators(rl.lower(BOTH, form, target=target, except_="Loop")) >= {"Loop"}
    assert operators(rl.lower(BOTH, target="portable")) >= {"Loop", "Scan"}


def test_a_loop_that_cannot_have_the_form_names_what_to_add() -> None:
    with pytest.raises(rl.UnsupportedError, match="the number of its steps is not known") as caught:
        rl.lower(NESTED, "unroll")
    assert caught.value.hint.endswith('dims={"T": ?}, or keep it: except_="Loop"')
    assert rl.lower(NESTED, "unroll", except_="Loop") == NESTED
    assert not operators(rl.lower(NESTED, "unroll", dims={"T": 3})) & {"Loop", "Scan"}
    named = ModelProto.FromString(NESTED.SerializeToString())
    named.graph.node[2].name = "while loop"
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(named, "unroll")
    assert caught.value.hint.endswith('or keep it: except_="while loop"')
    assert "Loop" in operators(rl.lower(named, "unroll", except_="while loop"))
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(NESTED, "unroll", lower_loops=True)
    assert "except_" not in caught.value.hint


def test_the_size_that_a_loop_in_a_body_needs_is_named() -> None:
    with pytest.raises(rl.UnsupportedError, match="Scan node '-> s1' in Loop node '-> sn'") as caught:
        rl.lower(ROWS_AND_COLUMNS, target="tvm", dims={"T": 3})
    assert caught.value.hint == 'fix the sizes of the inputs, with a number for each ?: dims={"K": ?}'
    assert not operators(rl.lower(ROWS_AND_COLUMNS, target="tvm", dims={"T": 3, "K": 4})) & {"Loop", "Scan"}


def test_sizes_that_must_be_equal_are_named_together() -> None:
    """Keras gives each input names of its own, and adds them to each other."""
    model = parsed("""g (float[2, T] x, float[2, U] z, float[W] w) => (float[2] s, float[b] v)
        <int64 one = {1}, bool yes = {1}, float[2] h = {0, 0}> {
        c = Add (x, z) d = Shape (x) n = Gather (d, one) v = Neg (w) e = ReduceSum <keepdims = 0> (c)
        s = Loop (n, yes, h) <body = b (int64 i, bool y, float[2] r) => (bool y1, float[2] r1) {
            y1 = Identity (y) r1 = Add (r, e) }> }""")
    with pytest.raises(rl.UnsupportedError, match="the number of its steps is not known") as caught:
        rl.lower(model, "unroll")
    assert 'with a number for each ?: dims={"T": ?, "U": ?}' in caught.value.hint


def test_a_loop_that_depends_on_data_is_kept_in_one_way() -> None:
    model = parsed("""g (float a) => (float p) <int64 M = {9}, bool yes = {1}, float two = {2.0}> {
        p = Loop (M, yes, a) <body = d (int64 i, bool c, float s) => (bool c1, float s1) {
            s1 = Add (s, s) c1 = Less (s1, two) }> }""")
    ways: dict[Any, str] = {
        "portable": 'keep it: except_="Loop"',
        "tvm": "keep it, for a runtime that runs Loop (rl.TARGETS)",
    }
    for target, way in ways.items():
        with pytest.raises(rl.UnsupportedError, match="depends on data") as caught:
            rl.lower(model, "unroll", target=target)
        assert caught.value.hint == f"export it with a fixed number of steps, or {way}"


def test_an_unknown_length_names_the_option_that_fixes_it() -> None:
    with pytest.raises(rl.UnsupportedError, match="the number of its steps is not known") as caught:
        rl.lower(NESTED, target="tvm")
    assert 'dims={"T": ?}' in caught.value.hint
    with pytest.raises(rl.UnsupportedError, match="tvm does not support the form scan") as caught:
        rl.lower(NESTED, "scan", target="tvm")
    assert caught.value.hint == 'use to="unroll"'


def test_without_a_form_a_loop_becomes_what_runs_faster_and_nested_ones_stay() -> None:
    model = parsed("""g (float[2,2] X, float s) => (float p) <bool yes = {1}, int64 M = {2}> {
        p = Scan <num_scan_inputs = 1, body = d (float t, float[2] x) => (float t1) {
            t1 = Loop (M, yes, t) <body = e (int64 i, bool c, float u) => (bool c1, float u1) {
                y = Gather (x, i) u1 = Add (u, y) c1 = Identity (c) }> }> (s, X) }""")
    feed = {"X": numbers(2, 2), "s": np.asarray(1, np.float32)}
    target: Any
    for target, kept in (("portable", {"Loop", "Scan"}), ("openvino", {"Loop"}), ("tract", set())):
        lowered = rl.lower(model, lower_loops=True, target=target)
        assert operators(lowered) & {"Loop", "Scan"} == kept
        assert_same(run(lowered, feed), run(as_meant(model), feed))
    for target, kept in (("portable", {"Scan"}), ("onnxruntime", {"Scan"}), ("openvino", {"Loop"})):
        assert (
            operators(rl.lower(NESTED, lower_loops=True, target=target, dims={"T": 3})) & {"Loop", "Scan"} >= kept
        )


GRU = parsed("""g (float[T,N,3] X, float[N,4] h0, float[3,12] W, float[4,12] R, float[12] b) => (float[T,N,4] Y) {
    h, Y = Scan <num_scan_inputs = 1, body = d (float[N,4] s, float[N,3] x) => (float[N,4] s1, float[N,4] o) {
        xw = MatMul (x, W) xz, xr, xh = Split <axis = 1> (xw) m = MatMul (s, R) hr = Add (m, b)
        hz, hg, hh = Split <axis = -1> (hr) za = Add (xz, hz) z = Sigmoid (za) ra = Add (hg, xr) r = Sigmoid (ra)
        rh = Mul (r, hh) ha = Add (xh, rh) n = Tanh (ha) d0 = Sub (s, n) zd = Mul (z, d0) s1 = Add (n, zd)
        o = Identity (s1) }> (h0, X) }""")


def test_onnxruntime_gets_a_product_for_each_gate() -> None:
    """With the bias outside, where the sum is a row's: 0.45 of a Keras GRU's time, and 0.55 without."""
    constant, feed = onnx.ModelProto(), {"X": numbers(3, 2, 3), "h0": numbers(2, 4)}
    weights = {"W": numbers(3, 12) / 3, "R": numbers(4, 12) / 5, "b": numbers(12)}
    constant.CopyFrom(GRU)
    del constant.graph.input[2:]
    constant.graph.initializer.extend(onnx.numpy_helper.from_array(w, name) for name, w in weights.items())
    for model in (GRU, constant):
        lowered = rl.lower(model, lower_loops=True, target="onnxruntime")
        (body,) = [body for node, body in bodies(lowered.graph) if node.op_type == "Scan"]
        inside = [node.op_type for node in body.node]
        assert (inside.count("Gemm"), inside.count("Add"), "Split" in inside) == (3, 2, False)
        assert any(node.op_type == "Split" and node.input[0] == "R" for node in lowered.graph.node) == (
            model is GRU
        )
        assert_same(run(lowered, feed | weights), run(as_meant(model), feed | weights))
        assert_same(
            run(rl.lower(model, "loop", lower_loops=True, target="ort"), feed | weights), run(model, feed | weights)
        )


def test_limits_count_nested_steps() -> None:
    with pytest.raises(rl.UnsupportedError, match="over the limit of 32"):
        rl.lower(NESTED, "unroll", lower_loops=True, dims={"T": 3}, max_unroll=32)
    rl.lower(NESTED, "unroll", lower_loops=True, dims={"T": 3}, max_unroll=33)
    with pytest.raises(rl.UnsupportedError, match="more than 20 nodes"):
        rl.lower(NESTED, "unroll", lower_loops=True, dims={"T": 3}, max_nodes=20)


def test_a_recurrent_node_in_a_body() -> None:
    lowered, report = rl.lower(WITH_LSTM, "unroll", lower_loops=True, full=True)
    assert not operators(lowered) & {"Loop", "LSTM"}
    assert len(report.nodes) == 5
    feed = {"X": numbers(5, 1, 2), "h0": numbers(1, 1, 3), "W": numbers(1, 12, 2), "R": numbers(1, 12, 3)}
    assert_same(run(lowered, feed), run(as_meant(WITH_LSTM), feed))


def test_a_function_with_a_loop_that_is_called_twice() -> None:
    lowered, report = rl.lower(IN_A_FUNCTION, "unroll", lower_loops=True, full=True)
    assert [loop.steps for loop in report.loops] == [2, 3]
    assert run(lowered, {"a": numbers(2)})[0] == pytest.approx(numbers(2) * 32)


def test_weights_are_written_once() -> None:
    model = parsed("""g (float[1,40] a) => (float[1,40] p) <bool yes = {1}, int64 M = {16}> {
        p = Loop (M, yes, a) <body = d (int64 i, bool c, float[1,40] s) => (bool c1, float[1,40] s1) {
            sh = Constant <value = int64[2] {40, 40}> () W = ConstantOfShape <value = float[1] {0.01}> (sh)
            k = Constant <value = float {0.5}> () t = MatMul (s, W) s1 = Add (t, k) c1 = Identity (c) }> }""")
    lowered = rl.lower(model, "unroll", lower_loops=True)
    assert sum(node.op_type == "ConstantOfShape" for node in lowered.graph.node) == 1
    assert len(lowered.graph.initializer) == 2
    names = [node.name for node in lowered.graph.node]
    assert len(set(names)) == len(names) == 33
    assert_same(run(lowered, {"a": numbers(1, 40)}), run(as_meant(model), {"a": numbers(1, 40)}))


def test_chance_is_drawn_in_each_step() -> None:
    model = parsed("""g () => (float[T,3] Y) <bool yes = {1}, int64 M = {4}> {
        Y = Loop (M, yes) <body = d (int64 i, bool c) => (bool c1, float[3] o) {
            o = RandomNormal <shape = [3]> () c1 = Identity (c) }> }""")
    (drawn,) = run(rl.lower(model, "unroll", lower_loops=True), {})
    assert len({row.tobytes() for row in drawn}) == 4


def products_inside(model: ModelProto) -> int:
    repeated = [body for node, body in bodies(model.graph) if node.op_type in ("Loop", "Scan")]
    return sum(node.op_type in ("MatMul", "Gemm") for body in repeated for node in body.node)


ROWS = """g (float[1,4] h0, float[T,1,3] X, float[3,4] W, float[4] b, float[4,4] U)
    => (float[1,4] h, float[T,1,4] Y) <int64 z = {0}, bool yes = {1}> {
    sh = Shape (X) M = Gather (sh, z)
    h, u, k, Y = Loop (M, yes, h0, W, z) <body = d (int64 i, bool c, float[1,4] s, float[3,4] w, int64 t)
        => (bool c1, float[1,4] s1, float[3,4] w1, int64 t1, float[1,4] o) <int64 one = {1}> {
        x = Gather (X, t) %s hu = MatMul (s, U) r = Add (a, hu) s1 = Tanh (r)
        w1 = Identity (w) t1 = Add (t, one) o = Identity (s1) c1 = Identity (c) }> }"""
PRODUCTS = {
    "MatMul": "xw = MatMul (x, w) a = Add (xw, b)",
    "Gemm": "a = Gemm (x, w, b)",
    "Gemm, transposed": "v = Transpose (w) a = Gemm <transB = 1> (x, v, b)",
}


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("form", ["loop", "scan"])
def test_products_of_rows_leave_the_body(form: Any, product: str) -> None:
    model = parsed(ROWS % PRODUCTS[product])
    lowered = rl.lower(model, form, lower_loops=True)
    assert (products_inside(model), products_inside(lowered)) == (2, 1)
    graphs = [lowered.graph, *(body for _, body in bodies(lowered.graph))]
    gathers = [node for graph in graphs for node in graph.node if node.op_type == "Gather"]
    assert len(gathers) == {"scan": 1, "loop": 2}[form]  # M, and the row of a Loop: those of a Scan are X as it is
    for T in (4, 1, 0):
        feed = {"h0": numbers(1, 4), "X": numbers(T, 1, 3), "W": numbers(3, 4), "b": numbers(4), "U": numbers(4, 4)}
        assert_same(run(lowered, feed), run(as_meant(model), feed))


def test_as_many_rows_as_steps_are_found_where_their_number_has_no_name() -> None:
    model = parsed("""g (float[2] a, float[N,2] X) => (float[2] p)
        <bool yes = {1}, int64 three = {3}, int64 zero = {0}> {
        p = Loop (three, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s2) {
            z = Add (X, s) both = Concat <axis = 0> (z, X) rows = Tanh (both) sizes = Shape (both)
            M = Gather (sizes, zero)
            s2 = Loop (M, yes, s) <body = e (int64 j, bool g, float[2] t) => (bool g1, float[2] t1) {
                row = Gather (rows, j) t1 = Add (t, row) g1 = Identity (g) }>
            c1 = Identity (c) }> }""")
    lowered = rl.lower(model, "scan", lower_loops=True)
    graphs = [lowered.graph, *(body for _, body in bodies(lowered.graph))]
    assert sum(node.op_type == "Gather" for graph in graphs for node in graph.node) == 1  # M: rows are scanned
    for N in (3, 1, 0):
        feed = {"a": numbers(2), "X": numbers(N, 2)}
        assert_same(run(lowered, feed), run(as_meant(model), feed))


@pytest.mark.parametrize(
    "name",
    [
        "the row at a row of a Range, and a Slice without steps",
        "a Gather at a place of shape 1, and what Squeeze leaves of it",
    ],
)
def test_rows_leave_the_body_whatever_takes_them(name: str) -> None:
    """As paddle2onnx writes `for i in range(n)`; as OpenCV needs it."""
    (trap,) = [trap for trap in TRAPS if trap.name == name]
    ((_, body),) = bodies(rl.lower(trap.model, "loop", lower_loops=True).graph)
    assert [node.op_type for node in body.node] == ["Gather", "Add", "Identity"]


def test_only_rows_that_are_used_are_multiplied() -> None:
    model = parsed("""g (float[2,4] h0, float[1000,2,3] X, float[3,4] W) => (float[2,4] h)
        <int64 M = {3}, int64 last = {999}, bool yes = {1}> {
        h = Loop (M, yes, h0) <body = d (int64 i, bool c, float[2,4] s) => (bool c1, float[2,4] s1) {
            k = Sub (last, i) x = Gather (X, k) xw = MatMul (x, W) s1 = Add (s, xw) c1 = Identity (c) }> }""")
    lowered = rl.lower(model, "scan", lower_loops=True)
    (scan,) = [node for node in lowered.graph.node if node.op_type == "Scan"]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in lowered.graph.value_info}
    assert shapes[scan.input[1]] == [3, 2, 4]
    feed = {"h0": numbers(2, 4), "X": numbers(1000, 2, 3), "W": numbers(3, 4)}
    assert_same(run(lowered, feed), run(as_meant(model), feed))


@pytest.mark.parametrize(
    "row",
    [
        "x = Gather (X, k)",
        "q = Div (k, n) x = Cast <to = 1> (q)",
        "r = Gather (X, i) w = Cast <to = 7> (r) q = Div (w, n) x = Cast <to = 1> (q)",
    ],
)
def test_what_is_moved_out_is_nothing_that_may_fail(row: str) -> None:
    """There is no row 7, and onnxruntime fails to divide an integer by 0."""
    model = parsed(f"""g (float[2] a, float[2] X, int64 k, int64 n) => (float[2] p) <bool yes = {{1}}> {{
        p = Loop (n, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {{
            {row} s1 = Add (s, x) c1 = Identity (c) }}> }}""")
    feed = {"a": numbers(2), "X": numbers(2), "k": np.asarray(7), "n": np.asarray(0)}
    assert_same(run(rl.lower(model, "loop", lower_loops=True), feed), [feed["a"]])


def test_states_that_nothing_reads_and_slices_leave_the_body() -> None:
    model = parsed("""g (float[2,4] h0, float[T,2,4] X, float[4,8] W) => (float[2,4] h)
        <int64 z = {0}, bool yes = {1}, int32 zero = {0}> {
        sh = Shape (X) M = Gather (sh, z)
        t, h = Loop (M, yes, zero, h0) <body = d (int64 i, bool c, int32 k, float[2,4] s)
            => (bool c1, int32 k1, float[2,4] s1)
            <int32 one = {1}, int64[1] z = {0}, int64[1] four = {4}, int64[1] all = {9223372036854775807}> {
            x = Gather (X, i) k1 = Add (k, one) w = MatMul (s, W) ax = Constant <value = int64[1] {1}> ()
            a = Slice (w, z, four, ax) b = Slice (w, four, all, ax) y = Mul (a, x) s1 = Add (y, b)
            c1 = Identity (c) }> }""")
    lowered = rl.lower(model, "loop", lower_loops=True)
    (loop,) = [node for node in lowered.graph.node if node.op_type == "Loop"]
    assert len(loop.output) == 1
    ((_, body),) = bodies(lowered.graph)
    assert [node.op_type for node in body.node] == ["Gather", "MatMul", "Split", "Mul", "Add", "Identity"]
    for T in (3, 0):
        feed = {"h0": numbers(2, 4), "X": numbers(T, 2, 4), "W": numbers(4, 8)}
        assert_same(run(lowered, feed), run(as_meant(model), feed))


BOTH_WAYS = parsed("""g (float[4,2] X, float[4,2] Z, float[2] a) => (float[2] p, float[4,2] q)
    <float[2,2] W = {1, 2, 3, 4}> {
    p, q = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1], scan_output_directions = [1],
        body = b (float[2] s, float[2] x, float[2] z) => (float[2] s1, float[2] o) {
        v = Tanh (z) w = Mul (x, v) u = Add (s, w) s1 = Tanh (u) o = Add (s1, v) }> (a, X, Z) }""")


def test_unrolled_rows_are_taken_in_reverse_without_a_flip() -> None:
    lowered = rl.lower(BOTH_WAYS, "unroll", lower_loops=True)
    assert operators(lowered) == {"Split", "Squeeze", "Tanh", "Mul", "Add", "Unsqueeze", "Concat"}
    feed = {"X": numbers(4, 2), "Z": numbers(4, 2) * 2 - 1, "a": numbers(2)}
    assert_same(run(lowered, feed), run(as_meant(BOTH_WAYS), feed))


@pytest.mark.parametrize("form", ["loop", "unroll"])
def test_one_known_length_of_a_scan_is_the_number_of_steps(form: Any) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(BOTH_WAYS)
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "T"
    feed = {"X": numbers(4, 2), "Z": numbers(4, 2) * 2 - 1, "a": numbers(2)}
    assert_same(run(rl.lower(model, form, lower_loops=True), feed), run(as_meant(model), feed))


def test_rows_one_after_the_other_are_a_slice() -> None:
    model = parsed("""g (float[5,2] X, float[2] a) => (float[2] p)
        <bool yes = {1}, int64 M = {3}, int64 one = {1}> {
        p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
            j = Add (i, one) x = Gather (X, j) y = Exp (x) s1 = Mul (s, y) c1 = Identity (c) }> }""")
    feed = {"X": numbers(5, 2), "a": numbers(2)}
    for form in ("unroll", "scan"):
        lowered = rl.lower(model, form, lower_loops=True)
        assert "Gather" not in operators(lowered)
        assert_same(run(lowered, feed), run(as_meant(model), feed))


@pytest.mark.parametrize("target", ["openvino", "onnxruntime", "tract", "tvm", "litert"])
@pytest.mark.parametrize(("trips", "going"), [(0, 1), (3, 0)])
def test_a_loop_without_a_step_is_its_initial_states(target: Any, trips: int, going: int) -> None:
    model = parsed(f"""g (float[5,2] X, float[2] a) => (float[2] p, float[0,2] q)
        <bool go = {{{going}}}, int64 M = {{{trips}}}> {{
        p, q = Loop (M, go, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o) {{
            x = Gather (X, i) s1 = Add (s, x) o = Identity (s1) c1 = Identity (c) }}> }}""")
    lowered = rl.lower(model, target=target)
    assert not operators(lowered) & {"Loop", "Scan", "If"}
    p, q = run(lowered, {"X": numbers(5, 2), "a": numbers(2)})
    assert_same([p, q], [numbers(2), np.zeros((0, 2), np.float32)])


def test_a_scan_in_a_loop_that_stays_without_a_step_is_lowered() -> None:
    """The Loop stays, since the sizes of its empty output are not known."""
    model = parsed("""g (float[2] a, float[2,3] Q, int64[k] r) => (float[2] p, float[n,m] Y)
        <bool no = {0}, int64 M = {3}> {
        p, Y = Loop (M, no, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[m] o) {
            s1 = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = e (float[2] t, float[2] y)
                => (float[2] t1) { t1 = Add (t, y) }> (s, Q) o = Reshape (s1, r) c1 = Identity (c) }> }""")
    lowered = rl.lower(model, target="mnn")
    assert "Scan" not in operators(lowered)
    feed = {"a": numbers(2), "Q": numbers(2, 3), "r": np.asarray([2])}
    assert_same(run(lowered, feed)[:1], run(model, feed)[:1])


@pytest.mark.parametrize(("target", "form"), [("opencv", "loop"), ("iree", "scan")])
def test_some_runtimes_get_steps_of_an_exported_loop_or_an_error(target: Any, form: Any) -> None:
    """OpenCV crashes with such Loops, IREE reads such Scans in one direction only."""
    lowered = rl.lower(NESTED, target=target, dims={"T": 3})
    assert not operators(lowered) & {"Loop", "Scan"}
    with pytest.raises(rl.UnsupportedError, match=r"^Loop node '-> p' in main graph: the number of its steps"):
        rl.lower(NESTED, target=target)
    with pytest.raises(rl.UnsupportedError, match=f"{target} does not support the form {form} of an exported Loop"):
        rl.lower(NESTED, form, target=target, dims={"T": 3})


@pytest.mark.parametrize("position", ["Sub (four, i)", "Mul (two, i)"])
def test_unrolled_rows_in_another_order_are_parts(position: str) -> None:
    model = parsed(f"""g (float[5,2] X, float[2] a) => (float[2] p)
        <bool yes = {{1}}, int64 M = {{3}}, int64 two = {{2}}, int64 four = {{4}}> {{
        p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {{
            j = {position} x = Gather (X, j) y = Exp (x) s1 = Mul (s, y) c1 = Identity (c) }}> }}""")
    lowered = rl.lower(model, "unroll", lower_loops=True)
    assert "Gather" not in operators(lowered)
    feed = {"X": numbers(5, 2), "a": numbers(2)}
    assert_same(run(lowered, feed), run(as_meant(model), feed))


TWO = parsed("""g (float[2,2] X, float s) => (float p, float q) <bool yes = {1}, int64 M = {2}> {
    [outer] p = Loop (M, yes, s) <body = d (int64 i, bool c, float t) => (bool c1, float t1) {
        x = Gather (X, i) [inner] t1 = Scan <num_scan_inputs = 1, body = e (float u, float y) => (float u1) {
            u1 = Add (u, y) }> (t, x) c1 = Identity (c) }>
    [last] q = Loop (M, yes, p) <body = f (int64 j, bool h, float v) => (bool h1, float v1) {
        v1 = Add (v, s) h1 = Identity (h) }> }""")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("selection", "lowered", "left"),
    [
        ({"only": "last"}, ["last"], ["outer", "inner"]),
        ({"only": "Loop"}, ["outer", "last"], []),
        ({"only": "Scan"}, ["inner"], ["outer", "last"]),
        ({"only": ["o*", "inner"]}, ["outer"], ["last"]),
        ({"except_": "outer"}, ["inner", "last"], ["outer"]),
        ({"except_": "Loop"}, ["inner"], ["outer", "last"]),
        ({"only": lambda node: node.name == "last"}, ["last"], ["outer", "inner"]),
    ],
)
def test_patterns_select_loops_and_scans(selection: dict[str, Any], lowered: list[str], left: list[str]) -> None:
    new, report = rl.lower(TWO, target="tvm", **selection, full=True)
    assert [loop.name for loop in report.loops] == lowered
    assert [text for text in report.left if text.endswith(": not selected")] == report.left
    assert {text.split("'")[1] for text in report.left} == {*left}
    assert ("Scan" in operators(new)) == ("inner" not in lowered and selection.get("only") != ["o*", "inner"])
    feed = {"X": numbers(2, 2), "s": np.asarray(1, np.float32)}
    assert_same(run(new, feed), run(as_meant(TWO), feed))
    previews = {each.node.name: each.form for each in rl.preview(TWO, target="tvm", **selection)}
    assert [name for name in lowered if previews.get(name) != "unroll"] == []
    assert all(previews[name] == "left as it is" for name in left)


def test_a_pattern_that_matches_nothing_names_the_loops() -> None:
    for options in ({"lower_loops": True}, {"target": "tvm"}):
        with pytest.raises(rl.OptionError, match="no recurrent node matches 'outter'") as caught:
            rl.lower(TWO, only="outter", **options)
        assert "Loop 'outer'" in caught.value.hint


@pytest.mark.parametrize("form", ["scan", "unroll"])
def test_a_counter_that_paddle_writes(form: Any) -> None:
    """It counts as i * 1 + 1 in floats, and ends at the length of a Range."""
    model = parsed("""g (float[T, 2] x) => (float[2] y)
        <int64 zero = {0}, int64 unit = {1}, float one = {1}, float[2] h0 = {0, 0}> {
        shape = Shape <end = 1> (x) length = Squeeze (shape) all = Range (zero, length, unit)
        same = Identity (all) size = Shape (same) T = Squeeze (size) some = Less (zero, T)
        last, y = Loop ("", some, zero, h0) <body = b (int64 n, bool c, int64 i, float[2] h)
            => (bool more, int64 i1, float[2] h1) {
            row = Gather (x, i) h1 = Sub (row, h) f = Cast <to = 1> (i) same_f = Mul (f, one)
            next = Add (same_f, one) i1 = Cast <to = 7> (next) more = Less (i1, T) }> }""")
    sizes = {"T": 4} if form == "unroll" else None
    lowered = rl.lower(model, form, lower_loops=True, dims=sizes)
    assert_same(run(lowered, {"x": numbers(4, 2)}), run(model, {"x": numbers(4, 2)}))


GROWING = {
    "a list": (
        "SequenceEmpty ()",
        "seq(float[2]) l",
        "seq(float[2]) l1",
        "l1 = SequenceInsert (l, s1)",
        "Y = ConcatFromSequence <axis = -1, new_axis = 1> (all) "
        "Z = ConcatFromSequence <axis = 0, new_axis = 1> (all)",
    ),
    "a list of single rows": (
        "SequenceEmpty ()",
        "seq(float[2,1]) l",
        "seq(float[2,1]) l1",
        "ax = Constant <value = int64[1] {1}> () u = Unsqueeze (s1, ax) l1 = SequenceInsert (l, u)",
        "Y = ConcatFromSequence <axis = 1> (all) Z = Transpose (Y)",
    ),
    "a tensor": (
        "Constant <value = float[2,1] {5, 6}> ()",
        "float[2,a] l",
        "float[2,b] l1",
        "ax = Constant <value = int64[1] {1}> () u = Unsqueeze (s1, ax) l1 = Concat <axis = -1> (l, u)",
        "Y = Identity (all) Z = Transpose (Y)",
    ),
}


@pytest.mark.parametrize("name", GROWING)
def test_rows_of_states_that_grow_are_stacked(name: str) -> None:
    first, before, after, step, end = GROWING[name]
    model = parsed(f"""g (float[2] s0, float[T,2] X) => (float[2] sn, float[2,n] Y, float[n,2] Z)
        <bool yes = {{1}}, int64 z = {{0}}> {{ shape = Shape (X) M = Gather (shape, z) none = {first}
        sn, all = Loop (M, yes, s0, none) <body = d (int64 i, bool c, float[2] s, {before})
            => (bool c1, float[2] s1, {after}) {{ x = Gather (X, i) t = Add (s, x) s1 = Tanh (t) {step}
            c1 = Identity (c) }}> {end} }}""")
    for form in ("scan", "loop", "unroll"):
        lowered = rl.lower(model, form, lower_loops=True, dims={"T": 4} if form == "unroll" else None)
        assert not any("Sequence" in operator for operator in operators(lowered))
        assert not any(node.op_type == "Concat" for _, body in bodies(lowered.graph) for node in body.node)
        if form == "scan":  # tract does not end where a step gives a row an axis that is removed later
            assert "Unsqueeze" not in {node.op_type for _, body in bodies(lowered.graph) for node in body.node}
        for T in (4,) if form == "unroll" else (1, 4):
            feed = {"s0": numbers(2), "X": numbers(T, 2)}
            assert_same(run(lowered, feed), run(as_meant(model), feed))


LISTS = """g (float[2] s0, float[2] w, float[T,2] X) => (float[2] sn, float[n,2] Y)
    <bool yes = {1}, int64 z = {0}> {
    shape = Shape (X) M = Gather (shape, z) none = SequenceEmpty ()
    sn, all = Loop (M, yes, s0, none) <body = d (int64 i, bool c, float[2] s, seq(float[2]) l)
        => (bool c1, float[2] s1, seq(float[2]) l1) { x = Gather (X, i) t = Add (s, x) s1 = Tanh (t)
        l1 = SequenceInsert (l, %s) c1 = Identity (c) }>
    Y = ConcatFromSequence <axis = 0, new_axis = 1> (all) }"""


@pytest.mark.parametrize(("row", "stacked"), [("s", True), ("w", False)])
def test_a_row_may_be_a_state_but_nothing_outside(row: str, stacked: bool) -> None:
    model = parsed(LISTS % row)
    lowered = rl.lower(model, "loop", lower_loops=True)
    assert ("ConcatFromSequence" in operators(lowered)) == (not stacked)
    assert [node.op_type for node in lowered.graph.node].count("Identity") == 0
    for T in (1, 4):
        feed = {"s0": numbers(2), "w": numbers(2) + 1, "X": numbers(T, 2)}
        assert_same(run(lowered, feed), run(as_meant(model), feed))


@pytest.mark.parametrize("row", ["s", "s1"])
def test_a_body_that_stays_returns_values_of_its_own_once(row: str) -> None:
    """The second Loop stacks its rows before it turns out that it has too many nodes for the form."""
    small = """b = Loop (z, yes, s0) <body = e (int64 j, bool d, float[2] u) => (bool d1, float[2] u1) {
        u1 = Abs (u) d1 = Identity (d) }> shape"""
    text = (LISTS % row).replace("Loop (M, yes, s0", "Loop (M, yes, b").replace("shape", small, 1)
    model = parsed(text)
    lowered = rl.lower(model, target="openvino", max_nodes=3)
    (body,) = [body for node, body in bodies(lowered.graph) if len(node.input) > 2 and len(body.node) > 3]
    returned = [value.name for value in body.output]
    assert len({*returned} - {value.name for value in body.input}) == len(returned)
    feed = {"s0": numbers(2), "w": numbers(2) + 1, "X": numbers(4, 2)}
    assert_same(run(lowered, feed), run(as_meant(model), feed))


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("opset", [9, 10, 11, 13])
def test_a_loop_behind_a_loop_becomes_a_scan_at_old_opsets(opset: int, optimized: bool) -> None:
    """Before opset 11 the branches of an If have one shape: onnxruntime takes that of no steps for both."""
    step = """(int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o) {
        x = Gather (%s, i) s1 = Add (s, x) o = Tanh (s1) c1 = Identity (c) }"""
    model = parser.parse_model(f"""<ir_version: 4, opset_import: ["": {opset}]>
        g (float[T,2] X, float[2] a) => (float[K,2] q) <int64 z = {{0}}, bool yes = {{1}}> {{
        sh = Shape (X) M = Gather (sh, z) p, Y = Loop (M, yes, a) <body = d {step % "X"}>
        sh2 = Shape (Y) M2 = Gather (sh2, z) r, q = Loop (M2, yes, a) <body = e {step % "Y"}> }}""")
    lowered = rl.lower(model, "scan")
    assert "Loop" not in operators(lowered)
    for T in (3, 1, 0):
        feed = {"X": numbers(T, 2), "a": numbers(2)}
        found = running.run(lowered, feed, optimize=optimized)
        assert_same([*found.values()], run(as_meant(model), feed))


SHAPED_BY_THE_BATCH = """g (float[?,?,3] X, float[3,4] W, float[4,4] U) => (float[T,N,4] Y)
    <int64 z = {0}, bool yes = {1}, int64[1] one = {1}, int64[1] two = {2}, int64[1] four = {4}, float zero = {0}> {
    %s sh = Shape (V) M = Gather (sh, z) all = Mul (sh, one) N = Slice (all, one, two)
    sizes = Concat <axis = 0> (N, four) h0 = %s
    h, Y = Loop (M, yes, h0) <body = d (int64 i, bool c, float[b,4] s) => (bool c1, float[b,4] s1, float[b,4] o) {
        x = Gather (V, i) xw = MatMul (x, W) hu = MatMul (s, U) r = Add (xw, hu) s1 = Tanh (r) o = Identity (s1)
        c1 = Identity (c) }> }"""


@pytest.mark.parametrize("rows", ["V = Identity (X)", "V = Concat <axis = 1> (X, X)"])
@pytest.mark.parametrize("initial", ["Expand (zero, sizes)", "ConstantOfShape (sizes)"])
def test_an_initial_state_with_the_size_of_the_batch_is_one_of_a_scan(initial: str, rows: str) -> None:
    """Sizes without a name, and sizes that are computed, are followed to the rows and to the state."""
    model = parsed(SHAPED_BY_THE_BATCH % (rows, initial))
    lowered = rl.lower(model, "scan")
    assert "Loop" not in operators(lowered)
    for T, N in ((3, 2), (1, 1), (2, 5)):
        feed = {"X": numbers(T, N, 3), "W": numbers(3, 4), "U": numbers(4, 4)}
        assert_same(run(lowered, feed), run(as_meant(model), feed))
    copies = 1 + rows.startswith("V = Concat")
    assert run(lowered, {**feed, "X": numbers(0, 2, 3)})[0].shape == (0, 2 * copies, 4)


def test_a_state_whose_size_only_looks_like_the_batch_is_none_of_a_scan() -> None:
    """With one input row more than the state has, or with another input's size."""
    for rows in ("V = Concat <axis = 1> (X, Z)", "V = Concat <axis = 1> (X, X)"):
        text = SHAPED_BY_THE_BATCH.replace("float[?,?,3] X", "float[?,?,3] X, float[?,?,3] Z")
        text = text.replace("sh = Shape (V)", "sh = Shape (X)") % (rows, "Expand (zero, sizes)")
        with pytest.raises(rl.UnsupportedError, match="may change"):
            rl.lower(parsed(text), "scan")


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_an_unknown_number_of_rows_is_reversed_at_opset_9(form: Any) -> None:
    model = parser.parse_model("""<ir_version: 4, opset_import: ["": 9]> g (float[N,T,2] X, float[N,2] a) =>
        (float[N,2] p, float[T,N,2] Y) {
        p, Y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_directions = [1], body = b (float[N,2] s, float[N,2] x) => (float[N,2] s1, float[N,2] o) {
            v = Tanh (x) s1 = Sub (v, s) o = Mul (s1, v) }> (a, X) }""")
    lowered = rl.lower(model, form, lower_loops=True)
    assert operators(lowered) & {"Loop", "Scan"} == {form.title()}
    for T in (3, 1):
        feed = {"X": numbers(2, T, 2), "a": numbers(2, 2)}
        for optimize in (False, True):
            assert_same([*running.run(lowered, feed, optimize=optimize).values()], run(as_meant(model), feed))


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("opset", [13, 14])
def test_a_list_of_a_loop_without_a_step_is_empty_at_each_opset(opset: int, form: Any) -> None:
    """Identity takes lists from opset 14 on."""
    for first, M, length in (
        ("SequenceEmpty ()", 0, 0),
        ("SequenceConstruct (a, a)", 0, 2),
        ("SequenceEmpty ()", 2, 2),
    ):
        model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
            g (float[5,2] X, float[2] a) => (seq(float[2]) l, int64 n) <int64 M = {{{M}}}, bool yes = {{1}}> {{
            e = {first} p, l = Loop (M, yes, a, e) <body = d (int64 i, bool c, float[2] s, seq(float[2]) q)
                => (bool c1, float[2] s1, seq(float[2]) q1) {{
                x = Gather (X, i) s1 = Add (s, x) q1 = SequenceInsert (q, s1) c1 = Identity (c) }}>
            n = SequenceLength (l) }}""")
        if (form, M) == ("scan", 2):
            with pytest.raises(rl.UnsupportedError, match="is a sequence"):
                rl.lower(model, form, lower_loops=True)
            continue
        lowered = rl.lower(model, form, lower_loops=True)
        feed = {"X": numbers(5, 2), "a": numbers(2)}
        elements, count = run(lowered, feed)
        wanted, _ = run(model if opset < 14 else as_meant(model), feed)
        assert (len(elements), count) == (length, length)
        assert_same(elements, wanted)


OVERRIDABLE = """g (float[T,2] X, float[2] a, %s) => (float[2] p) <bool yes = {1}, int64 z = {0}, %s> {
    %s p = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
        x = Gather (X, i) s1 = Add (s, x) c1 = Identity (c) }> }"""


def test_an_input_with_a_default_that_decides_the_number_of_steps_is_named() -> None:
    model = parsed(OVERRIDABLE % ("int64 M", "int64 M = {3}", ""))
    with pytest.raises(rl.UnsupportedError, match="the number of its steps is not known") as caught:
        rl.lower(model, "unroll", lower_loops=True, dims={"T": 3})
    assert caught.value.hint == 'make them constants: set_inputs={"M": ?}'
    feed = {"X": numbers(3, 2), "a": numbers(2)}
    lowered = rl.lower(model, "unroll", lower_loops=True, dims={"T": 3}, set_inputs={"M": 3})
    assert_same(run(lowered, feed), run(as_meant(model), feed))

    model = parsed(
        OVERRIDABLE % ("float[K,2] Z", "float[3,2] Z = {1,2,3,4,5,6}", "sh = Shape (Z) M = Gather (sh, z)")
    )
    with pytest.raises(rl.UnsupportedError, match="the number of its steps is not known") as caught:
        rl.lower(model, "unroll", lower_loops=True, dims={"T": 3})
    assert caught.value.hint.endswith('dims={"K": ?}')
    fixed: list[dict[str, Any]] = [
        {"dims": {"T": 3, "K": 3}},
        {"input_shapes": {"X": (3, 2), "Z": (3, 2)}},
        {"dims": {"T": 3}, "set_inputs": {"Z": numbers(3, 2)}},
    ]
    for options in fixed:
        lowered = rl.lower(model, "unroll", lower_loops=True, **options)
        assert_same(run(lowered, feed), run(as_meant(model), feed))
    with pytest.raises(
        rl.OptionError, match=r"the default value of input 'Z' has the shape \[3, 2\], not \[4, 2\]"
    ):
        rl.lower(model, "unroll", lower_loops=True, input_shapes={"Z": (4, 2)})
    with pytest.raises(rl.OptionError) as unknown:
        rl.lower(model, "unroll", lower_loops=True, input_shapes={"Q": (4, 2)})
    assert unknown.value.hint == "its inputs: X, a, Z"


FEW_ROWS = parsed("""g (float[N,2] X, float[2] h) => (float[2] y)
    <int64 ten = {10}, int64 three = {3}, int64 zero = {0}, int64 five = {5}, int64[1] first = {0}> {
    sh = Shape <end = 1> (X) N = Squeeze (sh, first)
    d = Sub (N, ten) k = Div (d, three) few = Less (k, zero)
    y = Loop (five, few, h) <body = b (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
        s1 = Add (s, s) c1 = Identity (c) }> }""")


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("rows", [4, 20])
def test_a_number_from_a_size_may_be_negative(form: Any, rows: int) -> None:
    """(N - 10) / 3 is no polynomial, and negative at some sizes only."""
    feed = {"X": numbers(rows, 2), "h": numbers(2)}
    assert_same(run(rl.lower(FEW_ROWS, form), feed), run(as_meant(FEW_ROWS), feed))


def test_rows_of_another_size_than_the_steps_are_not_all_taken() -> None:
    """There are N steps; which of N and M is asked for first, and by whom, must not matter."""
    model = parsed("""g (float[N,2] A, float[M,2] B, float[2] h) => (float[2] y)
        <int64 zero = {0}, bool yes = {1}> {
        sh = Shape (A) N = Gather (sh, zero)
        y = Loop (N, yes, h) <body = b (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
            x = Gather (B, i) s1 = Add (s, x) c1 = Identity (c) }> }""")
    feed = {"A": numbers(2, 2), "B": numbers(5, 2), "h": numbers(2)}
    assert_same(run(rl.lower(model, "scan", lower_loops=True), feed), run(as_meant(model), feed))


def test_a_row_by_a_fraction_that_is_rounded() -> None:
    """1 / 41 * 41 is less than 1 in float32, and the row is 0, not 1."""
    model = parsed("""g (float[6,2] B, float[2] h) => (float[2] y)
        <int64 six = {6}, bool yes = {1}, float parts = {41}> {
        y = Loop (six, yes, h) <body = b (int64 i, bool c, float[2] s) => (bool c1, float[2] s1) {
            real = Cast <to = 1> (i) part = Div (real, parts) whole = Mul (part, parts) at = Cast <to = 7> (whole)
            x = Gather (B, at) s1 = Add (s, x) c1 = Identity (c) }> }""")
    feed = {"B": numbers(6, 2), "h": numbers(2)}
    for form in ("scan", "loop"):
        assert_same(run(rl.lower(model, form, lower_loops=True), feed), run(as_meant(model), feed))


def test_a_counter_that_gets_an_axis_in_step_0() -> None:
    """paddle2onnx writes i * 1. + 1. with constants of shape [1]: i is [] before, and [1] from then on."""
    original = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[T,2] X, float[2] a) => (float[2] p)
        <int64 zero = {0}, bool yes = {1}, int64 most = {9223372036854775807}>
        { s = Shape (X) n = Gather (s, zero) go = Less (zero, n)
          i, p = Loop (most, go, zero, a) <body = d (int64 k, bool c, int64 i0, float[2] h)
            => (bool c1, i1, float[2] h1) { by = Constant <value = float[1] {1}> ()
              f = Cast <to = 1> (i0) m = Mul (f, by) q = Add (m, by)
              i1 = Cast <to = 7> (q) x = Gather (X, k) h1 = Add (h, x) c1 = Less (i1, n) }> }"""
    )
    lowered = rl.lower(original, "scan", lower_loops=True)
    assert "Loop" not in {node.op_type for node in lowered.graph.node}


IMAGES: dict[str, tuple[int, str]] = {
    "a Slice of the shape": (11, "b = Slice (sh, q0, q1, q0) to = Concat <axis = 0> (b, T, F)"),
    "integers of 32 bits, as Keras": (
        12,
        """sc = Cast <to = 6> (sh) b = Slice (sc, q0, q1, q0) T32 = Cast <to = 6> (T) F32 = Cast <to = 6> (F)
        cc = Concat <axis = 0> (b, T32, F32) to = Cast <to = 7> (cc)""",
    ),
    "the rest of the shape": (11, "b = Slice (sh, q0, q1, q0) to = Concat <axis = 0> (b, qm, F)"),
    "a product": (
        12,
        """b = Slice (sh, q0, q2, q0) w = Slice (sh, q2, q3, q0) c = Slice (sh, q3, q4, q0) p = Mul (w, c)
        to = Concat <axis = 0> (b, p)""",
    ),
    "a number that is written into it": (
        17,
        "cc = Concat <axis = 0> (qm, T, F) b = Slice (sh, q0, q1, q0) to = ScatterElements (cc, q0, b)",
    ),
    "a Split": (17, "b, s1, s2, s3 = Split <axis = 0> (sh) to = Concat <axis = 0> (b, T, F)"),
}
"""The shape of a Reshape in front of a Loop, from the shape [N, 16, 4, 3] of features."""

PADDED = """sx = Shape (rs) tt = Slice (sx, q1, q2, q0) rest = Mod (tt, q3) whole = Equal (rest, q0)
    none = Squeeze (whole) feat = If (none) <then_branch = a () => (float[N,T,12] xa) { xa = Identity (rs) },
    else_branch = b () => (float[N,P,12] xb) { pd = Sub (q3, rest)
        pads = Concat <axis = 0> (q0, q0, q0, q0, pd, q0) xb = Pad (rs, pads) }>"""
"""A branch, by the size of the features, fills them up to a multiple of 3."""


def image_net(opset: int, shape: str, image: str, then: str) -> ModelProto:
    """A convolution, a Reshape, and an RNN as a Loop, as exporters write a net that reads a line of text."""
    rng = np.random.default_rng(1)
    squeezed = "Squeeze <axes = [0]> (n1)" if opset < 13 else "Squeeze (n1, q0)"
    model: ModelProto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[{image}] img) => (float[N,4] hn, float[T,N,4] Y)
        <float zero = {{0.0}}, bool yes = {{1}}, int64[1] q0 = {{0}}, int64[1] q1 = {{1}}, int64[1] q2 = {{2}},
         int64[1] q3 = {{3}}, int64[1] q4 = {{4}}, int64[1] qm = {{-1}}, int64[1] T = {{16}},
         int64[1] F = {{12}}> {{
        t0 = Transpose <perm = [0, 3, 1, 2]> (img) cv = Conv <pads = [1, 1, 1, 1]> (t0, K) re = Relu (cv)
        mp = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (re) t1 = Transpose <perm = [0, 2, 3, 1]> (mp)
        sh = Shape (t1) {shape} rs = Reshape (t1, to) {then}
        xt = Transpose <perm = [1, 0, 2]> (feat) xs = Shape (xt) n1 = Slice (xs, q0, q1, q0) n = {squeezed}
        bs = Shape (feat) bb = Slice (bs, q0, q1, q0) hs = Concat <axis = 0> (bb, q4) h0 = Expand (zero, hs)
        hn, Y = Loop (n, yes, h0) <body = body (int64 i, bool c, float[p,4] h) =>
            (bool c1, float[p,4] h1, float[p,4] y) {{ row = Gather (xt, i) a = MatMul (row, W) d = MatMul (h, R)
            s = Add (a, d) h1 = Tanh (s) y = Identity (h1) c1 = Identity (c) }}> }}""")
    weights = {"K": (3, 1, 3, 3), "W": (12, 4), "R": (4, 4)}
    for name, dims in weights.items():
        array = rng.normal(0, 0.3, dims).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize("image", ["N,32,8,1", "2,32,8,1", "N,W,H,C"])
@pytest.mark.parametrize(("opset", "shape"), IMAGES.values(), ids=IMAGES)
def test_the_sizes_behind_a_reshape_are_known(opset: int, shape: str, image: str) -> None:
    """At opsets where ONNX's inference does not follow the numbers of a shape, too."""
    model = image_net(opset, shape, image, "feat = Identity (rs)")
    feed = {"img": numbers(2, 32, 8, 1)}
    wanted = run(model, feed)
    fixed: Any = {"input_shapes": {"img": (2, 32, 8, 1)}}
    open_sizes = ("ScatterElements" in shape and "N" in image) or ("Mul" in shape and "W" in image)
    for options, left in (
        ({"to": "unroll", **fixed}, set()),
        ({"target": "tvm", **fixed}, set()),
        ({"target": "tract", **(fixed if open_sizes else {})}, {"Scan", "Gather", "Shape"}),
        ({"raise_loops": True, **(fixed if open_sizes else {})}, {"RNN"}),
    ):
        lowered = rl.lower(model, **options)
        assert operators(lowered) & {"Loop", "Scan", "RNN"} <= left
        assert_same(run(lowered, feed), wanted)


@pytest.mark.few(1)
@pytest.mark.parametrize("image", ["N,32,8,1", "2,32,8,1"])
def test_a_branch_by_a_size_before_a_loop_is_taken(image: str) -> None:
    """For a Loop as for a node: the numbers of its steps follow from the branch that is taken."""
    model = image_net(17, IMAGES["a Slice of the shape"][1], image, PADDED)
    feed = {"img": numbers(2, 32, 8, 1)}
    fixed: Any = {"input_shapes": {"img": (2, 32, 8, 1)}} if "N" in image else {}
    lowered = rl.lower(model, "unroll", **fixed)
    assert not operators(lowered) & {"If", "Loop"}
    assert_same(run(lowered, feed), run(model, feed))


@pytest.mark.parametrize(
    ("image", "hint"),
    [("a product", 'dims={"W": ?}'), ("the rest of the shape", 'dims={"W": ?, "H": ?}')],
)
def test_the_hint_names_the_sizes_that_a_reshape_needs(image: str, hint: str) -> None:
    model = image_net(*IMAGES[image], "N,W,H,C", "feat = Identity (rs)")
    with pytest.raises(rl.UnsupportedError, match="the number of its steps is not known") as caught:
        rl.lower(model, "unroll")
    assert hint in caught.value.hint
    sizes = {"N": 2, "W": 8, "H": 8, "C": 1}
    fixed = {key: size for key, size in sizes.items() if f'"{key}"' in hint}
    assert not operators(rl.lower(model, "unroll", dims=fixed)) & {"Loop"}


def test_the_hint_names_a_size_beside_loops_that_are_refused_for_other_reasons() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[T, 3] X, int64 n) => (float[3] a, float[3] b, float[3] d)
            <float[3] z = {0, 0, 0}, int64 long = {600}, bool yes = {1}> {
        a = Scan <num_scan_inputs = 1, body = s (float[3] h, float[3] x) => (float[3] h1)
            { h1 = Add (h, x) }> (z, X)
        b = Loop <body = l (int64 i, bool c, float[3] h) => (bool c1, float[3] h1)
            { c1 = Identity (c) h1 = Tanh (h) }> (long, yes, z)
        d = Loop <body = k (int64 i, bool c, float[3] h) => (bool c1, float[3] h1)
            { c1 = Identity (c) h1 = Tanh (h) }> (n, yes, z) }""")
    with pytest.raises(rl.UnsupportedError, match="the number of its steps is not known") as caught:
        rl.lower(model, "unroll")
    assert 'dims={"T": ?}' in caught.value.hint


CONDITIONS = {
    "not at least": "d = GreaterOrEqual (i1, T) c1 = Not (d)",
    "not above": "u = Sub (T, one) d = Greater (i1, u) c1 = Not (d)",
    "swapped": "c1 = Greater (T, i1)",
    "not, and swapped": "d = LessOrEqual (T, i1) c1 = Not (d)",
    "not equal": "d = Equal (i1, T) c1 = Not (d)",
    "not equal, and below": "d = Equal (T, i1) e = Not (d) f = Less (i1, three) c1 = And (e, f)",
    "below or equal": "u = Sub (T, one) d = Less (i1, u) e = Equal (u, i1) c1 = Or (d, e)",
    "one of two": "d = Less (i1, T) e = Less (i1, three) c1 = Or (d, e)",
    "none of two": "d = GreaterOrEqual (i1, T) e = GreaterOrEqual (i1, three) f = Or (d, e) c1 = Not (f)",
    "not both": "d = GreaterOrEqual (i1, T) e = GreaterOrEqual (i1, three) f = And (d, e) c1 = Not (f)",
    "not not": "d = Less (i1, T) e = Not (d) c1 = Not (e)",
    "equal to false": "d = GreaterOrEqual (i1, T) c1 = Equal (d, no)",
    "other than true": "d = GreaterOrEqual (i1, T) c1 = Xor (yes, d)",
    "or never": "d = Less (i1, T) c1 = Or (no, d)",
    "downwards to 0": "j = Sub (T, i1) z = Sub (one, one) d = Equal (j, z) c1 = Not (d)",
}
"""The condition after a step, of the number i1 of steps until then and the number T of rows."""

FIRST = ("c0 = Less (zero, T)", "d0 = GreaterOrEqual (zero, T) c0 = Not (d0)", "d0 = Equal (zero, T) c0 = Not (d0)")


def condition_net(condition: str, most: str, first: str = FIRST[0]) -> ModelProto:
    return parsed(f"""g (float[T,2] X, float[2] a) => (float[2] p, float[S,2] Y)
        <bool yes = {{1}}, bool no = {{0}}, int64 zero = {{0}}, int64 one = {{1}}, int64 three = {{3}},
         int64 nine = {{9}}, float half = {{0.5}}> {{
        sh = Shape (X) T = Gather (sh, zero) {first}
        n, p, Y = Loop ({most}, c0, zero, a) <body = b (int64 k, bool c, int64 i, float[2] s) =>
            (bool c1, int64 i1, float[2] s1, float[2] y) {{ i1 = Add (i, one) r = Mul (s, half) s1 = Add (r, half)
            y = Identity (s1) {condition} }}> }}""")


@pytest.mark.few(4)
@pytest.mark.parametrize("most", ['""', "nine", "T"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_on_counters_is_a_number_of_steps(name: str, most: str) -> None:
    """The Scan takes as many steps as the Loop did, at any number of rows."""
    model = condition_net(CONDITIONS[name], most, FIRST[len(name) % len(FIRST)])
    scan = rl.lower(model, "scan", lower_loops=True)
    assert "Loop" not in operators(scan)
    for steps in (0, 1, 2, 5):
        feed = {"X": numbers(steps, 2), "a": numbers(2)}
        assert_same(run(scan, feed), run(as_meant(model), feed))
    unrolled = rl.lower(model, "unroll", dims={"T": 4})
    feed = {"X": numbers(4, 2), "a": numbers(2)}
    assert_same(run(unrolled, feed), run(as_meant(model), feed))


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_states_that_change_places_may_be_the_condition(form: Any) -> None:
    model = parsed("""g (float[2] x) => (float[2] y) <bool yes = {1}, bool no = {0}, int64 five = {5}> {
        p, q, y = Loop (five, yes, yes, no, x) <body = d (int64 i, bool c, bool a, bool b, float[2] s)
            => (bool a, bool b, bool a, float[2] s1) { s1 = Add (s, s) }> }""")
    lowered = rl.lower(model, form, lower_loops=True)
    assert_same(run(lowered, {"x": numbers(2)}), run(model, {"x": numbers(2)}))


def test_a_number_that_the_counter_has_passed_never_ends_the_loop() -> None:
    """i1 is above T from the first step on, so all nine steps are taken."""
    model = condition_net("j = Add (i1, three) d = Equal (j, T) c1 = Not (d)", "nine", "c0 = Identity (yes)")
    scan = rl.lower(model, "scan", lower_loops=True)
    for steps, taken in ((2, 9), (3, 9), (4, 1), (6, 3)):
        feed = {"X": numbers(steps, 2), "a": numbers(2)}
        wanted = run(as_meant(model), feed)
        assert len(wanted[1]) == taken
        assert_same(run(scan, feed), wanted)


@pytest.mark.parametrize(
    "condition",
    [
        "j = Add (i1, i1) d = Equal (j, T) c1 = Not (d)",  # it may step over T
        "c1 = Equal (i1, T)",
        "d = Equal (i1, T) e = Not (d) f = Less (i1, three) c1 = Or (e, f)",
        "d = ReduceSum <keepdims = 0> (s1) e = Less (d, half) f = Less (i1, T) c1 = Or (e, f)",
        "c1 = Or (no, no)",
    ],
)
def test_other_conditions_are_refused(condition: str) -> None:
    with pytest.raises(rl.UnsupportedError, match=r"depends on data|is not known"):
        rl.lower(condition_net(condition, "nine"), "scan", lower_loops=True)


CALLS = {
    "a cell": "half = Constant <value = float {0.5}> () k = Mul (s, half) u = Add (k, x) n = Tanh (u)",
    "a call": "n = f.inner (s, x)",
    "a Loop": """yes = Constant <value = bool {1}> () M = Constant <value = int64 {3}> () u = Add (s, x)
        n = Loop (M, yes, u) <body = d (int64 j, bool q, float[P,2] t) => (bool q1, float[P,2] t1)
            { t1 = Tanh (t) q1 = Identity (q) }>""",
}
"""What a function computes of a state and a row."""

STEPS = {
    "Loop": """sh = Shape (X) M = Gather (sh, z) p, Y = Loop (M, yes, a) <body = b (int64 i, bool c, float[N,2] s)
        => (bool c1, float[N,2] s1, float[N,2] y) { x = Gather (X, i) s1 = f.step (s, x) y = Identity (s1)
            c1 = Identity (c) }>""",
    "Scan": """p, Y = Scan <num_scan_inputs = 1, body = b (float[N,2] s, float[N,2] x)
        => (float[N,2] s1, float[N,2] y) { s1 = f.step (s, x) y = Identity (s1) }> (a, X)""",
}


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("repeated", STEPS)
@pytest.mark.parametrize("called", CALLS)
def test_a_body_may_call_a_function(called: str, repeated: str, form: Any) -> None:
    """The shape of a state that a function computes is known: the function is inlined."""
    model = parsed(f"""g (float[T,N,2] X, float[N,2] a) => (float[N,2] p, float[T,N,2] Y)
        <bool yes = {{1}}, int64 z = {{0}}> {{ {STEPS[repeated]} }}
        <domain: "f", opset_import: ["": 17, "f": 1]> step (s, x) => (n) {{ {CALLS[called]} }}
        <domain: "f", opset_import: ["": 17]> inner (s, x) => (n) {{ u = Add (s, x) n = Tanh (u) }}""")
    options: Any = {"dims": {"T": 4}} if form == "unroll" else {}
    lowered = rl.lower(model, form, lower_loops=True, **options)
    left = {"scan": {"Scan"}, "loop": {"Loop"}, "unroll": set()}[form]
    assert operators(lowered) & {"Loop", "Scan", "step", "inner"} <= left
    feed = {"X": numbers(4, 3, 2), "a": numbers(3, 2)}
    assert_same(run(lowered, feed), run(as_meant(model), feed))


def test_a_function_of_another_opset_stays_in_the_body() -> None:
    model = parsed("""g (float[T,N,2] X, float[N,2] a) => (float[N,2] p) { p = Scan <num_scan_inputs = 1,
            body = b (float[N,2] s, float[N,2] x) => (float[N,2] s1) { s1 = f.step (s, x) }> (a, X) }
        <domain: "f", opset_import: ["": 18]> step (s, x) => (n) { u = Add (s, x) n = Tanh (u) }""")
    assert "step" in operators(rl.lower(model, "loop", lower_loops=True))


OF_UNKNOWN_SIZE = """g (float[T,N,2] X, float[N,2] a) => (float[P,2] p, float[T,P,2] Y)
    <bool yes = {1}, int64 z = {0}, float half = {0.5}> { sh = Shape (X) M = Gather (sh, z)
    most = ReduceMax <axes = [1], keepdims = 0> (a) some = Greater (most, half) h0 = Compress <axis = 0> (a, some)
    p, Y = Loop (M, yes, h0) <body = b (int64 i, bool c, float[P,2] s) => (bool c1, float[P,2] s1, float[P,2] y) {
        x = Gather (X, i) one = ReduceMean <axes = [0, 1], keepdims = 0> (x) k = Mul (s, one) s1 = Tanh (k)
        y = Identity (s1) c1 = Identity (c) }> }"""


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_state_keeps_a_size_that_depends_on_data(steps: int) -> None:
    model = parsed(OF_UNKNOWN_SIZE)
    scan = rl.lower(model, "scan", lower_loops=True)
    assert "Loop" not in operators(scan)
    for number in (-1.0, 1.0):
        feed = {"X": numbers(steps, 3, 2), "a": np.array([[0, 0], [0, number], [1, 0]], np.float32)}
        compared = slice(None) if steps else slice(1)  # onnxruntime's Y of no step has any sizes
        assert_same(run(scan, feed)[compared], run(as_meant(model), feed)[compared])


def test_sizes_that_a_custom_operator_declares_count_where_no_others_are_known() -> None:
    model = onnx.ModelProto.FromString(PARSED_CUSTOM.SerializeToString())
    with pytest.raises(rl.UnsupportedError):
        rl.lower(model, "scan", lower_loops=True)
    shapes: dict[str, list[str | int]] = {"h0": ["N", 3], "X": ["T", "N", 3]}
    for name, shape in shapes.items():
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, 1, shape))
    assert {"If", "Scan"} <= operators(rl.lower(model, "scan", lower_loops=True))


PARSED_CUSTOM = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "my": 1]>
    g (float[T,N,3] x, float[N,3] a) => (float[N,3] p) <bool yes = {1}, int64 z = {0}> {
    h0 = my.Init (a) X = my.Front (x) sh = Shape (X) M = Gather (sh, z)
    p = Loop (M, yes, h0) <body = b (int64 i, bool c, float[N,3] s) => (bool c1, float[N,3] s1) {
        row = Gather (X, i) s1 = Add (s, row) c1 = Identity (c) }> }""")


def negative(model: ModelProto, size: int) -> ModelProto:
    """A copy in which each open size is declared as a negative number, as old exporters write it."""
    copy: ModelProto = ModelProto.FromString(model.SerializeToString())
    graphs = [copy.graph, *(body for _, body in bodies(copy.graph))]
    for info in (info for graph in graphs for info in (*graph.input, *graph.output, *graph.value_info)):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = size
    return copy


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [-1, -2])
def test_a_negative_size_is_an_open_one(size: int) -> None:
    model = negative(parsed(OF_UNKNOWN_SIZE), size)
    feed = {"X": numbers(4, 3, 2), "a": np.array([[0, 0], [0, 1], [1, 0]], np.float32)}
    wanted = run(as_meant(parsed(OF_UNKNOWN_SIZE)), feed)
    shapes: Any = {"input_shapes": {"X": (4, 3, 2)}}
    for options in ({"to": "scan"}, {"to": "loop"}, {"to": "unroll", **shapes}):
        assert_same(run(rl.lower(model, lower_loops=True, **options), feed), wanted)
    given: Any = {"set_inputs": {"a": feed["a"]}}
    assert_same(run(rl.lower(model, "scan", lower_loops=True, **given), {"X": feed["X"]}), wanted)
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(model, "unroll")
    assert 'input_shapes={"X": [?, ?, 2]' in caught.value.hint
    same = ir.from_proto(model)
    rl.LowerRecurrentPass("scan", lower_loops=True)(same)
    assert_same(run(ir.to_proto(same), feed), wanted)
    assert rl.lower(negative(NESTED, size), target="onnxruntime") == negative(NESTED, size)


CUTS = """<ir_version: 8, opset_import: ["": 17]> g (float[9, 3] x, int64[{n}] starts, int64[{n}] ends)
    => (float[m, 3] y) <int64[1] zero = {{0}}, bool go = {{1}}> {{
    s = Shape (starts) n = Squeeze (s) y = Loop (n, go) <body = b (int64 i, bool c) => (bool d, float[3] row) {{
        d = Identity (c) f = Gather (starts, i) l = Gather (ends, i) p = Unsqueeze (f, zero)
        q = Unsqueeze (l, zero) part = Slice (x, p, q) row = ReduceMean <axes = [0], keepdims = 0> (part) }}> }}"""


@pytest.mark.parametrize("steps", ["3", "n"])
def test_tract_gets_no_scan_that_cuts_at_computed_positions(steps: str) -> None:
    """As the bags of an EmbeddingBag do."""
    model = parser.parse_model(CUTS.format(n=steps))
    if steps == "n":
        with pytest.raises(rl.UnsupportedError, match="steps is not known"):
            rl.lower(model, target="tract")
        return
    lowered, report = rl.lower(model, target="tract", full=True)
    assert [(each.form, each.steps) for each in report.loops] == [("unroll", 3)]
    x = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    feed = {"x": x, "starts": np.array([0, 2, 5]), "ends": np.array([2, 5, 9])}
    assert_same(run(lowered, feed), run(model, feed))


def test_a_scan_for_tract_has_at_least_one_step() -> None:
    """It rejects an If around a Scan, so there is none, and the report says so."""
    text = """g (float[T, 4] x) => (float[4] y, float[K, 4] rows) <bool go = {1}, float[4] h0 = {0, 0, 0, 0}> {
        s = Shape <start = 0, end = 1> (x) n = Squeeze (s) y, rows = Loop (n, go, h0) <body = b
        (int64 i, bool c, float[4] h) => (bool d, float[4] k, float[4] r) {
        d = Identity (c) xi = Gather (x, i) k = Add (h, xi) r = Tanh (k) }> }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    others = rl.lower(model, "scan", lower_loops=True)
    lowered, report = rl.lower(model, "scan", target="tract", lower_loops=True, full=True)
    assert "If" in operators(others)
    assert "If" not in operators(lowered)
    assert "at least one step" in str(report.loops[0])
    assert "at least one step" in "".join(report.notes)
    feed = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    assert_same(run(lowered, feed), run(model, feed))
