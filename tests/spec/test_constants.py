"""What is known of a value at lowering time: constants, and what is computed from constants only."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from cases import Array

from rnn_lowering.spec.constants import constant_of, dims_of

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


def numbers(value: ir.Value) -> Array:
    tensor = constant_of(value, OPSET)
    assert tensor is not None
    return np.asarray(tensor.numpy())


def test_an_initializer() -> None:
    assert np.array_equal(numbers(initializer()), NUMBERS)


def test_an_initializer_that_is_an_input_is_only_a_default() -> None:
    value = initializer()
    assert value.graph is not None
    value.graph.inputs.append(value)
    assert constant_of(value, OPSET) is None


def test_a_constant_node() -> None:
    assert np.array_equal(numbers(computed("Constant", value=ir.tensor(NUMBERS))), NUMBERS)


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_chain(domain: str) -> None:
    axes = initializer(np.array([0], np.int64), "axes")
    chain = computed("Unsqueeze", computed("Transpose", initializer(), domain=domain, perm=[1, 0]), axes)
    assert np.array_equal(numbers(chain), NUMBERS.T[None])


def test_integers_are_dequantized_before_opset_19() -> None:
    weights = initializer(np.array([[1, 2], [3, 4]], np.int8), "q")
    scale = initializer(np.array(0.5, np.float32), "scale")
    zero = initializer(np.array(1, np.int8), "zero")
    assert numbers(computed("DequantizeLinear", weights, scale, zero)).tolist() == [[0.0, 0.5], [1.0, 1.5]]


def test_a_static_shape_is_a_constant() -> None:
    value = ir.Value(name="x", shape=ir.Shape([4, 2]))
    assert numbers(computed("Shape", value)).tolist() == [4, 2]
    assert constant_of(computed("Shape", ir.Value(name="x", shape=ir.Shape(["n", 2]))), OPSET) is None


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


def test_a_few_bytes_that_ask_for_any_size() -> None:
    shape = initializer(np.array([1 << 20, 1 << 20], np.int64), "shape")
    assert constant_of(computed("ConstantOfShape", shape), OPSET) is None


def test_dims() -> None:
    assert dims_of(None) is None
    assert dims_of(ir.Shape([2, "n", -1, None])) == (2, None, None, None)
