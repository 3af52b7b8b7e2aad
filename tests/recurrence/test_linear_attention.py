"""LinearAttention of both domains in every form, beside float64, onnx's reference and onnxruntime's kernels."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attention import RULES, STANDARD, Attention, error
from cases import DTYPES, Arrays
from graphs import MS, value
from onnx import helper
from refusals import with_attributes
from running import evaluated, run
from texts import parse
from thinning import by_turns

import rnn_lowering as rl
from rnn_lowering.attention.linear_attention import LinearAttentionSpec
from rnn_lowering.cli.command import main
from rnn_lowering.compare.float64.evaluator import evaluate_model

FORMS = ("scan", "loop", "unroll", "chunked")
LIMITS = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
"""The largest error, relative to the largest value."""

HEADS = {"one": (2, 2, 0), "group": (4, 2, 0), "inverse group": (2, 4, 2), "one key": (3, 6, 1)}
SIZES = ((5, ""), (5, "T"), (70, ""), (45, "BT"), (1, "T"), (1, ""), (16, "B"))


pytestmark = pytest.mark.usefixtures("workers_here")


def assert_right(case: Attention, got: Arrays, feed: Arrays | None = None) -> None:
    expected = case.expected(case.feed() if feed is None else feed)
    for symbol in expected:
        dtype = case.type_of(symbol)
        assert got[symbol].dtype == DTYPES[dtype]
        far = error({symbol: got[symbol]}, {symbol: expected[symbol]})
        assert far <= LIMITS[dtype], (case, symbol, far)


def lowered_right(case: Attention, form: Any = "auto", **options: Any) -> onnx.ModelProto:
    lowered: onnx.ModelProto = rl.lower(case.model(), form, **options)
    assert not {node.op_type for node in lowered.graph.node} & {"LinearAttention"}
    assert_right(case, run(lowered, case.feed(), relabel=False))
    return lowered


# The oracle


@pytest.mark.parametrize("rule", RULES)
def test_onnx_and_onnxruntime_compute_what_the_oracle_does(rule: str) -> None:
    for heads, by_key, state in product(HEADS.values(), (False, True), (False, True)):
        Hq, H, n = heads
        for domain in (STANDARD, MS) if n == 0 else (MS,):
            case = Attention(rule, domain, Hq=Hq, H=H, n=n, by_key=by_key, state=state, decays="strong", scale=-0.7)
            assert_right(case, run(case.model(), case.feed(), relabel=False))
            if domain == STANDARD:
                assert_right(case, evaluated(case.model(), case.feed()))


# Every form


@pytest.mark.few(1)
@pytest.mark.parametrize(("rule", "form"), by_turns(list(RULES), FORMS))
def test_every_form_computes_what_float64_does(rule: str, form: str) -> None:
    """Heads, sizes and decays in turn; 1 as a value size, without past_state, one beta for all heads."""
    turn = list(product(HEADS.values(), (False, True)))
    for number, ((T, opened), dv) in enumerate(product(SIZES, (3, 1))):
        (Hq, H, n), by_key = turn[number % len(turn)]
        if form == "unroll" and "T" in opened and T > 1:
            continue
        case = Attention(
            rule,
            STANDARD if n == 0 and number % 2 else MS,
            T=T,
            open="" if form == "unroll" else opened,
            dv=dv,
            by_key=by_key,
            decays="strong",
            state=number % 3 != 0,
            one_beta=number % 2 == 0,
            scale=(None, 1.0, -0.7)[number % 3],
            Hq=Hq,
            H=H,
            n=n,
        )
        lowered_right(case, form)


@pytest.mark.few(1)
@pytest.mark.parametrize("domain", [STANDARD, MS])
def test_every_pair_of_types(domain: str) -> None:
    """The step is computed in float32: a float16 sum would stop at 2048. bfloat16 runs in onnx's evaluator."""
    form: Any
    for form, dtype, state_dtype in product(("scan", "chunked"), LIMITS, LIMITS):
        case = Attention(domain=domain, T=6, dtype=dtype, state_dtype=state_dtype, H=1, Hq=1)
        lowered = rl.lower(case.model(), form)
        runs = run if "bfloat16" not in (dtype, state_dtype) else evaluated
        assert_right(case, runs(lowered, case.feed()))
    lowered_right(Attention(dtype="float16", state=False, T=3))  # present_state has the type of the query


def test_a_sum_of_float16_goes_beyond_2048() -> None:
    case = Attention("linear", T=64, dtype="float16", state_dtype="float32", Hq=1, H=1, dk=1, dv=2, keys="equal")
    feed = case.feed() | {"value": np.full((2, 64, 2), 100, np.float16)}
    feed["key"][:] = 1
    form: Any
    for form in FORMS:
        assert_right(case, run(rl.lower(case.model(), form), feed), feed)


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
def test_no_steps_and_no_rows(form: str) -> None:
    """The output is empty and the state is passed on, whether the size is known or not; a Scan takes a step."""
    for sizes, state in product(({"T": 0}, {"B": 0}, {"B": 0, "T": 0}), (True, False)):
        for opened in ("", "BT"):
            if opened and (form == "unroll" or (form == "scan" and "T" in sizes)):
                continue
            for by_key in (False, True):
                case = Attention(state=state, open=opened, dv=2, by_key=by_key, **sizes)  # type: ignore[arg-type]
                lowered_right(case, form)


@pytest.mark.few(1)
@pytest.mark.parametrize("opset", [7, 9, 10, 13, 25])
def test_every_opset(opset: int) -> None:
    """com.microsoft has the operator at any; a Scan needs opset 9."""
    for form in FORMS:
        for case in (Attention(T=40), Attention(T=40, open="BT", by_key=True), Attention(T=1), Attention(T=0)):
            has_scan = opset >= 9 or case.T < 2 or (form == "chunked" and not case.open)
            if form == "loop" or (has_scan and form != "unroll") or (form == "unroll" and not case.open):
                lowered_right(replace(case, opset=opset), form)


def test_calls_of_any_length_continue_each_other() -> None:
    whole = Attention(T=23, open="T", B=1)
    feed, ends = whole.feed(), ((0, 1), (1, 2), (2, 12), (12, 23))
    for form in ("scan", "loop", "chunked"):
        lowered = rl.lower(whole.model(), form)
        state, outputs = feed["past_state"], []
        for start, end in ends:
            part = {s: a[:, start:end] for s, a in feed.items() if s != "past_state"}
            got = run(lowered, part | {"past_state": state})
            state = got["present_state"]
            outputs.append(got["output"])
        assert_right(whole, {"output": np.concatenate(outputs, axis=1), "present_state": state})


def test_infinite_states_stay_and_a_reset_forgets_finite_ones() -> None:
    """exp(-inf) is 0; 0 * inf is NaN, as in the original."""
    case = Attention("gated", T=4, B=1, Hq=1, H=1, decays="weak")
    feed = case.feed()
    feed["decay"][:, 2] = -np.inf
    form: Any
    for form in FORMS:
        got = run(rl.lower(case.model(), form), feed)
        assert_right(case, got, feed)
        spoiled = feed | {"past_state": np.full_like(feed["past_state"], np.inf)}
        assert np.isnan(run(rl.lower(case.model(), form), spoiled)["present_state"]).all()


# Numerics of chunks


@pytest.mark.few(1)
@pytest.mark.parametrize(("rule", "by_key"), [("gated_delta", False), ("gated_delta", True), ("delta", False)])
@pytest.mark.parametrize("keys", ["unit", "equal", "positive"])
@pytest.mark.parametrize("decays", ["weak", "strong"])
def test_chunks_are_as_exact_as_steps(rule: str, by_key: bool, keys: str, decays: str) -> None:
    """Squared powers of A give 0.8 for positive keys and 1e29 for equal ones; differences of running sums 8e-6 for
    strong decays among weak ones, and NaN for -inf."""
    for T, opened, target in ((256, "", "portable"), (256, "T", "portable"), (1024, "T", "onnxruntime")):
        case = Attention(
            rule, T=T, B=1, Hq=1, H=1, dk=32, dv=4, by_key=by_key, keys=keys, decays=decays, open=opened
        )
        lowered_right(case, "chunked", target=target)


@pytest.mark.few(1)
@pytest.mark.parametrize("by_key", [False, True])
def test_chunks_of_4096_steps(by_key: bool) -> None:
    for keys, decays in (("positive", "strong"), ("equal", "weak")):
        case = Attention(T=4096, B=1, Hq=1, H=1, dk=32, dv=4, by_key=by_key, keys=keys, decays=decays, open="T")
        lowered_right(case, "chunked", target="onnxruntime")


# Forms and what is emitted


def test_the_form_that_is_chosen() -> None:
    for case, form, for_onnxruntime in (
        (Attention(T=1), "unroll", "unroll"),
        (Attention(T=64), "chunked", "chunked"),
        (Attention(T=64, open="T"), "scan", "chunked"),
        (Attention(T=64, dv=1), "scan", "scan"),
        (Attention(T=64, dv=1, open="T"), "scan", "scan"),
        (Attention(T=4, dv=1), "unroll", "unroll"),
    ):
        target: Any
        for target, expected in (("portable", form), ("onnxruntime", for_onnxruntime)):
            (node,) = rl.lower(case.model(), target=target, full=True)[1].nodes
            assert node.form == expected


@pytest.mark.few(2)
@pytest.mark.parametrize(("rule", "by_key"), by_turns(list(RULES), [False, True]))
def test_one_model_for_any_length_in_onnxruntime(rule: str, by_key: bool) -> None:
    """Few steps are steps of a Scan, more are chunks, also no steps: one model for a prompt and its next tokens."""
    for batch, (Hq, H, n) in ((1, HEADS["group"]), (2, HEADS["inverse group"])):
        case = Attention(rule, B=batch, T=70, open="BT", by_key=by_key, decays="strong", dv=5, Hq=Hq, H=H, n=n)
        lowered = rl.lower(case.model(), target="onnxruntime")
        (choice,) = (node for node in lowered.graph.node if node.op_type == "If")
        assert [sum(n.op_type == "Scan" for n in a.g.node) for a in choice.attribute] == [1, 1]
        for T in (0, 1, 7, 15, 16, 23, 24, 31, 32, 33, 70):
            part = replace(case, T=T)
            assert_right(part, run(lowered, part.feed()))


def test_one_step_of_large_states_in_onnxruntime() -> None:
    """Groups of heads, whose states stay in a cache, with one beta for all or one for each."""
    case = Attention(T=1, B=1, Hq=16, n=16, H=32, dk=128, dv=128)
    for each in (case, replace(case, by_key=True, one_beta=True), replace(case, Hq=32, n=0, rule="linear")):
        lowered = lowered_right(each, target="onnxruntime")
        assert sum(node.op_type == "Split" for node in lowered.graph.node) >= 3


def test_known_lengths_in_onnxruntime() -> None:
    """More chunks than fit into a cache are in a Scan; the last may be shorter."""
    for case in (
        Attention(T=70, Hq=8, H=8, dk=64),
        Attention(T=45, Hq=8, H=8, dk=64, by_key=True),
        Attention(T=70),
    ):
        lowered = lowered_right(case, target="onnxruntime")
        assert any(node.op_type == "Scan" for node in lowered.graph.node) == (case.H == 8)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["mnn", "iree", "openvino", "opencv", "tinygrad", "tract", "tvm"])
def test_for_each_runtime(target: str) -> None:
    """What a target puts in place of operators fits those of chunks too; OpenCV multiplies by matrices rightly, not
    by one for each block."""
    for case in (Attention(opset=17), Attention(opset=17, T=1, B=1), Attention(opset=17, by_key=True, Hq=4, dv=1)):
        lowered_right(case, target=target)
    for by_key in (False, True):
        lowered = lowered_right(Attention(T=70, B=1, dk=64, by_key=by_key), "chunked", target=target)
        ranks = {tensor.name: len(tensor.dims) for tensor in lowered.graph.initializer}
        assert all(ranks.get(x, 0) <= 2 for n in lowered.graph.node if n.op_type == "MatMul" for x in n.input)


def test_the_page_has_the_forms_of_each_runtime() -> None:
    page = (Path(__file__).parents[2] / "docs" / "linear-attention.md").read_text()
    rows = {name: target.attention.forms for name, target in rl.TARGETS.items() if target.attention.forms}
    assert all(f"| {name} | {', '.join(forms)} |\n" in page for name, forms in rows.items())
    name: Any
    for name in rows:
        assert set(rl.TARGETS[name].attention.forms) <= {*rl.TARGETS[name].forms, "chunked"}
        opened = Attention(T=5, open="T", opset=17).model()
        loops = [form for form in rl.TARGETS[name].attention.forms if form not in ("unroll", "chunked")]
        if loops and "T" not in rl.TARGETS[name].sizes:
            (node,) = rl.lower(opened, target=name, full=True)[1].nodes
            assert node.form == (rl.TARGETS[name].attention.forms[0] if name == "onnxruntime" else loops[0])


def test_only_chunks_of_an_open_length_are_in_a_loop() -> None:
    for opened, by_key in product(("", "T"), (False, True)):
        target: Any
        for target, loop in (("portable", "Scan"), ("openvino", "Loop")):
            lowered = rl.lower(Attention(T=40, open=opened, by_key=by_key).model(), "chunked", target=target)
            loops = [n.op_type for n in lowered.graph.node if n.op_type in ("Scan", "Loop")]
            assert loops == ([loop] if opened else [])


def test_chunked_is_limited_as_unrolled_steps_are() -> None:
    case = Attention(T=4096)
    with pytest.raises(rl.UnsupportedError, match="128 chunks are more than the limit of 100 for unrolling"):
        rl.lower(case.model(), "chunked", max_unroll=100)
    assert rl.lower(case.model(), max_unroll=100, full=True)[1].nodes[0].form == "scan"


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_other_nodes_have_no_chunks(op_type: str) -> None:
    rows = 2 * {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    proto = parse(f"""g (float[5,1,2] X) => (float[5,1,1,2] Y)
        <float[1,{rows},2] W = {{}}, float[1,{rows},2] R = {{}}>
        {{ [node] Y = {op_type} <hidden_size = 2> (X, W, R) }}""")
    reason = f"the step of {op_type} is not linear in its state, so steps cannot be joined into chunks"
    said = f'{op_type} node \'node\' in main graph: {reason}; use to="scan" or to="loop" or to="unroll"'
    with pytest.raises(rl.UnsupportedError, match=said):
        rl.lower(proto, "chunked")


def test_chunked_of_a_model_with_nodes_that_need_no_loop() -> None:
    """A convolution beside it is what it is in every form."""
    case = Attention(T=9, dk=4, Hq=2)
    original = case.model()
    original.graph.node.insert(
        0, helper.make_node("CausalConvWithState", ["wide", "weight"], ["query", "frames"], "conv", domain=MS)
    )
    (query,) = (v for v in original.graph.input if v.name == "query")
    original.graph.input.remove(query)
    original.graph.input.append(value("wide", [2, 9, 8]))
    original.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((9, 1, 2), np.float32), "weight"))
    forms = [node.form for node in rl.lower(original, "chunked", full=True)[1].nodes]
    assert forms == ["unroll", "chunked"]


def test_what_a_step_costs() -> None:
    """The body of a Scan has an operator for each term and an Unsqueeze at most; nothing copies a state."""
    most = {"linear": 4, "gated": 5, "delta": 6, "gated_delta": 7}
    for rule, count in most.items():
        lowered = rl.lower(Attention(rule, open="T").model(), "scan")
        (scan,) = (node for node in lowered.graph.node if node.op_type == "Scan")
        (body,) = (a.g for a in scan.attribute if a.name == "body")
        assert len(body.node) <= count
        once = rl.lower(Attention(rule, T=1).model())
        assert not {n.op_type for n in once.graph.node} & {"Identity", "Squeeze", "Unsqueeze", "Transpose", "Scan"}


# Where a node may be, and what its inputs may be


def block(domain: str) -> onnx.ModelProto:
    """Return a model with nodes in a function, in a branch, and in a Loop that carries the state."""
    opset = 27 if domain == "" else 21
    operator = f"{domain}.LinearAttention" if domain else "LinearAttention"
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1, "local": 1]>
        g (float[1,T,8] x, float[1,T,2] g, bool go, int64 count) => (float[1,T,8] y, float[1,2,4,4] s) {{
            zero = Constant <value: tensor = float[1,2,4,4] {{ {", ".join(["0"] * 32)} }}> ()
            k = Mul (x, x)
            y0, s0 = If (go) <
                then_branch = yes () => (float[1,T,8] yes_y, float[1,2,4,4] yes_s) {{
                    [branch] yes_y, yes_s = {operator} <q_num_heads: int = 2, kv_num_heads: int = 2,
                        update_rule: string = "gated"> (x, k, x, zero, g)
                }},
                else_branch = no () => (float[1,T,8] no_y, float[1,2,4,4] no_s) {{
                    no_y, no_s = local.attend <heads = 2> (x, k)
                }}
            >
            y, s = Loop (count, , y0, s0) <body = again
                (int64 i, bool going, float[1,T,8] h, float[1,2,4,4] past)
                => (bool on, float[1,T,8] h1, float[1,2,4,4] present) {{
                    on = Identity (going)
                    [looped] h1, present = {operator} <q_num_heads: int = 2, kv_num_heads: int = 2,
                        update_rule: string = "gated"> (h, k, h, past, g)
                }}
            >
        }}
        <domain: "local", opset_import: ["": {opset}, "com.microsoft": 1]>
        attend <heads> (q, k) => (y, s) {{
            [inner] y, s = {operator} <q_num_heads: int = @heads, kv_num_heads: int = @heads,
                update_rule: string = "linear"> (q, k, q)
        }}
    """)


@pytest.mark.parametrize("domain", [STANDARD, MS])
def test_in_bodies_and_functions(domain: str) -> None:
    original, rng = block(domain), np.random.default_rng(0)
    for form in ("scan", "chunked"):
        lowered = rl.lower(original, form, except_="Loop")
        for go in (True, False):
            feed: Arrays = {
                "x": rng.standard_normal((1, 6, 8)).astype(np.float32) / 2,
                "g": -rng.random((1, 6, 2)).astype(np.float32),
                "go": np.array(go),
                "count": np.array(2),
            }
            before, after = run(original, feed, relabel=False), run(lowered, feed)
            assert error(after, {name: array.astype(np.float64) for name, array in before.items()}) < 2e-6
    scopes = [spec.node.scope for spec in rl.inspect(original)]
    assert [scope.rpartition(" ")[2] for scope in scopes] == ["then_branch", "else_branch", "body"]


def with_tensors(case: Attention, names: tuple[str, ...], *, overridable: bool = False) -> onnx.ModelProto:
    """Return the model of a case with initializers in place of inputs, or as their defaults."""
    original, feed = case.model(), case.feed()
    kept = [v for v in original.graph.input if overridable or v.name not in names]
    original.graph.initializer.extend(onnx.numpy_helper.from_array(feed[name], name) for name in names)
    del original.graph.input[:]
    original.graph.input.extend(kept)
    return original


@pytest.mark.parametrize("form", ["scan", "unroll", "chunked"])
def test_constant_and_overridable_inputs(form: Any) -> None:
    case = Attention(T=9)
    for names in (("decay",), ("past_state", "key"), ("query", "key", "value", "past_state", "decay", "beta")):
        feed = {s: a for s, a in case.feed().items() if s not in names}
        assert_right(case, run(rl.lower(with_tensors(case, names), form), feed))
    other = case.feed(seed=1)
    overridable = rl.lower(with_tensors(case, ("decay", "past_state"), overridable=True), form)
    assert_right(case, run(overridable, other), other)
    assert_right(case, run(overridable, {s: a for s, a in case.feed().items() if s not in ("decay", "past_state")}))


def test_inputs_that_a_rule_of_com_microsoft_ignores() -> None:
    case = Attention("linear")
    full = Attention("gated_delta")
    original, feed = full.model(), full.feed()
    (node,) = original.graph.node
    next(a for a in node.attribute if a.name == "update_rule").s = b"linear"
    form: Any
    for form in FORMS:
        got = run(rl.lower(original, form), feed)
        assert_right(case, got, {s: feed[s] for s in case.shapes()})


def test_decays_of_unknown_width() -> None:
    form: Any
    for by_key, form in product((False, True), ("scan", "chunked", "unroll")):
        case = Attention(by_key=by_key, T=20)
        original = case.model()
        (decay,) = (v for v in original.graph.input if v.name == "decay")
        decay.type.tensor_type.shape.dim[2].dim_param = "width"
        assert_right(case, run(rl.lower(original, form), case.feed()))


# Reading, comparing, reporting


def test_what_a_specification_says() -> None:
    case = Attention("gated", Hq=2, H=4, n=1, T=7, open="B", by_key=True)
    (spec,) = rl.inspect(case.model())
    assert isinstance(spec, LinearAttentionSpec)
    assert (spec.query_heads, spec.key_heads, spec.state_heads, spec.output_heads) == (2, 1, 4, 4)
    assert (spec.key_size, spec.value_size, spec.decay_size, spec.scale) == (4, 3, 4, 0.5)
    assert (spec.seq_length, spec.batch_size, spec.version) == (7, None, 1)
    assert spec.details == "gated, 4 states of 4x3"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("case", "whole"),
    [
        (Attention("delta", STANDARD, open="BT"), True),
        (Attention(T=40, open="B"), True),
        (Attention(T=4, dtype="float16", state_dtype="float16"), True),
        (Attention(T=4, dtype="bfloat16", state_dtype="bfloat16"), False),
    ],
)
def test_is_verified(case: Attention, whole: bool) -> None:
    original = case.model()
    check = rl.verify(original, rl.lower(original), runs=1)
    assert (check.status, check.whole) == ("verified", whole), check.reason
    assert [node.name.split()[0] for node in check.nodes] == ["output", "present_state"]


def test_a_fault_is_found() -> None:
    """A node of another rule or scale, or with inputs that are swapped, is not verified."""
    original = Attention(T=3, by_key=True).model()
    swapped = onnx.ModelProto.FromString(original.SerializeToString())
    swapped.graph.node[0].input[:2] = ["key", "query"]
    others: list[dict[str, Any]] = [{"update_rule": rule} for rule in ("delta", "gated")]
    others += [{"scale": scale} for scale in (0.51, -0.5)]
    for wrong in (swapped, *(with_attributes(original, **other) for other in others)):
        check = rl.verify(original, rl.lower(wrong), runs=1)
        assert check.status == "failed"
        assert "first in LinearAttention node 'attention' in main graph, output" in check.reason


def test_a_whole_model_is_computed_in_float64(tmp_path: Path) -> None:
    """Where kernels round, float64 of the whole model tells which of two is closer."""
    for domain in (STANDARD, MS):
        case = Attention(domain=domain, T=7)
        onnx.save(case.model(), tmp_path / "model.onnx")
        found = evaluate_model(tmp_path / "model.onnx", case.feed())
        expected = case.expected(case.feed())
        assert error({"output": found["0:0"], "present_state": found["1:0"]}, expected) < 1e-12


def test_ncnn_is_refused() -> None:
    with pytest.raises(
        rl.UnsupportedError, match="ncnn cannot run its equivalent: its tensors have at most 4 axes"
    ):
        rl.lower(Attention().model(), target="ncnn")


def test_one_output_that_is_used() -> None:
    form: Any
    for kept, form in product(("output", "present_state"), FORMS):
        case = Attention(T=3, B=1)
        original = case.model()
        (other,) = (v for v in original.graph.output if v.name != kept)
        original.graph.output.remove(other)
        lowered = rl.lower(original, form)
        assert error(run(lowered, case.feed()), {kept: case.expected(case.feed())[kept]}) < 2e-6
        if form in ("scan", "chunked"):
            assert rl.verify(original, lowered, runs=1).status == "verified"


def test_it_is_listed_previewed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(Attention(T=40, open="B").model(), path)
    assert main([str(path), "--list"]) == 4
    shown = capsys.readouterr().out
    assert "LinearAttention-1" in shown
    assert "gated_delta, 2 states of 4x3" in shown
    (preview,) = rl.preview(onnx.load(path), to="loop")
    assert (preview.form, preview.reason) == ("loop", "requested")
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    assert main([str(path), str(tmp_path / "out.onnx"), "--report", str(page), "--verify", "0"]) == 0
    text = page.read_text()
    assert "Absolute error of output against float64" in text
    assert "One step as emitted" in text
    assert main([str(path), str(tmp_path / "out.onnx"), "--report", str(data), "--force", "--verify", "0"]) == 0
    (node,) = json.loads(data.read_text())["nodes"]
    assert (node["form"], node["seq_length"], node["hidden_size"]) == ("chunked", 40, None)


def test_a_function_of_the_same_name() -> None:
    """onnxruntime runs its kernel, not the model's function: so does what is lowered, and says so."""
    case = Attention(T=3)
    original = case.model()
    ends = (("query", "output"), ("past_state", "present_state"))
    body = [helper.make_node("Identity", [read], [made]) for read, made in ends]
    imports, attributes = [helper.make_opsetid("", 21)], ["q_num_heads", "kv_num_heads", "update_rule"]
    given = (MS, "LinearAttention", [*case.feed()], [made for _, made in ends], body, imports, attributes)
    original.functions.append(helper.make_function(*given))
    with pytest.warns(rl.RnnLoweringWarning, match="LinearAttention"):
        lowered = rl.lower(original)
    assert not lowered.functions
    assert_right(case, run(lowered, case.feed()))


def test_any_number_of_heads_is_a_few_nodes() -> None:
    """A file may ask for any number: keys and queries are repeated by one node."""
    case = Attention(Hq=1, H=100_000, n=1, dk=1, dv=1, T=2, B=1)
    assert len(rl.lower(case.model(), "scan").graph.node) < 40


def test_random_inputs_of_a_model_let_no_state_grow() -> None:
    """Keys of random numbers would make the delta rule overflow after a few steps, in any implementation."""
    for T, opened in ((70, ""), (300, "BT")):
        case = Attention(T=T, B=1, H=1, Hq=1, dk=64, dv=2, open=opened)
        check = rl.verify(case.model(), rl.lower(case.model(), "chunked"), runs=1)
        assert check.status == "verified"
        assert max(output.max_abs for output in check.outputs) < 1e-3
