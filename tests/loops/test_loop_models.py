"""Loops and Scans of real exporters, and small ones that are easily misread: right in each form, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from loop_models import LOOPS, Entry, as_meant, assert_same, bodies, entries, feeds, fits, operators, run
from loop_traps import TRAPS, Trap, numbers
from onnx import parser
from stream_models import net

import rnn_lowering as rl

FORMS = ("unroll", "loop", "scan")


def lowered(model: onnx.ModelProto, form: Any, **fix: Any) -> onnx.ModelProto:
    """Lower a model, and check what is in the result."""
    new: onnx.ModelProto = rl.lower(model, form, lower_loops=True, **fix)
    onnx.checker.check_model(new, full_check=True)
    assert not operators(new) & ({"Loop", "Scan"} - {form.title()})
    return new


def attempt(
    model: onnx.ModelProto, form: str, **fix: Any
) -> tuple[onnx.ModelProto | None, rl.UnsupportedError | None]:
    try:
        return lowered(model, form, **fix), None
    except rl.UnsupportedError as error:
        return None, error


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("entry", entries())
def test_a_model_of_an_exporter(entry: Entry, form: str) -> None:
    """Refused at most as the manifest allows."""
    model = onnx.load(LOOPS / entry["file"])
    fixed = entry["fix"].get("set_inputs", {})
    allowed = entry["possible"].get(form, "possible")
    new, refusal = attempt(model, form, **entry["fix"])
    if new is None:
        assert allowed != "possible", str(refusal)
        assert refusal is not None
        assert refusal.node is not None
        assert refusal.hint
        return
    assert allowed != "refuse"
    for feed in feeds(entry):
        if all(feed[name] == value for name, value in fixed.items()):
            if not fits(new, feed):
                new = lowered(model, form, input_shapes={name: array.shape for name, array in feed.items()})
            assert_same(run(new, feed), run(as_meant(model), feed))


@pytest.mark.few(8)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_a_trap(trap: Trap, form: Any) -> None:
    if trap.refusal(form):
        with pytest.raises(rl.UnsupportedError, match=trap.refusal(form)) as caught:
            rl.lower(trap.model, form, lower_loops=True, **trap.fix)
        assert caught.value.node is not None
        assert caught.value.hint
        return
    for feed in trap.feeds:
        fixed = {n: a.shape for n, a in feed.items() if n not in trap.fix.get("set_inputs", {})}
        new = lowered(trap.model, form, **{"input_shapes": fixed if form == "unroll" else {}, **trap.fix})
        assert fits(new, feed)
        assert_same(run(new, feed), run(as_meant(trap.model), feed))


# Comparisons: of a model as it is meant, at several numbers of steps, though onnxruntime misreads it

UNNAMED: onnx.ModelProto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[2] a, float[T,2] X) => (float[T,2] Y) <bool yes = {1}, int64 z = {0}> {
    sh = Shape (X) M = Gather (sh, z)
    p, Y = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o) {
        x = Gather (X, i) s1 = Add (s, x) o = Mul (s1, x) c1 = Identity (c) }> }""")
UNNAMED.graph.node[2].output[0] = ""


def test_a_state_without_a_name_is_compared() -> None:
    """onnxruntime crashes on it."""
    check = rl.verify(UNNAMED, rl.lower(UNNAMED, "scan", lower_loops=True), runs=2)
    assert check.status == "verified", str(check)
    assert "an output without a name" in check.reason


@pytest.mark.parametrize("name", ["swapped states and a stacked x", "as many trips as rows", "no trips", "a list"])
def test_traps_are_verified(name: str) -> None:
    (trap,) = [trap for trap in TRAPS if trap.name == name]
    check = rl.verify(trap.model, rl.lower(trap.model, "loop", lower_loops=True), runs=2)
    assert check.status == "verified", str(check)


@pytest.mark.parametrize("sizes", [None, [0]])
def test_a_loop_without_a_step_may_have_no_shape(sizes: list[int] | None, tmp_path: Path) -> None:
    """onnxruntime stacks [0] or [0, 0] where the body declares no shape; wrong sizes are noticed."""
    model = net("""g (float[2] a, int64 n) => (float[2] p, float Y) { p, Y = Loop (n, True, a) <body = d (int64 i,
        bool c, float[2] s) => (bool c1, float[2] s1, float[2] o) { s1 = Mul (s, s) o = Add (s, s1)
        c1 = Identity (c) }> }""")
    ((_, body),) = bodies(model.graph)
    for value in (*body.output, body.input[2]):
        value.type.tensor_type.ClearField("shape")
        value.type.tensor_type.shape.dim.add() if sizes else value.ClearField("type")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    feed = {"a": numbers(2), "n": np.asarray(0)}
    assert run(model, feed)[1].shape == (0, *(sizes or ()))
    onnx.save(model, tmp_path / "model.onnx")
    report = rl.lower_file(tmp_path / "model.onnx", tmp_path / "new.onnx", "loop", lower_loops=True, feeds=[feed])
    assert report.verification
    new = onnx.load(tmp_path / "new.onnx")
    assert run(new, feed)[1].shape == (0, 2)
    wrong = net("g (float[2] a, int64 n) => (float[2] p, float[1,2] Y) { p = Abs (a) Y = Unsqueeze (a, [0]) }")
    assert rl.verify(model, wrong, feeds=[feed | {"a": numbers(2) + 1}]).status == "failed"


def test_another_number_of_steps_is_noticed() -> None:
    new = rl.lower(UNNAMED, "loop", lower_loops=True)
    (loop,) = [node for node in new.graph.node if node.op_type == "Loop"]
    new.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(1), "once"))
    loop.input[0] = "once"
    assert run(new, {"a": numbers(2), "X": numbers(1, 2)})[0].shape == (1, 2)
    assert rl.verify(UNNAMED, new, runs=3).status == "failed"
