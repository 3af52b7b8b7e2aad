"""Faults of onnxruntime do not make a right model fail, and what was done about them is said."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from running import optimizations_change
from stream_models import net, random, recurrent

import rnn_lowering as rl

pytestmark = pytest.mark.usefixtures("workers_here")

BODIES = {
    "swapped states": """(float[2, 4] t, float[2, 4] u, float[2, 4] z) { u = Add (s, x)  z = Add (t, x) }""",
    "a state that stays": """(float[2, 4] u, float[2, 4] t, float[2, 4] s) { u = Add (s, x) }""",
    "one value twice": """(float[2, 4] u, float[2, 4] u, float[2, 4] u) { u = Add (s, t) }""",
}


def scanned(body: str) -> onnx.ModelProto:
    """An LSTM, and a Scan of the exporter's own over its outputs."""
    return net(
        f"""g (float[time, 2, 3] X) => (float[time, 2, 4] Z, float[2, 4] p, float[2, 4] q) {{
            Y = LSTM <hidden_size = 4> (X, W, R, B)  y = Squeeze (Y, axis)
            p, q, Z = Scan <num_scan_inputs = 1, body = b
            (float[2, 4] s, float[2, 4] t, float[2, 4] x) => {body}> (zero, one, y) }}""",
        {**recurrent("LSTM", 3, 4), "axis": np.array([1]), "zero": random((2, 4), 1), "one": random((2, 4), 2)},
    )


def equivalent(original: onnx.ModelProto) -> onnx.ModelProto:
    """The lowered model, in which no body returns what it is given: as onnxruntime should read the original."""
    lowered = rl.lower(original)
    (scan,) = (node for node in lowered.graph.node if "Z" in node.output)
    (body,) = (a.g for a in scan.attribute if a.name == "body")
    for n, value in enumerate(body.output):
        body.node.append(onnx.helper.make_node("Identity", [value.name], [f"other_{n}"]))
        value.name = f"other_{n}"
    return lowered


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_returns_its_own_input(body: str) -> None:
    original = scanned(BODIES[body])
    check = rl.verify(original, equivalent(original))
    assert check, check.reason
    assert "onnxruntime misreads a body that returns its own input" in check.reason
    assert "Scan node 'p'" in check.reason
    assert rl.verify(original, rl.lower(original))


def test_a_body_that_is_right_is_not_mentioned() -> None:
    original = scanned(
        BODIES["one value twice"]
        .replace("u, float[2, 4] u, float[2, 4] u)", "u, float[2, 4] v, float[2, 4] w)")
        .replace("(s, t) }", "(s, t) v = Neg (u) w = Abs (x) }")
    )
    check = rl.verify(original, rl.lower(original))
    assert check
    assert "misreads" not in check.reason


def pooled() -> onnx.ModelProto:
    """Zeros before a maximum: onnxruntime takes them for minus infinity."""
    return net(
        """g (float[time, batch, 3] X) => (float[batch, 4, t] Z) {
            Y = GRU <hidden_size = 4> (X, W, R, B)  y = Squeeze (Y, axis)  low = Sub (y, far)
            x = Transpose <perm = [1, 2, 0]> (low)  p = Pad (x, pads)  Z = MaxPool <kernel_shape = [3]> (p) }""",
        {
            **recurrent("GRU", 3, 4),
            "axis": np.array([1]),
            "far": np.array(9, np.float32),
            "pads": np.array([0, 0, 2, 0, 0, 0]),
        },
    )


def test_an_optimization_that_changes_the_original() -> None:
    original = pooled()
    if not optimizations_change(original, {"X": random((9, 2, 3))}):
        pytest.skip("this onnxruntime does not have the fault")
    other = rl.lower(original)
    (pad,) = (node for node in other.graph.node if node.op_type == "Pad")
    pad.CopyFrom(onnx.helper.make_node("Concat", ["zeros", "x"], ["p"], axis=2))
    other.graph.node.insert(0, onnx.helper.make_node("Shape", ["X"], ["batch"], start=1, end=2))
    other.graph.node.insert(1, onnx.helper.make_node("Concat", ["batch", "more"], ["sizes"], axis=0))
    other.graph.node.insert(2, onnx.helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]))
    other.graph.initializer.append(numpy_helper.from_array(np.array([4, 2]), "more"))
    del other.graph.value_info[:]
    check = rl.verify(original, other)
    assert check, check.reason
    assert "onnxruntime's optimizations change the original's outputs" in check.reason


def test_a_fault_is_not_excused() -> None:
    wrong = rl.lower(pooled())
    (tensor,) = (t for t in wrong.graph.initializer if t.name == "far")
    tensor.CopyFrom(numpy_helper.from_array(np.array(9.5, np.float32), "far"))
    check = rl.verify(pooled(), wrong)
    assert check.status == "failed"
