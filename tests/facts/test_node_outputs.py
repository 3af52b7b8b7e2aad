"""What a node computes from constants is known only where ONNX specifies it, and the evaluator computes it."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from texts import parse

from rnn_lowering.facts.known import KnownValues
from rnn_lowering.facts.node_outputs import compute_node
from rnn_lowering.facts.numbers import evaluate
from rnn_lowering.facts.size import size


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


def test_a_constant_takes_the_type_of_a_value_that_is_not_constant() -> None:
    """CastLike reads no number of its second input."""
    model = ir.from_proto(parse("g (float[n] X) => (float[2] c) <int64[2] a = {3, -4}> { c = CastLike (a, X) }"))
    known = KnownValues.start(model, {})
    node = model.graph[0]
    constant = node.inputs[0]
    assert constant is not None
    known.types[constant], known.shapes[constant] = ir.DataType.INT64, (size(2),)
    known.contents[constant] = np.array([3, -4])
    evaluate(known, node)
    found = known.contents[node.outputs[0]]
    assert found.tolist() == [3.0, -4.0]
    assert found.dtype.name == "float32"
