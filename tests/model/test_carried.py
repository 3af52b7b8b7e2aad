"""Sizes of what Loop and Scan carry from one step to the next."""

import numpy as np
import onnx
import pytest
from cases import Arrays
from running import assert_close, operators, recurrent_left, run
from texts import parse

import rnn_lowering as rl

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def constants(op_type: str = "GRU", size: int = 3) -> str:
    gates = GATES[op_type]
    return (
        f"float[1,{gates * size},{size}] W = {{}}, float[1,{gates * size},{size}] R = {{}}, "
        "int64[1] one = {1}, int64 five = {5}, bool yes = {1}"
    )


def random(**shapes: tuple[int, ...]) -> Arrays:
    rng = np.random.default_rng(len(shapes))
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def check(original: onnx.ModelProto, lowered: onnx.ModelProto, feed: Arrays) -> None:
    assert recurrent_left(lowered) == []
    onnx.checker.check_model(lowered, full_check=True)
    assert_close(run(lowered, feed), run(original, feed))


def decoder(op_type: str = "GRU", declared: str = "float[]") -> onnx.ModelProto:
    """A decoder: each step is fed with what the one before gave, one time step at a time."""
    states = {"h": "h_out"} | ({"c": "c_out"} if op_type == "LSTM" else {})
    entering = "".join(f", float[] {state}_in" for state in states)
    leaving = "".join(f", float[] {state}" for state in states.values())
    first = "".join(f", {state}0" for state in states)
    given = "".join(f", float[1,batch,3] {state}0" for state in states)
    outputs = ", ".join(states.values())
    return parse(
        f"""g (float[1,batch,3] x0{given}) => (float[?,?,?] last, float[?,?,?,?] words) <{constants(op_type)}>
        {{
            last, {", ".join(f"{s}_last" for s in states)}, words = Loop (five, yes, x0{first}) <
                body = b (int64 i, bool on, {declared} x{entering})
                    => (bool still, float[] y{leaving}, float[] word)
                {{
                    still = Identity (on)
                    Y, {outputs} = {op_type} <hidden_size = 3> (x, W, R, , , {", ".join(f"{s}_in" for s in states)})
                    y = Squeeze (Y, one)
                    word = Identity (y)
                }}>
        }}"""
    )


@pytest.mark.parametrize("op_type", GATES)
def test_one_step_in_a_body_needs_no_loop(op_type: str) -> None:
    original = decoder(op_type)
    states = {"h0": (1, 2, 3)} | ({"c0": (1, 2, 3)} if op_type == "LSTM" else {})
    feed = random(x0=(1, 2, 3), **states)
    for form in ("auto", "unroll"):
        lowered = rl.lower(original, form)
        assert "Loop" in operators(lowered)
        assert "Scan" not in operators(lowered)
        check(original, lowered, feed)


def grows(declared: str = "float[]") -> onnx.ModelProto:
    """Each step adds a time step to what is read."""
    return parse(
        f"""g (float[1,batch,3] x0) => (float[?,?,?] last) <{constants()}>
        {{
            last = Loop (five, yes, x0) <body = b (int64 i, bool on, {declared} x) => (bool still, float[] longer)
                {{
                    still = Identity (on)
                    , h = GRU <hidden_size = 3> (x, W, R)
                    longer = Concat <axis = 0> (x, h)
                }}>
        }}"""
    )


@pytest.mark.parametrize("declared", ["float[]", "float[1,batch,3]", "float[1,2,3]"])
def test_a_length_that_grows_is_not_known(declared: str) -> None:
    """What an exporter wrote down at the first step is not true of the second."""
    original = grows(declared)
    with pytest.raises(rl.UnsupportedError, match="sequence length is not known"):
        rl.lower(original, "unroll")
    lowered = rl.lower(original, "scan")
    assert recurrent_left(lowered) == []
    assert_close(run(lowered, random(x0=(1, 2, 3))), run(original, random(x0=(1, 2, 3))))


def test_what_one_loop_gives_the_next_takes() -> None:
    original = parse(
        f"""g (float[1,batch,3] x0) => (float[?,?,?] last) <{constants()}>
        {{
            middle = Loop (five, yes, x0) <body = b (int64 i, bool on, float[] x) => (bool still, float[] y)
                {{ still = Identity (on)  , y = GRU <hidden_size = 3> (x, W, R) }}>
            last = Loop (five, yes, middle) <body = c (int64 j, bool on2, float[] z) => (bool still2, float[] u)
                {{ still2 = Identity (on2)  , u = GRU <hidden_size = 3> (z, W, R) }}>
        }}"""
    )
    check(original, rl.lower(original, "unroll"), random(x0=(1, 2, 3)))


def nested(inner: str) -> onnx.ModelProto:
    return parse(
        f"""g (float[1,batch,3] x0) => (float[?,?,?] last) <{constants()}>
        {{
            last = Loop (five, yes, x0) <body = b (int64 i, bool on, float[] x) => (bool still, float[] y)
                {{
                    still = Identity (on)
                    w = Loop (five, yes, x) <body = c (int64 j, bool on2, float[] z) => (bool still2, float[] u)
                        {{ still2 = Identity (on2)  , u = GRU <hidden_size = 3> (z, W, R) }}>
                    y = {inner}
                }}>
        }}"""
    )


def test_a_loop_in_a_loop() -> None:
    original = nested("Tanh (w)")
    check(original, rl.lower(original, "unroll"), random(x0=(1, 2, 3)))


def test_what_grows_outside_grows_inside() -> None:
    original = nested("Concat <axis = 0> (x, w)")
    with pytest.raises(rl.UnsupportedError, match="sequence length is not known"):
        rl.lower(original, "unroll")


def test_a_scan_carries_what_it_is_given() -> None:
    original = parse(
        f"""g (float[1,batch,3] x0, float[steps,batch,3] extra) => (float[?,?,?] last) <{constants()}>
        {{
            last = Scan <num_scan_inputs = 1, body = b (float[] x, float[] e) => (float[] y)
                {{ , h = GRU <hidden_size = 3> (x, W, R)  y = Add (h, e) }}> (x0, extra)
        }}"""
    )
    check(original, rl.lower(original, "unroll"), random(x0=(1, 2, 3), extra=(4, 2, 3)))


def test_sizes_may_be_fixed_from_outside() -> None:
    original = decoder()
    original.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "seq"
    with pytest.raises(rl.UnsupportedError, match="sequence length is not known"):
        rl.lower(original, "unroll")
    lowered = rl.lower(original, "unroll", dims={"seq": 1})
    check(original, lowered, random(x0=(1, 2, 3), h0=(1, 2, 3)))
    unrolled = rl.lower(original, target="tvm", dims={"seq": 1, "batch": 2})  # the model's own Loop is too
    assert all(node.op_type != "Loop" for node in unrolled.graph.node)
    check(original, unrolled, random(x0=(1, 2, 3), h0=(1, 2, 3)))


def test_many_loops_end() -> None:
    """Sizes that cannot be followed to the end are not known: that is no error and takes no time."""
    lines = [
        f"x{n + 1} = Loop (five, yes, x{n}) <body = b{n} (int64 i{n}, bool on{n}, float[] z{n}) => "
        f"(bool s{n}, float[] u{n}) {{ s{n} = Identity (on{n})  u{n} = Relu (z{n}) }}>"
        for n in range(40)
    ]
    original = parse(
        f"g (float[1,batch,3] x0) => (float[?,?,?] last) <{constants()}> {{ {' '.join(lines)} "
        ", last = GRU <hidden_size = 3> (x40, W, R) }"
    )
    check(original, rl.lower(original, "loop"), random(x0=(1, 2, 3)))
