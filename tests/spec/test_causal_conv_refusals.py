"""Each invalid CausalConvWithState has one error, which names the node and what is wrong with it."""

from dataclasses import replace
from typing import Any

import pytest
from causal_conv import STANDARD, ConvCase, model
from graphs import MS
from onnx import TensorProto
from refusals import refusal, with_shapes

import rnn_lowering as rl

OF_MS = replace(STANDARD, domain=MS)
LAST = replace(OF_MS, channels_last=True, channels=(2, 3))

ATTRIBUTES: list[tuple[ConvCase, dict[str, Any], str]] = [
    (STANDARD, {"dilation": 2}, "CausalConvWithState-27 has no attribute 'dilation'"),
    (STANDARD, {"activation": "relu"}, "activation is 'relu'; none, silu and swish are allowed"),
    (STANDARD, {"activation": 1}, "attribute 'activation' is of type INT, not STRING"),
    (OF_MS, {"dilation": 0}, "dilation is 0; it must be at least 1"),
    (OF_MS, {"channels_last": 2}, "channels_last is 2; 0 and 1 are allowed"),
    (OF_MS, {"ndim": 0}, "ndim is 0; it must be at least 1"),
    (OF_MS, {"ndim": 4}, "ndim is 4; at most 3 is allowed"),
    (OF_MS, {"state_window": 9}, "state_window is 9; at most 8 is allowed"),
    (OF_MS, {"state_window": -1}, "state_window is -1; it must be at least 0"),
]

UNSUPPORTED: list[tuple[ConvCase, dict[str, Any], str]] = [
    (OF_MS, {"ndim": 2}, "ndim is 2: only 1 is supported; put the other axes into the batch"),
    (OF_MS, {"state_window": 2}, "state_window is 2: only 0 is supported; export the model without a window"),
]

SHAPES: list[tuple[ConvCase, dict[str, list[int]], str]] = [
    (STANDARD, {"weight": [3, 4]}, "weight has shape [3, 4], not [channels, 1, kernel_size]"),
    (STANDARD, {"weight": [3, 2, 4]}, "weight has shape [3, 2, 4], not [channels, 1, kernel_size]"),
    (STANDARD, {"weight": [3, 1, 0]}, "weight has shape [3, 1, 0], not [channels, 1, kernel_size]"),
    (STANDARD, {"bias": [4]}, "bias has shape [4], not [channels=3]"),
    (STANDARD, {"bias": [1, 3]}, "bias has shape [1, 3], not [channels=3]"),
    (STANDARD, {"past_state": [2, 3, 4]}, "past_state has shape [2, 3, 4], not [batch_size, channels=3, 3]"),
    (STANDARD, {"past_state": [2, 3]}, "past_state has shape [2, 3], not [batch_size, channels=3, 3]"),
    (STANDARD, {"input": [2, 4, 5]}, "input has shape [2, 4, 5], not [batch_size=2, channels=3, length]"),
    (STANDARD, {"input": [1, 3, 5]}, "input has shape [1, 3, 5], not [batch_size=2, channels=3, length]"),
    (STANDARD, {"input": [2, 3, 5, 1]}, "input has shape [2, 3, 5, 1], not"),
    (LAST, {"input": [2, 5, 2, 4]}, "input has shape [2, 5, 2, 4], not [batch_size=2, length, channels_1=2"),
    (LAST, {"weight": [5, 1, 4], "bias": [5]}, "input has 6 channels, weight has 5"),
    (replace(LAST, optional=()), {"input": [2, 5]}, "input has rank 2; with channels_last it is"),
]


@pytest.mark.parametrize(("case", "attributes", "text"), ATTRIBUTES)
def test_attributes(case: ConvCase, attributes: dict[str, Any], text: str) -> None:
    error = refusal(model(case, **attributes))
    assert isinstance(error, rl.InvalidNodeError)
    assert text in str(error)


@pytest.mark.parametrize(("case", "attributes", "text"), UNSUPPORTED)
def test_what_the_cpu_kernel_refuses_too(case: ConvCase, attributes: dict[str, Any], text: str) -> None:
    error = refusal(model(case, **attributes))
    assert not isinstance(error, rl.InvalidNodeError)
    assert text in str(error)


@pytest.mark.parametrize(("case", "shapes", "text"), SHAPES)
def test_shapes(case: ConvCase, shapes: dict[str, list[int]], text: str) -> None:
    error = refusal(with_shapes(model(replace(case, constants=())), shapes))
    assert isinstance(error, rl.InvalidNodeError)
    assert text in str(error)


def test_a_weight_of_unknown_shape() -> None:
    error = refusal(with_shapes(model(replace(STANDARD, constants=())), {"weight": None}))
    assert "the shape of weight is not known; make weight an initializer" in str(error)


@pytest.mark.parametrize(("slot", "missing"), [(0, "input input"), (1, "input weight")])
def test_a_missing_input(slot: int, missing: str) -> None:
    original = model(STANDARD)
    original.graph.node[0].input[slot] = ""
    assert f"{missing} is missing" in str(refusal(original))


@pytest.mark.parametrize(("slot", "name"), [(0, "output"), (1, "present_state")])
@pytest.mark.parametrize("domain", ["", MS])
def test_a_missing_output(slot: int, name: str, domain: str) -> None:
    original = model(replace(STANDARD, domain=domain))
    original.graph.node[0].output[slot] = ""
    del original.graph.output[slot]
    assert f"output {name} is missing; both outputs are required" in str(refusal(original))


def test_types() -> None:
    mixed = model(replace(STANDARD, constants=()))
    mixed.graph.input[3].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert "inputs are of different types: input FLOAT, weight FLOAT, bias FLOAT, past_state FLOAT16" in str(
        refusal(mixed)
    )
    double = model(replace(STANDARD, constants=()))
    for value in double.graph.input:
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    assert "DOUBLE is not a type of CausalConvWithState-27" in str(refusal(double))


def test_an_opset_without_the_operator() -> None:
    text = "opset 26 has no CausalConvWithState; it exists from opset 27 on, and in the domain com.microsoft"
    assert text in str(refusal(model(replace(STANDARD, opset=26))))
