"""The sizes and switches of the runs are such that faults of many kinds show, and the result names them."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from texts import parse

import rnn_lowering as rl
from rnn_lowering.compare.result import Verification

pytestmark = pytest.mark.usefixtures("workers_here")

LOOP = """main (float[a,b,3] X, float[b,3] first{inputs}) => (float[a,b,3] Y, float[b,3] last)
    <int64 zero = {{0}}, int64 one = {{1}}, int64 forty = {{40}}, int64 five = {{5}}, float keep = {{{keep}}},
     float none = {{0}}, float some = {{0.5}}, float low = {{-3}}, float high = {{3}}, int64 quick = {{16000}},
     bool yes = {{1}}> {{
    sizes = Shape (X)  steps = Gather (sizes, zero)  rows = Gather (sizes, one)
    {start}
    last, y = Loop <body = step (int64 i, bool go, float[b,3] s) => (bool on, float[b,3] t, float[b,3] u) {{
        on = Identity (go)  x = Gather (X, i)  k = Mul (s, keep)  h = Add (k, x)  {body}  u = Identity (t) }}>
        (steps, yes, h0)
    {end} }}"""
RIGHT = {
    "inputs": "",
    "keep": "0.9",
    "start": "h0 = Identity (first)",
    "body": "t = Identity (h)",
    "end": "Y = Identity (y)",
}
FLAG = {"inputs": ", bool[1] fast", "end": "Y = Identity (y)  unused = Not (fast)"}
WRONG: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "after step 40": (
        {},
        {"body": "late = Greater (i, forty)  more = Where (late, some, none)  t = Add (h, more)"},
    ),
    "from row 5 on": (
        {},
        {
            "end": """numbers = Range (zero, rows, one)  far = Less (numbers, five)
            turned = Unsqueeze (far, one_axis)  more = Where (turned, none, some)  Y = Add (y, more)"""
        },
    ),
    "beyond 3": ({}, {"body": "t = Clip (h, low, high)"}),
    "a first state beyond 3": ({"keep": "0.001"}, {"keep": "0.001", "start": "h0 = Clip (first, low, high)"}),
    "if a switch is on and there are several steps": (
        FLAG,
        {
            **FLAG,
            "body": """later = Greater (i, zero)  both = And (later, fast)
            more = Where (both, some, none)  t = Add (h, more)""",
        },
    ),
    **{
        f"a first state that fades, if a switch is {state}": (
            {**FLAG, "keep": "0.1"},
            {
                **FLAG,
                "keep": "0.1",
                "start": f"no = Not (fast)  c = Identity ({c})  f = Mul (first, none)  h0 = Where (c, f, first)",
            },
        )
        for state, c in (("on", "fast"), ("off", "no"))
    },
    "if a number is chosen and there are many steps": (
        {"inputs": ", int64 rate", "end": "Y = Identity (y)  unused = Equal (rate, quick)"},
        {
            "inputs": ", int64 rate",
            "start": "h0 = Identity (first)  fast = Equal (rate, quick)",
            "body": """late = Greater (i, forty)  both = And (late, fast)
            more = Where (both, some, none)  t = Add (h, more)""",
        },
    ),
}


def loop(**fields: str) -> onnx.ModelProto:
    text = LOOP.format(**{**RIGHT, **fields}).replace("bool yes", "int64[1] one_axis = {1}, bool yes")
    return parse(text, opset=17)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", WRONG)
def test_a_fault_of_few_sizes_or_states_is_caught(name: str) -> None:
    right, wrong = WRONG[name]
    assert rl.verify(loop(**right), loop(**right))
    check = rl.verify(loop(**right), loop(**wrong))
    assert check.status == "failed", check


def test_axes_that_have_no_meaning_get_both_sizes() -> None:
    check = rl.verify(loop(), loop())
    shapes = [next(given.shape for given in run.inputs if given.name == "X") for run in check.each_run]
    assert {shape[0] for shape in shapes} >= {1, 2, 70}
    assert {shape[1] for shape in shapes} >= {1, 2, 70}
    assert f"X {', '.join(str(list(shape)) for shape in shapes)}" in str(check)


def test_each_switch_is_on_and_off_at_each_size() -> None:
    model = loop(**FLAG)
    check = rl.verify(model, model)
    seen = {tuple((i.shape, i.value) for i in run.inputs) for run in check.each_run}
    steps = {(x[0][0], fast[1]) for x, _, fast in seen}
    assert {(n, flag) for n in (1, 70) for flag in (0, 1)} <= steps
    assert "fast = 0, 1" in str(check)


def test_a_shape_of_one_element_is_a_shape() -> None:
    """Others of the same input have more."""
    model = parse("main (int64[N,T] tokens) => (int64[N,T] Y) { Y = Neg (tokens) }")
    check = rl.verify(model, model)
    shapes = [str(list(given.shape)) for run in check.each_run for given in run.inputs]
    assert "[1, 1]" in shapes
    assert f"(tokens {', '.join(shapes)})" in str(check)


def test_many_switches_are_each_on_and_off() -> None:
    names = [f"s{n}" for n in range(6)]
    inputs = ", ".join(f"bool[1] {name}" for name in names)
    nodes = " ".join(f"n{n} = Not ({name})" for n, name in enumerate(names))
    model = parse(f"main (float[T,N,3] X, {inputs}) => (float[T,N,3] Y) {{ {nodes} Y = Neg (X) }}")
    check = rl.verify(model, model)
    for name in names:
        assert {i.value for run in check.each_run for i in run.inputs if i.name == name} == {0, 1}


def with_defaults(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    """Let initializers be inputs that a caller may override."""
    for tensor in model.graph.initializer:
        if tensor.name in names:
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return model


NODE = """main (float[T,N,2] X) => (float[T,d,N,4] Y)
    <float[1,16,2] W = {}, float[1,16,4] R = {}, float[1,32] B = {}, float k = {2}, float l = {2}>
    { Z = Mul (X, FACTOR)  Y = LSTM <hidden_size = 4> (Z, W, R, B) }"""


@pytest.mark.few(1)
@pytest.mark.parametrize("names", [("k",), ("k", "W", "R", "B")], ids=["a number", "weights too"])
def test_an_input_with_a_default_stays_one(names: tuple[str, ...]) -> None:
    original = with_defaults(parse(NODE.replace("FACTOR", "k")), *names)
    check = rl.verify(original, rl.lower(original))
    assert check, check
    lost = with_defaults(parse(NODE.replace("FACTOR", "k")), *names[1:])
    check = rl.verify(original, rl.lower(lost))
    assert check.status == "failed"
    assert "lost the inputs with defaults ['k']" in check.reason


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("X", "V"), "the lowered model has no input 'X'; the original has no input 'V'"),
        (("Y", "V"), "the lowered model has no output 'Y'; the original has no output 'V'"),
        (("4] Y)", "4] Y, float[T,N,2] Z)"), "the original has no output 'Z'"),
        (("X)", "X, float[N] V)"), ""),
        ((",2]", ",3]"), "input 'X' is [T, N, 2] in the original, and [T, N, 3] in the lowered model"),
    ],
    ids=["input", "output", "one more output", "one more input", "another size"],
)
def test_other_inputs_and_outputs_are_named(change: tuple[str, str], reason: str) -> None:
    """A new input that changes nothing is allowed."""
    text = NODE.replace("FACTOR", "k")
    check = rl.verify(parse(text), rl.lower(parse(text.replace(*change, 1 if ")" in change[0] else -1))))
    assert check.status == ("failed" if reason else "verified")
    assert check.reason == (reason and f"the models have different inputs or outputs: {reason}")


def test_an_input_of_another_rank_is_named() -> None:
    one, other = (parse(f"main (float[{n}] X) => (float[{n}] Y) {{ Y = Tanh (X) }}") for n in ("N,2", "T,N,2"))
    check = rl.verify(one, other)
    assert check.status == "failed"
    assert "input 'X' is float of rank 2 in the original, and float of rank 3 in the lowered model" in check.reason


def test_an_input_with_a_default_that_nothing_reads_any_more() -> None:
    original = with_defaults(parse(NODE.replace("FACTOR", "k")), "k")
    ignored = with_defaults(parse(NODE.replace("FACTOR", "l")), "k")
    check = rl.verify(original, rl.lower(ignored))
    assert check.status == "failed"
    assert "output 'Y'" in check.reason


def test_an_input_with_a_default_that_the_user_sets_is_no_loss() -> None:
    original = with_defaults(parse(NODE.replace("FACTOR", "k")), "k")
    given: Any = {"k": np.array(3, np.float32)}
    check = rl.verify(original, rl.lower(original, set_inputs=given))
    assert check, check


INDICES = """g (float[N, T, 3] x, int64[N, T] a, int64[N, T] b) => (float[c, d, N, 2] y)
    <float[{rows}, 3] table = {{}}, float[1, 2, 3] W = {{}}, float[1, 2, 2] R = {{}}, int64 k = {{{factor}}},
    int64 first = {{{first}}}> {{
    m = Mul (b, k) n = Add (a, m) i = Sub (n, first) e = Gather (table, i) s = Add (x, e)
    t = Transpose <perm = [1, 0, 2]> (s) y = RNN <hidden_size = 2> (t, W, R) }}"""


@pytest.mark.parametrize("rows", [1, 14, 288])
def test_integers_that_are_an_index_together(rows: int) -> None:
    """As month + 12 * hour is one: they are drawn smaller, at the same sizes."""
    net = parse(INDICES.format(rows=rows, factor=12, first=0))
    check = rl.verify(net, rl.lower(net))
    assert check.whole
    assert len({run.inputs[0].shape for run in check.each_run}) > 2


def test_integers_of_another_range_are_asked_for() -> None:
    """Years from 1990 on, say."""
    net = parse(INDICES.format(rows=40, factor=0, first=1990))
    shapes = {"x": (1, 4, 3), "a": (1, 4), "b": (1, 4)}
    with pytest.raises(rl.UnsupportedError, match=r"give inputs that the model takes .* compares nothing"):
        rl.verify(net, rl.lower(net, input_shapes=shapes))
    check = rl.verify(net, rl.lower(net))
    assert not check.whole
    assert "it may accept other integers" in check.reason
    feed = {"x": np.zeros((1, 4, 3), np.float32), "a": np.full((1, 4), 1993), "b": np.zeros((1, 4), int)}
    assert rl.verify(net, rl.lower(net, input_shapes=shapes), feeds=[feed]).whole


DIFFERENCES = """g (float[t, n, 2] X) => (float[s, 1, n, 3] Y)
    <float[1, 12, 2] W = {}, float[1, 12, 3] R = {}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1},
     int64[1] far = {1000}> {
    a = Slice (X, one, far, zero)  b = Slice (X, zero, last, zero)  d = Sub (a, b)
    Y = LSTM <hidden_size = 3> (d, W, R) }"""


def lengths(check: Verification) -> list[int]:
    return [run.inputs[0].shape[0] for run in check.each_run]


def test_inputs_that_give_a_scan_no_step_are_replaced_by_larger_ones() -> None:
    """One row has no difference; a Loop without a step is compared."""
    original = parse(DIFFERENCES)
    scan, loop = rl.verify(original, rl.lower(original)), rl.verify(original, rl.lower(original, "loop"))
    assert scan, scan.reason
    assert loop, loop.reason
    assert (lengths(scan), lengths(loop)) == ([7, 7, 70], [7, 1, 70])
    assert "the result takes no inputs without a step, as X [1, 1, 2]" in scan.reason
    wrong = rl.lower(parse(DIFFERENCES.replace("Sub (a, b)", "Sub (b, a)")))
    assert rl.verify(original, wrong).status == "failed"


def test_states_that_onnxruntime_leaves_unset_are_not_compared() -> None:
    """An LSTM without a step returns states as they lay in memory."""
    original = parse(DIFFERENCES.replace("Y = LSTM", ", Y = LSTM").replace("[s, 1, n, 3]", "[1, n, 3]"))
    check = rl.verify(original, rl.lower(original, "loop"))
    assert check, check.reason
    assert 1 not in lengths(check)
    assert "onnxruntime sets no states without a step, as X [1, 1, 2]" in check.reason


BEHIND_THE_FIRST = """g (float[t, n, 2] X) => (float[n, 2] h)
    <int64 zero = {0}, int64 one = {1}, bool going = {1}> {
    s = Shape (X)  all = Gather (s, zero)  m = Sub (all, one)  first = Gather (X, zero)
    h = Loop <body = b (int64 i, bool c, float[n, 2] before) => (bool d, float[n, 2] after) {
        d = Identity (c)  j = Add (i, one)  row = Gather (X, j)  sum = Add (row, before)  after = Tanh (sum) }>
        (m, going, first) }"""


def test_a_loop_that_must_have_a_step_is_run_with_one() -> None:
    """An exporter's loop from the second step on has none in a sequence of one; in a branch it may have none."""
    original = parse(BEHIND_THE_FIRST)
    alone, branch = rl.lower(original, target="tract"), rl.lower(original, "scan", lower_loops=True)
    assert [[node.op_type == "If" for node in model.graph.node].count(True) for model in (alone, branch)] == [0, 1]
    check = rl.verify(original, alone)
    assert check, check.reason
    assert (1 in lengths(check), 1 in lengths(rl.verify(original, branch))) == (False, True)
    assert "the result takes no inputs without a step, as X [1, 1, 2]" in check.reason


def test_given_inputs_that_have_no_step_are_named() -> None:
    original = parse(DIFFERENCES)
    check = rl.verify(original, rl.lower(original), shapes={"X": [1, 2, 2]})
    assert (check.status, "the inputs give a Scan no step" in check.reason) == ("not verified", True)
    assert rl.verify(original, rl.lower(original, "loop"), shapes={"X": [1, 2, 2]})


def test_a_given_shape_of_an_input_that_declares_none() -> None:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy")
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = rl.verify(model, model, shapes={"x": [3, 2]}, runs=1)
    assert found.whole, found
    assert found.each_run[0].inputs[0].shape == (3, 2)


FRAMES_AND_SAMPLES = {
    "repeated": 'up = Resize <mode = "nearest"> (mel, , four)  both = Concat <axis = 1> (up, wave)',
    "added": """up = Resize <mode = "nearest"> (mel, , four)  added = Add (up, wave)
                both = Concat <axis = 1> (added, wave)""",
    "transposed": "up = ConvTranspose <strides = [4]> (mel, kernels)  both = Concat <axis = 1> (up, wave)",
    "strided": "down = Conv <strides = [4]> (wave, kernel)  both = Concat <axis = 1> (mel, down)",
}


@pytest.mark.parametrize("kind", FRAMES_AND_SAMPLES)
def test_sizes_that_a_model_takes_together(kind: str) -> None:
    """Four samples for each frame: it runs at no other sizes, so one follows from the other."""
    text = f"""g (float[N,8,frames] mel, float[N,1,samples] wave) => (float[T,D,N,4] Y)
        <float[3] four = {{1, 1, 4}}, float[8,8,4] kernels = {{}}, float[1,1,4] kernel = {{}},
         float[1,12,9] W = {{}}, float[1,12,4] R = {{}}>
        {{ {FRAMES_AND_SAMPLES[kind]}
           X = Transpose <perm = [2, 0, 1]> (both)  Y = GRU <hidden_size = 4> (X, W, R) }}"""
    model = parse(text)
    found = rl.verify(model, rl.lower(model))
    assert found.whole, found
    shapes = [{each.name: each.shape for each in run.inputs} for run in found.each_run]
    assert all(shape["wave"][2] == 4 * shape["mel"][2] for shape in shapes), shapes
    assert len({shape["mel"][2] for shape in shapes}) > 1
