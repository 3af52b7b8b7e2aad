"""Rows that the steps of a Loop write into a tensor are stacked where they are written in order, and not read."""

from typing import Any

import numpy as np
import pytest
from loop_models import as_meant, assert_same, bodies, operators, run
from loop_traps import numbers
from onnx import ModelProto
from stream_models import CHUNKINGS, chunked, net, plan_of, whole

import rnn_lowering as rl


def writing(
    step: str,
    before: str = "none = ConstantOfShape <value = float[1] {7}> (shape)",
    states: tuple[str, str, str, str] = ("s0, none", "", "", ""),
    head: str = "Loop (M, True",
    shapes: tuple[str, str] = ("T,3", "T,3"),
) -> ModelProto:
    """A Loop whose state s1 is written into a state b.

    Args:
        step: Computes b1 of b, and c1 where that is not c.
        before: Computes the initial tensor.
        states: The initial states, what the body takes and returns beside those two, and what it stacks.
        head: The operator and its first inputs.
        shapes: Those of the rows and of the tensor.
    """
    first, taken, returned, stacked = states
    names = "".join(f", k{n}" for n in range(bool(returned) + bool(stacked)))
    going = "" if "c1 =" in step else "c1 = Identity (c)"
    return net(f"""g (float[3] s0, float[{shapes[0]}] X) => (float[3] sn, float[{shapes[1]}] Y) {{
    shape = Shape (X) M = Gather (shape, 0) {before}
    sn, Y{names} = {head}, {first}) <body = d (int64 i, bool c, float[3] s, float[{shapes[1]}] b{taken})
        => (bool c1, float[3] s1, float[{shapes[1]}] b1{returned}{stacked}) {{
        x = Gather (X, i) t = Add (s, x) s1 = Tanh (t) {step} {going} }}> }}""")


SIMPLE = "at = Unsqueeze (i, [0]) b1 = ScatterND (b, at, s1) "
TORCH = """j = {j} part = Gather (b, i) like = Shape (part) wide = Expand (s1, like) flat = Unsqueeze (j, [0])
    at = Unsqueeze (flat, [-1]) count = Shape (flat) all = Shape (b) rest = Slice (all, [1], [2147483647], [0])
    to = Concat <axis = 0> (count, rest) u = Reshape (wide, to) b1 = ScatterND (b, at, u) """
COLUMNS = """all = Shape (b) n = Gather (all, 0) range = Range (0, n, 1) rows = Reshape (range, [-1, 1])
    flat = Unsqueeze (i, [0]) sum2 = Add (rows, flat) like = Shape (sum2) r = Expand (rows, like)
    k = Expand (flat, like) rl = Unsqueeze (r, [-1]) kl = Unsqueeze (k, [-1]) at = Concat <axis = -1> (rl, kl)
    rest = Slice (all, [2], [2147483647], [0]) to = Concat <axis = 0> (like, rest) u = Reshape (s1, to)
    b1 = ScatterND (b, at, u) """

STACKED = {
    "in order": writing(SIMPLE),
    "as rows of one": writing(
        'at = Reshape (i, [1, 1]) u = Unsqueeze (s1, [0]) b1 = ScatterND <reduction = "none"> (b, at, u) '
    ),
    "one number for a row": writing(
        "m = ReduceMax (s1) wide = Expand (m, [3]) at = Unsqueeze (i, [0]) b1 = ScatterND (b, at, wide) ",
        before="none = ConstantOfShape (shape)",
    ),
    "as torch writes": writing(TORCH.format(j="Identity (i)")),
    "from the end on": writing("from = Sub (M, 1) " + TORCH.format(j="Sub (from, i)")),
    "by a counter that ends the Loop": writing(
        "at = Reshape (n, [1, 1]) u = Unsqueeze (s1, [0]) b1 = ScatterND (b, at, u) n1 = Add (n, 1) "
        "c1 = Less (n1, M) ",
        before="none = ConstantOfShape <value = float[1] {7}> (shape) c0 = Less (0, M)",
        states=("s0, none, 0", ", int64 n", ", int64 n1", ""),
        head='Loop ("", c0',
    ),
    "by a counter downwards": writing(
        "at = Unsqueeze (n, [0]) b1 = ScatterND (b, at, s1) n1 = Sub (n, 1) ",
        before="none = ConstantOfShape (shape)",
        states=("s0, none, 3", ", int64 n", ", int64 n1", ""),
        shapes=("4,3", "4,3"),
    ),
    "into the first rows": writing(SIMPLE, head="Loop (3, True", shapes=("5,3", "5,3")),
    "along the second axis": writing(
        COLUMNS,
        before="l = Unsqueeze (M, [0]) to0 = Concat <axis = 0> ([3], l) none = ConstantOfShape (to0)",
        shapes=("T,3", "3,T"),
    ),
}


def lengths(model: ModelProto, *some: int) -> tuple[int, ...]:
    """Those of the rows that a model may get, of some."""
    size = model.graph.input[1].type.tensor_type.shape.dim[0].dim_value
    return (size,) if size else some


@pytest.mark.few(3)
@pytest.mark.parametrize("name", STACKED)
def test_written_rows_are_stacked(name: str) -> None:
    model = STACKED[name]
    for form in ("scan", "loop", "unroll"):
        sizes = {"T": 4} if form == "unroll" and "T" in str(model.graph.input[1]) else None
        lowered = rl.lower(model, form, lower_loops=True, dims=sizes)
        assert not operators(lowered) & {"ScatterND", *(["Expand"] if name != "one number for a row" else [])}
        for T in (4,) if sizes else lengths(model, 4, 1, 0):
            feed = {"s0": numbers(3), "X": numbers(T, 3) - 0.5}
            assert_same(run(lowered, feed), run(as_meant(model), feed))


READ = "y = Gather (b, 0) w = Add (s1, y) at = Unsqueeze (i, [0]) b1 = ScatterND (b, at, w) "
MORE: dict[str, Any] = {
    "before": "none = ConstantOfShape ([9, 3])",
    "shapes": ("T,3", "9,3"),
}
FIVE: dict[str, Any] = {"head": "Loop (3, True", "shapes": ("5,3", "5,3")}
BRANCH = """o = If (c) <then_branch = f () => (float o1) { o1 = ReduceSum <keepdims = 0> (b) },
    else_branch = h () => (float o2) { o2 = Identity (0.0) }> """
KEPT = {
    "row 0 is read": writing(READ),
    "another output reads it": writing(
        SIMPLE + "o = ReduceSum <keepdims = 0> (b) ", states=("s0, none", "", "", ", float o")
    ),
    "it is stacked": writing(SIMPLE + "o = Identity (b1) ", states=("s0, none", "", "", ", float[T,3] o")),
    "the condition reads it": writing(
        SIMPLE + "o = ReduceMin <keepdims = 0> (b1) c1 = Less (o, 100.0) ",
        before="none = ConstantOfShape (shape)",
    ),
    "rows are added": writing('at = Unsqueeze (i, [0]) b1 = ScatterND <reduction = "add"> (b, at, s1) '),
    "always the same row": writing("b1 = ScatterND (b, [0], s1) "),
    "every second row": writing("j = Mul (i, 2) at = Unsqueeze (j, [0]) b1 = ScatterND (b, at, s1) ", **FIVE),
    "from row 1 on": writing("j = Add (i, 1) at = Unsqueeze (j, [0]) b1 = ScatterND (b, at, s1) ", **FIVE),
    "row 0 by a difference": writing("j = Sub (i, i) at = Unsqueeze (j, [0]) b1 = ScatterND (b, at, s1) ", **FIVE),
    "the last of them in a longer tensor": writing(
        "j = Sub (2, i) at = Unsqueeze (j, [0]) b1 = ScatterND (b, at, s1) ", **FIVE
    ),
    "a branch reads it": writing(SIMPLE + BRANCH, states=("s0, none", "", "", ", float o")),
    "more rows than steps, of unknown number": writing(SIMPLE, **MORE),
    "the Loop ends by data": writing(
        SIMPLE + "o = ReduceMin <keepdims = 0> (s1) c1 = Less (-0.3, o) ",
        before="none = ConstantOfShape (shape)",
    ),
    "no step, by data": writing(
        SIMPLE,
        before="none = ConstantOfShape (shape) sum = ReduceSum <keepdims = 0> (X) some = Less (0.0, sum)",
        head="Loop (M, some",
    ),
    "two rows in each step": writing(
        "at = Unsqueeze (i, [0]) a1 = ScatterND (b, at, t) b1 = ScatterND (a1, [0], s1) "
    ),
    "one element of a row": writing(
        "at = Unsqueeze (i, [0]) p = Concat <axis = 0> (at, [0]) v = ReduceSum <keepdims = 0> (s1) "
        "b1 = ScatterND (b, p, v) "
    ),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", KEPT)
def test_other_writing_stays_a_state(name: str) -> None:
    model = KEPT[name]
    lowered = rl.lower(model, "loop", lower_loops=True)
    assert any(node.op_type == "ScatterND" for _, body in bodies(lowered.graph) for node in body.node)
    for T in lengths(model, 4, 1):
        feed = {"s0": numbers(3), "X": numbers(T, 3) - 0.5}
        assert_same(run(lowered, feed), run(as_meant(model), feed))


def test_a_stream_returns_the_rows_that_it_writes() -> None:
    model = STACKED["as torch writes"]
    X = numbers(17, 3) - 0.5
    stepped = rl.lower(model, stream="T", lower_loops=True)
    assert "ScatterND" not in operators(stepped)
    assert len(plan_of(stepped)["states"]) == 1
    expected = whole(as_meant(model), {"s0": numbers(3), "X": X})["Y"]
    for sizes in CHUNKINGS:
        found = chunked(stepped, {"X": X}, sizes, {plan_of(stepped)["states"][0]["input"]: numbers(3)})
        np.testing.assert_allclose(found["Y"], expected, rtol=1e-5, atol=1e-6)
