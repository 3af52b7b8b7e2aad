"""What tract rejects around recurrent nodes is written in another way, with the same numbers."""

from typing import Any

import numpy as np
import onnx
import pytest
from running import assert_close, nodes, operators, run
from texts import parse, random_feed

import rnn_lowering as rl
from rnn_lowering.decomposition.rewrites import rows

REPEATS = {
    "Tile by a computed number": "r = Concat <axis = 0> (one, t, one) y = Tile (x1, r)",
    "Tile by a constant": "y0 = Tile (x1, three) y1 = ReduceSum <keepdims = 1> (y0, one) y = Expand (y1, as_x)",
    "Expand to a computed size": "r = Concat <axis = 0> (one, t, one) y = Expand (x1, r)",
    "Expand to -1, which keeps an axis": """w = Constant <value_ints = [-1]> ()
        q = Constant <value_ints = [-1, -1, -1]> () r = Concat <axis = 0> (w, t, w)
        k = Equal (r, q) e = Where (k, ones, r) y = Expand (x1, e)""",
    "Expand to a constant that keeps axes": """q = Constant <value_int = -1> ()
        r = Constant <value_ints = [-1, 1, -1]> () o = Constant <value_int = 1> () k = Equal (r, q)
        e = Where (k, o, r) a = Abs (e) y0 = Expand (x1, a)
        w = Constant <value_ints = [-1]> () d = Concat <axis = 0> (w, t, w) b = Abs (d) y = Expand (y0, b)""",
    "Expand to a choice by one number": """w = Constant <value_ints = [-1]> () q = Constant <value_int = -1> ()
        o = Constant <value_int = 1> () r = Concat <axis = 0> (w, t, w) k = Equal (r, q) e = Where (k, o, r)
        y = Expand (x1, e)""",
    "Expand to larger sizes": "m = Max (s, ones) y = Expand (x1, m)",
    "Expand that adds axes": "f = Slice (x1, zero, one, zero) v = Squeeze (f, pair) y = Expand (v, s)",
    "Tile by a ratio": "s1 = Shape (x1) r = Div (s, s1) y = Tile (x1, r)",
    "Tile by a product": "p = Concat <axis = 0> (one, t, one) r = Mul (p, ones) y = Tile (x1, r)",
    "Expand to the sizes of another value": "y = Expand (x1, s)",
    "Expand of the last row": "l = Slice (z, minus, end, one) y = Expand (l, s)",
    "Expand with fewer sizes": "r = Concat <axis = 0> (t, one) y = Expand (x1, r)",
    "what repeats nothing": "y0 = Expand (x1, ones) y = Tile (y0, by_t)",
    "in a body": """y = If (c) <then_branch = a () => (float[N, T, 4] p)
        { r = Concat <axis = 0> (one, t, one) p = Tile (x1, r) }, else_branch = b () => (float[N, T, 4] q)
        { q = Identity (z) }>""",
}
NET = """g (float[N, T, 4] z, bool c) => (float[N, T, 4] y)
    <int64[1] minus = {{-1}}, int64[1] before = {{-2}}, int64[1] first = {{-99}}, int64[1] zero = {{0}},
    int64[1] end = {{9223372036854775807}}, int64[1] one = {{1}}, int64[2] pair = {{0, 1}},
    int64[3] ones = {{1, 1, 1}}, int64[3] three = {{1, 3, 1}}> {{
    x1 = ReduceMax <axes = [1], keepdims = 1> (z) s = Shape (z) t = Shape <start: int = 1, end: int = 2> (z)
    as_x = Concat <axis = 0> (one, t, one) by_t = Concat <axis = 0> (one, t, one) {} }}"""


@pytest.mark.parametrize("name", REPEATS)
def test_repeats_of_rows_are_gathered(name: str) -> None:
    net = parse(NET.format(REPEATS[name]), 17)
    lowered, report = rl.lower(net, target="tract", full=True)
    assert not operators(lowered) & {"Tile"}
    assert "Gather" in operators(lowered)
    assert any("as Gather" in note for note in report.notes)
    for sizes in ({"N": 2, "T": 5}, {"N": 1, "T": 1}):
        given: dict[str, Any] = {
            "z": random_feed(net, **sizes)["z"],
            "c": np.array(True),
        }
        assert_close(run(lowered, given), run(net, given))


OTHERS_REPEATED = {
    "an axis whose count is not known": "i = Constant <value_ints = [1]> () r = ScatterElements (ones, i, t)",
    "counts that are not known": """i = Constant <value = int64[1, 1] {1}> () r0 = ScatterND (ones, i, t)
        w = Constant <value_ints = [2, 1, 1]> () r = Mul (r0, w)""",
    "another axis": "w = Constant <value_ints = [2, 5, 1]> () r = Identity (w)",
}


@pytest.mark.parametrize("name", OTHERS_REPEATED)
def test_rows_are_gathered_where_other_axes_are_repeated_too(name: str) -> None:
    net = parse(NET.format(f"{OTHERS_REPEATED[name]} y = Tile (x1, r)"), 17)
    lowered = rl.lower(net, target="tract")
    assert {"Gather", "Tile"} <= operators(lowered)
    for N, T in ((2, 5), (1, 3)):
        given: dict[str, Any] = {"z": random_feed(net, N=N, T=T)["z"], "c": np.array(True)}
        assert_close(run(lowered, given), run(net, given))


KEPT = {
    "an axis that may have another size": "y = Tile (z, three)",
    "an Expand of an axis that may have size 1": "y = Expand (z, three)",
    "rows from the last but one on": "l = Slice (z, before, end, one) y = Expand (l, s)",
    "rows backwards": "l = Slice (z, minus, first, one, minus) y = Expand (l, s)",
    "a constant": "r = Concat <axis = 0> (one, t, one) y = Tile (k, r)",
}


@pytest.mark.parametrize("name", KEPT)
def test_repeats_that_stay(name: str) -> None:
    """Others may repeat rows of any number, and a constant is no product."""
    net = parse(
        NET.format(KEPT[name])
        .replace(
            "int64[3] three",
            "float[1, 1, 4] k = {{1, 2, 3, 4}}, int64[3] three",
        )
        .replace("{{", "{")
        .replace("}}", "}"),
        17,
    )
    assert operators(net) & {"Tile", "Expand"} <= operators(rl.lower(net, target="tract"))


SKIPS = {
    "from the start": ("0", "9999", "1", "2"),
    "by int32": ("0", "9999", "1", "2"),
    "from a row to another": ("1", "-1", "1", "2"),
    "along two axes": ("0, 3", "99, -99", "1, 2", "2, -1"),
    "a known number of rows": ("1", "4", "-1", "2"),
    "from the last on": ("-1", "-9223372036854775807", "1", "-1"),
    "every second from the last on": ("-1", "-9223372036854775807", "1", "-2"),
    "a known number from the last on": ("3", "-9", "-1", "-1"),
}


@pytest.mark.parametrize("name", SKIPS)
def test_rows_that_are_skipped_are_gathered(name: str) -> None:
    """It puts such a Slice before a Scan, and fails; along an open axis it has none."""
    bounds = "".join(f"{n} = Constant <value_ints = [{v}]> () " for n, v in zip("abcd", SKIPS[name], strict=True))
    casts = "".join(f"{n}32 = Cast <to = 6> ({n}) " for n in "abcd")
    names = "a32, b32, c32, d32" if name == "by int32" else "a, b, c, d"
    net = parse(f"g (float[N, T, 4] z) => (float[N, M, K] y) {{ {bounds} {casts} y = Slice (z, {names}) }}", 17)
    lowered, report = rl.lower(net, target="tract", full=True)
    assert report.notes == ["tract fails on rows that are skipped or flipped: wrote 1 Slice as Gather"]
    for T in (1, 5, 8):
        feed = random_feed(net, N=2, T=T)
        assert_close(run(lowered, feed), run(net, feed))


STEPS = {
    "the last": ("minus, end, zero", True),
    "the first": ("zero, one, zero", True),
    "of other axes": ("minus, end, one", True),
    "two": ("pair, end, zero", False),
    "the second": ("one, two, zero", False),
    "by a computed number": ("n, end, zero", False),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("between", ["u = Squeeze (y, one)", "v = Squeeze (y, one) w = Tanh (v) u = Transpose (w)"])
def test_steps_of_a_scan_are_gathered(name: str, between: str) -> None:
    """It moves a Slice of one without end where the batch is open and another Scan is added."""
    bounds, is_gathered = STEPS[name]
    net = parse(
        f"""g (float[T, N, 3] x, int64[1] n) => (float[a, b, c] z)
        <float[1, 6, 3] W = {{}}, float[1, 6, 2] R = {{}}, int64[1] zero = {{0}}, int64[1] one = {{1}},
        int64[1] two = {{2}}, int64[1] minus = {{-1}}, int64[1] pair = {{-2}}, int64[1] end = {{99999999999}}> {{
        y = GRU <hidden_size = 2> (x, W, R) {between} z = Slice (u, {bounds}) }}""",
        17,
    )
    lowered = rl.lower(net, target="tract", to="scan")
    assert ("Slice" not in operators(lowered)) == is_gathered
    for T in (1, 4):
        feed = random_feed(net, T=T, N=2) | {"n": np.array([-1])}
        assert_close(run(lowered, feed), run(net, feed))


MEETINGS = {
    "each step with each": ("p = Unsqueeze (a, one) q = Unsqueeze (b, zero) y = Add (p, q)", True),
    "steps with a last state": ("y = Mul (h, a)", True),
    "steps with one row for all": ("l = ReduceMax <axes = [0]> (b) m = Tanh (l) y = Max (m, a)", True),
    "steps with steps": ("y = Add (a, b)", False),
    "each step with each of the same": ("p = Unsqueeze (a, one) q = Unsqueeze (a, zero) y = Add (p, q)", False),
    "products of steps": ("c = MatMul (a, k) p = Unsqueeze (c, one) q = Unsqueeze (b, zero) y = Add (p, q)", False),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_rows_of_a_scan_that_are_broadcast_against_another(name: str) -> None:
    body, is_held = MEETINGS[name]
    net = parse(
        f"""g (float[T, N, 3] x, float[T, N, 4] z) => (float[i, j, k2, k3] y)
        <float[1, 6, 3] W = {{}}, float[1, 6, 4] V = {{}},
        float[1, 6, 2] R = {{}}, float[2, 2] k = {{}}, int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
        a4 = GRU <hidden_size = 2> (x, W, R) a = Squeeze (a4, one)
        b4, h = GRU <hidden_size = 2> (z, V, R) b = Squeeze (b4, one) {body} }}"""
    )
    lowered, report = rl.lower(net, target="tract", to="scan", full=True)
    assert any("rows of Scans" in note for note in report.notes) == is_held
    for T in (1, 4):
        feed = random_feed(net, T=T, N=2)
        assert_close(run(lowered, feed), run(net, feed))


def test_nodes_behind_two_scans_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, read = [], rows._read

    def counted(node: Any) -> Any:
        looked.append(node)
        return read(node)

    monkeypatch.setattr(rows, "_read", counted)
    chain = " ".join(f"s{n + 1} = Tanh (s{n})" for n in range(200))
    net = parse(
        f"""g (float[T, 1, 3] x) => (float[T, 1, 2] y) <float[1, 6, 3] W = {{}}, float[1, 6, 2] R = {{}},
        int64[1] one = {{1}}> {{ a4 = GRU <hidden_size = 2> (x, W, R) a = Squeeze (a4, one)
        b4 = GRU <hidden_size = 2, linear_before_reset = 1> (x, W, R) b = Squeeze (b4, one)
        s0 = Add (a, b) {chain} y = Identity (s200) }}"""
    )
    rl.lower(net, target="tract", to="scan")
    assert 200 < len(looked) < 400


def test_bodies_of_scans_name_no_sizes_and_hold_rows_that_are_repeated() -> None:
    net = parse("""g (float[T, batch] x, float[batch, 4] h0) => (float[batch, 4] last, float[T, batch, 4] y) {
        last, y = Scan <num_scan_inputs = 1, body = b (float[batch, 4] h, float[batch] xt)
        => (float[batch, 4] h2, float[batch, 4] row) <int64[1] one = {1}> {
        u = Unsqueeze (xt, one) d = Sub (u, h) h2 = Tanh (d) row = Add (h, h2) }> (h0, x) }""")
    lowered = rl.lower(net, target="tract")
    (body,) = (a.g for node in lowered.graph.node for a in node.attribute if a.name == "body")
    sizes = [dim for value in (*body.input, *body.output) for dim in value.type.tensor_type.shape.dim]
    assert [dim.dim_value for dim in sizes if dim.dim_value] == [4, 4, 4]
    assert not any(dim.dim_param for dim in sizes)
    assert [node.op_type for node in body.node].count("Where") == 1
    feed = random_feed(net, T=5, batch=2)
    assert_close(run(lowered, feed), run(net, feed))


def test_remainders_of_sizes_stay() -> None:
    """They are right, and tract divides no sizes by others."""
    net = parse(
        "g (float[N, T] x) => (int64[2] y) <int64 n = {4}> { s = Shape (x) t = Add (s, n) y = Mod (t, n) }", 17
    )
    assert "Mod" in operators(rl.lower(net, target="tract"))


def test_the_axis_of_a_sum_is_a_scalar() -> None:
    net = parse("g (float[N, T] x) => (float[N, T] y) <int64[1] one = {1}> { y = CumSum (x, one) }", 17)
    lowered, report = rl.lower(net, target="tract", full=True)
    assert report.notes == ["tract takes the axis of a CumSum as a scalar only: wrote 1 so"]
    (axis,) = [tensor for tensor in lowered.graph.initializer if tensor.name in lowered.graph.node[0].input]
    assert list(axis.dims) == []
    feed = random_feed(net, N=2, T=5)
    assert_close(run(lowered, feed), run(net, feed))


UNLIKE = """g (float[N, T, 4] z) => (float[N, a, b] y) <int64[1] one = {1}, int64 first = {1}> {
    s = Shape (z) t = Gather (s, first) f = Squeeze (one) c = Equal (t, f)
    y = If (c) <then_branch = a () => (p) { p = Squeeze (z, one) }, else_branch = b () => (q) { q = Identity (z) }>
}"""


@pytest.mark.parametrize("target", ["tract", "openvino"])
def test_branches_of_other_ranks_are_refused_but_at_known_sizes(target: Any) -> None:
    net = parse(UNLIKE, 17)
    with pytest.raises(rl.UnsupportedError, match=r"so that one goes: dims={\"N\": \?, \"T\": \?}, or use"):
        rl.lower(net, target=target)
    rl.lower(net, target=target, dims={"N": 2, "T": 5})


SIZES = {
    "TopK": "l = Cast <to = 7> (n) v, i = TopK (l, one)",
    "ArgMax": "s = Shape (x) v = ArgMax <axis = 0> (s)",
    "CumSum": "s = Shape (x) z = Size (x) q = Mul (s, z) k = Squeeze (one) v = CumSum (q, k)",
    "Pad": "s = Shape (x) p = Concat <axis = 0> (one, one) a = Pad (s, p) b = Abs (a)"
    " c = Cast <to = 1> (b) v = Cast <to = 7> (c)",
    "Sign": "l = Cast <to = 7> (n) a = Sign (l) b = Cast <to = 1> (a) v = Cast <to = 7> (b)",
    "an output": "s = Shape (x) v = Mul (s, one)",
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_become_numbers(name: str) -> None:
    axis = "{0}" if name == "CumSum" else "{1}"
    net = parse(f"g (float[N, T] x, int32[N] n) => (int64[K] v) <int64[1] one = {axis}> {{ {SIZES[name]} }}", 17)
    lowered = rl.lower(net, target="tract")
    assert "CastLike" in operators(lowered)
    feed = {"x": np.zeros((3, 5), np.float32), "n": np.array([2, 5, 4], np.int32)}
    assert_close(run(lowered, feed), run(net, feed))


def test_an_output_of_sizes_that_nodes_read_stays_in_order() -> None:
    net = parse(
        """g (float[1, T] x) => (int64[2] v, float[A, T] y) <int64[2] k = {3, 1}> {
        s = Shape (x) v = Mul (s, k) y = Expand (x, v) }""",
        17,
    )
    lowered = rl.lower(net, target="tract")
    assert [node.op_type for node in nodes(lowered)][-1] == "CastLike"
    feed = random_feed(net, T=5)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("factors", ["", "<alpha = 0.5, beta = 2.0, transB = 0>"])
def test_a_bias_of_halves_is_added(factors: str) -> None:
    net = parse(
        f"""g (float16[N, 4] x) => (float16[N, 3] y) <float16[4, 3] w = {{}}, float16[3] b = {{}}>
        {{ y = Gemm {factors} (x, w, b) }}""",
        17,
    )
    lowered = rl.lower(net, target="tract")
    assert [len(node.input) for node in nodes(lowered) if node.op_type == "Gemm"] == [2]
    feed = random_feed(net, N=5)
    assert_close(run(lowered, feed), run(net, feed), "float16")
    assert rl.lower(lowered, target="tract").SerializeToString() == lowered.SerializeToString()


def test_numbers_that_follow_no_sizes_stay() -> None:
    text = "v = CumSum (n, one) w = ArgMax (x) }"
    net = parse("g (float[N, T] x, int64[N] n) => (int64[N] v, int64[M, T] w) <int64 one = {0}> { " + text, 17)
    assert rl.lower(net, target="tract").graph == net.graph


OLDER = {
    "what is returned": """(float[2, 3] x) => (int64[2, 3] y) <float z = {0}> {
        b = Less (x, z) y = Cast <to = 7> (b) }""",
    "what a TopK reads": """(float[5] x) => (int64[1] y) <int64[1] one = {1}> {
        l = Cast <to = 7> (x) y, i = TopK (l, one) }""",
}


@pytest.mark.parametrize("opset", [11, 13, 14])
@pytest.mark.parametrize("name", OLDER)
def test_sizes_become_numbers_at_opset_15(name: str, opset: int) -> None:
    net = parse(f"g {OLDER[name]}", opset)
    lowered, report = rl.lower(net, target="tract", full=True)
    assert "CastLike" in operators(lowered)
    assert f"tract computes more nodes right at opset 15: wrote those of opset {opset} so" in report.adapted
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))


@pytest.mark.parametrize("name", OLDER)
def test_a_model_with_functions_stays_at_its_opset(name: str) -> None:
    net = parse(f"g {OLDER[name]}", 13)
    relu = onnx.helper.make_node("Relu", ["a"], ["b"])
    net.functions.append(onnx.helper.make_function("local", "f", ["a"], ["b"], [relu], net.opset_import))
    with pytest.raises(rl.UnsupportedError, match="opset 13 has no CastLike; export the model at opset 15"):
        rl.lower(net, target="tract")


@pytest.mark.parametrize("batch", [1, 3])
def test_one_place_of_a_batch_is_refused(batch: int) -> None:
    places = ", ".join(["2"] * batch)
    net = parse(
        f"""g (float[{batch}, 5, 2] x) => (float[a, b] y) <int64[{batch}, 1] i = {{{places}}}> {{
        y = GatherND <batch_dims = 1> (x, i) }}"""
    )
    if batch > 1:
        assert operators(rl.lower(net, target="tract")) == {"GatherND"}
        return
    with pytest.raises(rl.UnsupportedError, match=r"GatherND.*computes it without its batches"):
        rl.lower(net, target="tract")


KEPT_IFS = {
    "a Reshape to other sizes": "p = Reshape (x, flat)",
    "an integer division": "i = Cast <to = 7> (x) j = Div (i, i) p = Cast <to = 1> (j)",
    "rows of another number": "k = Concat <axis = 0> (x, x) p = Slice (k, zeros, ones, zeros)",
}


@pytest.mark.parametrize("name", KEPT_IFS)
def test_branches_that_may_fail_stay(name: str) -> None:
    branch = """<then_branch = {0}a () => (float[N, 4] p) {{ {1} }},
        else_branch = {0}b () => (float[N, 4] q) {{ q = Neg (x) }}>"""
    net = parse(
        f"""g (float[N, 4] x, bool c, bool d) => (float[N, 4] y, float[N, 4] z)
        <int64[2] flat = {{-1, 4}}, int64[1] zeros = {{0}}, int64[1] ones = {{1}}> {{
        y = If (c) {branch.format("f", KEPT_IFS[name])} z = If (d) {branch.format("s", KEPT_IFS[name])} }}"""
    )
    assert "Where" not in operators(rl.lower(net, target="tract"))


def test_one_if_stays() -> None:
    net = parse(
        """g (float[N, 4] x, bool c) => (float[N, 4] y) {
        y = If (c) <then_branch = a () => (float[N, 4] p) { p = Relu (x) },
            else_branch = b () => (float[N, 4] q) { q = Neg (x) }> }"""
    )
    assert "Where" not in operators(rl.lower(net, target="tract"))


def test_other_runtimes_get_none_of_it() -> None:
    net: onnx.ModelProto = parse(NET.format(REPEATS["Tile by a computed number"]), 17)
    assert rl.lower(net, target="openvino").graph == net.graph


@pytest.mark.parametrize("target", ["tract", "opencv", "mnn"])
def test_fills_have_a_number(target: Any) -> None:
    """tract makes float64 of a fill without a number, and MNN has other numbers now and then."""
    net = parse(
        "g (float[N, T] x, float[1] w) => (float[N, T] y) { s = Shape (x) z = ConstantOfShape (s) y = Add (z, w) }",
        17,
    )
    (fill,) = [node for node in rl.lower(net, target=target).graph.node if node.op_type == "ConstantOfShape"]
    assert fill.attribute[0].t.data_type == onnx.TensorProto.FLOAT


def test_a_vector_of_integers_is_multiplied_as_a_matrix() -> None:
    """tract gives its product a second axis, without an error."""
    net = parse(
        """g (float[4] x) => (int32[M] y) <int8[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}>
        { q, s, z = DynamicQuantizeLinear (x) y = MatMulInteger (q, w, z) }"""
    )
    lowered = rl.lower(net, target="tract")
    assert [n.op_type for n in lowered.graph.node] == [
        "DynamicQuantizeLinear",
        "Unsqueeze",
        "MatMulInteger",
        "Squeeze",
    ]
    feed = random_feed(net)
    assert_close(run(lowered, feed), run(net, feed))
