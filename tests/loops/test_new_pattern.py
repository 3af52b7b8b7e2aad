"""A Loop collects rows with an operator that the package has never seen: one function makes it a Scan."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.defs import OpSchema
from running import operators, run
from stream_models import net, random

import rnn_lowering as rl
from rnn_lowering.emit.ops import Ops
from rnn_lowering.loops.body import LoopBody
from rnn_lowering.loops.stacked_states import GIVES_A_ROW, JoinedRows, StackedState
from rnn_lowering.loops.value_facts import Facts


def infer_shapes(context: Any) -> None:
    output = onnx.TypeProto()
    output.CopyFrom(context.get_input_type(0))
    output.tensor_type.shape.dim[0].Clear()
    context.set_output_type(0, output)


@pytest.fixture(autouse=True)
def known_to_onnx() -> Iterator[None]:
    """Appended puts a row behind the rows of a tensor."""
    schema = OpSchema(
        "Appended",
        "",
        1,
        inputs=[OpSchema.FormalParameter("rows", "T"), OpSchema.FormalParameter("row", "T")],
        outputs=[OpSchema.FormalParameter("all", "T")],
        type_constraints=[("T", ["tensor(float)"], "")],
    )
    schema.set_type_and_shape_inference_function(infer_shapes)
    onnx.defs.register_schema(schema)
    yield
    onnx.defs.deregister_schema("Appended", 1, "")


def model() -> onnx.ModelProto:
    return net(
        """g (float[3] s0, float[T,3] X) => (float[3] sn, float[n,3] Y) { shape = Shape (X) M = Gather (shape, 0)
        sn, Y = Loop (M, True, s0, none) <body = d (int64 i, bool c, float[3] s, float[m,3] b)
            => (bool c1, float[3] s1, float[m1,3] b1) { x = Gather (X, i) t = Add (s, x) s1 = Tanh (t)
            b1 = Appended (b, s1) c1 = Identity (c) }> }""",
        {"none": np.zeros((0, 3), np.float32)},
    )


def test_it_stays_a_loop_as_long_as_it_is_unknown() -> None:
    with pytest.raises(rl.UnsupportedError, match="Loop node"):
        rl.lower(model(), "scan", lower_loops=True)


def test_a_function_that_reads_its_row_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def appended(
        facts: Facts, read: LoopBody, step: ir.Node, n: int, first: ir.Value, scratch: Ops
    ) -> StackedState:
        row = step.inputs[1]
        assert row is not None
        return StackedState(n, row, [JoinedRows(read.results[n], axis=0, before=first)])

    monkeypatch.setitem(GIVES_A_ROW, "Appended", appended)
    new = rl.lower(model(), "scan", lower_loops=True)
    assert operators(new) & {"Scan", "Loop", "Appended"} == {"Scan"}
    X, s, rows = random((5, 3), 1), np.zeros(3), []
    for x in X:
        rows.append(s := np.tanh(s + x))
    got = run(new, {"s0": np.zeros(3, np.float32), "X": X})
    np.testing.assert_allclose(got["Y"], rows, rtol=0, atol=1e-6)
    np.testing.assert_allclose(got["sn"], s, rtol=0, atol=1e-6)
