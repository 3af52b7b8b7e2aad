"""What a node computes from constants is known only where ONNX specifies it, and the evaluator computes it."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rnn_lowering.facts.node_outputs import compute_node


@pytest.mark.parametrize(
    ("power", "known"), [([3, 0, 2], [-8, 1, 9]), ([3, 0, -2], None), ([3, 0, 40], None)], ids=str
)
def test_powers_of_integers(power: list[int], known: list[int] | None) -> None:
    """A negative power of an integer is no integer, and one that does not fit is another in each runtime."""
    arrays: list[Any] = [np.array([-2, 5, 3]), np.array(power)]
    node = onnx.helper.make_node("Pow", ["a", "b"], ["c"])
    given = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [3]) for name in ("a", "b", "c")]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", given[:2], given[2:]))
    graph = ir.from_proto(model).graph
    found = compute_node(graph[0], dict(zip(graph.inputs, arrays, strict=True)), 17)
    assert [array.tolist() for array in found] == ([] if known is None else [known])
