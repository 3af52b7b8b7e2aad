"""A Loop or Scan is compared as it is meant, at several numbers of steps, though onnxruntime misreads it."""

import numpy as np
import onnx
import pytest
from loop_models import run
from loop_traps import TRAPS, numbers
from onnx import parser

import rnn_lowering as rl

UNNAMED: onnx.ModelProto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[2] a, float[T,2] X) => (float[T,2] Y) <bool yes = {1}, int64 z = {0}> {
    sh = Shape (X) M = Gather (sh, z)
    p, Y = Loop (M, yes, a) <body = d (int64 i, bool c, float[2] s) => (bool c1, float[2] s1, float[2] o) {
        x = Gather (X, i) s1 = Add (s, x) o = Mul (s1, x) c1 = Identity (c) }> }""")
UNNAMED.graph.node[2].output[0] = ""


def test_a_state_without_a_name_is_compared() -> None:
    """onnxruntime crashes on it."""
    check = rl.verify(UNNAMED, rl.lower(UNNAMED, "scan", loops=True), runs=2)
    assert check.status == "verified", str(check)
    assert "an output without a name" in check.reason


@pytest.mark.parametrize("name", ["swapped states and a stacked x", "as many trips as rows", "no trips", "a list"])
def test_traps_are_verified(name: str) -> None:
    (trap,) = [trap for trap in TRAPS if trap.name == name]
    check = rl.verify(trap.model, rl.lower(trap.model, "loop", loops=True), runs=2)
    assert check.status == "verified", str(check)


def test_another_number_of_steps_is_noticed() -> None:
    lowered = rl.lower(UNNAMED, "loop", loops=True)
    (loop,) = [node for node in lowered.graph.node if node.op_type == "Loop"]
    lowered.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(1), "once"))
    loop.input[0] = "once"
    assert run(lowered, {"a": numbers(2), "X": numbers(1, 2)})[0].shape == (1, 2)
    assert rl.verify(UNNAMED, lowered, runs=3).status == "failed"
