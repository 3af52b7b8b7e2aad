"""Sizes of what Loop and Scan carry from one step to the next."""

from typing import Any

import onnx
import pytest
from oracle import GATES
from running import assert_close, operators, recurrent_left, run
from texts import parse, random_feed

import rnn_lowering as rl

OPENING = """g (float[1,batch,3] x0) => (float[?,?,?] last)
<float[1,9,3] W = {}, float[1,9,3] R = {}, int64[1] one = {1}, int64 five = {5}, bool yes = {1}>"""
CARRIED = {
    "from one loop to the next": """{
        middle = Loop (five, yes, x0) <body = b (int64 i, bool on, float[] x) => (bool still, float[] y)
            { still = Identity (on)  , y = GRU <hidden_size = 3> (x, W, R) }>
        last = Loop (five, yes, middle) <body = c (int64 j, bool on2, float[] z) => (bool still2, float[] u)
            { still2 = Identity (on2)  , u = GRU <hidden_size = 3> (z, W, R) }>
    }""",
    "through a loop in a loop": """{
        last = Loop (five, yes, x0) <body = b (int64 i, bool on, float[] x) => (bool still, float[] y) {
            still = Identity (on)
            w = Loop (five, yes, x) <body = c (int64 j, bool on2, float[] z) => (bool still2, float[] u)
                { still2 = Identity (on2)  , u = GRU <hidden_size = 3> (z, W, R) }>
            y = Tanh (w)
        }>
    }""",
    "by a Scan": """{
        rows = Unsqueeze (x0, one)
        last = Scan <num_scan_inputs = 1, body = b (float[] x, float[] e) => (float[] y)
            { , h = GRU <hidden_size = 3> (x, W, R)  y = Add (h, e) }> (x0, rows)
    }""",
}
GROWING = {
    **{
        f"declared {declared}": f"""{{
        last = Loop (five, yes, x0) <body = b (int64 i, bool on, {declared} x) => (bool still, float[] longer) {{
            still = Identity (on)
            , h = GRU <hidden_size = 3> (x, W, R)
            longer = Concat <axis = 0> (x, h)
        }}>
    }}"""
        for declared in ("float[]", "float[1,batch,3]", "float[1,2,3]")
    },
    "in a loop around": CARRIED["through a loop in a loop"].replace("Tanh (w)", "Concat <axis = 0> (x, w)"),
}
"""Each step adds time steps: what an exporter wrote down at the first step is not true of the second."""


def check(
    original: onnx.ModelProto, form: Any = "unroll", *, strict: bool = True, **options: Any
) -> onnx.ModelProto:
    lowered: onnx.ModelProto = rl.lower(original, form, **options)
    assert recurrent_left(lowered) == []
    if strict:
        onnx.checker.check_model(lowered, full_check=True)
    feed = random_feed(original, batch=2, seq=1)
    assert_close(run(lowered, feed), run(original, feed))
    return lowered


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CARRIED)
def test_carried_sizes_are_known(name: str) -> None:
    check(parse(OPENING + CARRIED[name]))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", GROWING)
def test_a_length_that_grows_is_not_known(name: str) -> None:
    original = parse(OPENING + GROWING[name])
    with pytest.raises(rl.UnsupportedError, match="sequence length is not known"):
        rl.lower(original, "unroll", except_="Loop")
    check(original, "scan", strict=False, except_="Loop")


def decoder(op_type: str, first: int | str = 1) -> onnx.ModelProto:
    """A decoder: each step is fed with what the one before gave, one time step at a time."""
    states, rows = ("h", "c") if op_type == "LSTM" else ("h",), 3 * GATES[op_type]

    def each(text: str) -> str:
        return ", ".join(text.format(state) for state in states)

    opening = OPENING.replace("[1,9,3]", f"[1,{rows},3]").replace(
        "float[1,batch,3] x0", f"float[{first},batch,3] x0"
    )
    opening = opening.replace(" x0)", f" x0, {each('float[1,batch,3] {}0')})").replace(
        "last)", "last, float[?,?,?,?] words)"
    )
    return parse(
        f"""{opening} {{
            last, {each("{}_last")}, words = Loop (five, yes, x0, {each("{}0")}) <
                body = b (int64 i, bool on, float[] x, {each("float[] {}_in")})
                    => (bool still, float[] y, {each("float[] {}_out")}, float[] word) {{
                    still = Identity (on)
                    Y, {each("{}_out")} = {op_type} <hidden_size = 3> (x, W, R, , , {each("{}_in")})
                    y = Squeeze (Y, one)
                    word = Identity (y)
                }}>
        }}"""
    )


@pytest.mark.parametrize("op_type", GATES)
def test_one_step_in_a_body_needs_no_loop(op_type: str) -> None:
    for form in ("auto", "unroll"):
        assert operators(check(decoder(op_type), form, except_="Loop")) & {"Loop", "Scan"} == {"Loop"}


def test_sizes_may_be_fixed_from_outside() -> None:
    original = decoder("GRU", "seq")
    with pytest.raises(rl.UnsupportedError, match="sequence length is not known"):
        rl.lower(original, "unroll")
    check(original, dims={"seq": 1})
    unrolled = check(original, "auto", target="tvm", dims={"seq": 1, "batch": 2})
    assert "Loop" not in operators(unrolled)  # the model's own is unrolled too


def test_many_loops_end() -> None:
    """Sizes that cannot be followed to the end are not known: that is no error and takes no time."""
    lines = [
        f"x{n + 1} = Loop (five, yes, x{n}) <body = b{n} (int64 i{n}, bool on{n}, float[] z{n}) => "
        f"(bool s{n}, float[] u{n}) {{ s{n} = Identity (on{n})  u{n} = Relu (z{n}) }}>"
        for n in range(26)
    ]
    check(parse(f"{OPENING} {{ {' '.join(lines)} , last = GRU <hidden_size = 3> (x26, W, R) }}"), "loop")
