"""What is not known of a value at lowering time, although it looks constant; test_weights.py has what is known."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from cases import Array

from rnn_lowering.spec.constant_values import constant_of

OPSET = 17
NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


def initializer(array: Array = NUMBERS, name: str = "w") -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    ir.Graph([], [], nodes=[], initializers=[value], name="g")
    return value


def computed(op_type: str, *inputs: ir.Value, domain: str = "", **attributes: Any) -> ir.Value:
    node = ir.node(op_type, list(inputs), attributes, domain=domain, outputs=[ir.Value(name=f"{op_type}_output")])
    return node.outputs[0]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(ir.Value(name="x"), id="an input"),
        pytest.param(computed("Transpose", ir.Value(name="x")), id="of an input"),
        pytest.param(computed("Tanh", initializer()), id="an operator that is not folded"),
        pytest.param(computed("Transpose", initializer(), domain="custom"), id="an operator of another domain"),
        pytest.param(computed("Reshape", initializer(), initializer(np.array([5]), "s")), id="an invalid node"),
    ],
)
def test_what_is_not_known(value: ir.Value) -> None:
    assert constant_of(value, OPSET) is None


def test_a_value_that_depends_on_itself() -> None:
    value = computed("Identity", ir.Value(name="x"))
    node = value.producer()
    assert node is not None
    node.replace_input_with(0, value)
    assert constant_of(value, OPSET) is None
