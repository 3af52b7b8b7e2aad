"""Each invalid LinearAttention has one error, which names the node and what is wrong with it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from attention import STANDARD, Attention
from graphs import MS
from onnx import TensorProto
from refusals import refusal, with_attributes, with_shapes

import rnn_lowering as rl

NODE = Attention(domain=STANDARD)
OF_MS = Attention(domain=MS)
GROUPS = Attention(domain=MS, Hq=2, H=4, n=2)

ATTRIBUTES: list[tuple[Attention, dict[str, Any], str]] = [
    (NODE, {"state_window": 0}, "LinearAttention-27 has no attribute 'state_window'"),
    (NODE, {"update_rule": "erase"}, "update_rule is 'erase'; linear, gated, delta and gated_delta are allowed"),
    (NODE, {"update_rule": 1}, "attribute 'update_rule' is of type INT, not STRING"),
    (NODE, {"scale": 1}, "attribute 'scale' is of type INT, not FLOAT"),
    (NODE, {"q_num_heads": 0}, "q_num_heads is 0; it must be positive"),
    (NODE, {"kv_num_heads": -2}, "kv_num_heads is -2; it must be positive"),
    (NODE, {"q_num_heads": 3}, "q_num_heads is 3, kv_num_heads 2; the first must be a multiple of the second"),
    (replace(NODE, Hq=2, H=4), {}, "q_num_heads is 2, kv_num_heads 4; the first must be a multiple of the second"),
    (OF_MS, {"q_num_heads": 3}, "the first must be a multiple of the second, or the other way round"),
    (NODE, {"update_rule": "gated"}, "input beta is connected; update_rule gated does not allow it"),
    (NODE, {"update_rule": "delta"}, "input decay is connected; update_rule delta does not allow it"),
    (replace(NODE, rule="gated"), {"update_rule": "gated_delta"}, "input beta is missing; update_rule gated_delta"),
    (replace(OF_MS, rule="linear"), {"update_rule": "gated"}, "input decay is missing; update_rule gated needs it"),
]

SHAPES: list[tuple[Attention, dict[str, Sequence[int | str]], str]] = [
    (NODE, {"query": [2, 5, 7]}, "query is 7 wide, not a multiple of its 2 heads"),
    (NODE, {"query": [2, 5, 2, 4]}, "query has shape [2, 5, 2, 4], not one of rank 3"),
    (NODE, {"key": [2, 5, 6]}, "key has shape [2, 5, 6], not [batch size=2, sequence length=5, 8]"),
    (NODE, {"key": [2, 6, 8]}, "key has shape [2, 6, 8], not [batch size=2, sequence length=5, 8]"),
    (NODE, {"value": [1, 5, 6]}, "value has shape [1, 5, 6], not [batch size=2, sequence length=5, 6]"),
    (NODE, {"value": [2, 5, 7]}, "value is 7 wide, not a multiple of its 2 heads"),
    (NODE, {"past_state": [2, 2, 3, 4]}, "past_state has shape [2, 2, 3, 4], not [batch size=2, 2, 4, 3]"),
    (NODE, {"past_state": [2, 8, 3]}, "past_state has shape [2, 8, 3], not one of rank 4"),
    (NODE, {"past_state": [1, 2, 4, 3]}, "past_state has shape [1, 2, 4, 3], not [batch size=2, 2, 4, 3]"),
    (NODE, {"decay": [2, 5, 4]}, "decay is 4 wide, not 2 (of each head) or 8 (of each key dimension)"),
    (NODE, {"decay": [2, 4, 2]}, "decay has shape [2, 4, 2], not [batch size=2, sequence length=5, 2]"),
    (NODE, {"beta": [2, 5, 3]}, "beta has shape [2, 5, 3], not [batch size=2, sequence length=5, 2]"),
    (GROUPS, {"key": [2, 5, 12]}, "key is 12 wide, not a number of heads of size 4 that divides kv_num_heads (4)"),
    (NODE, {"query": [2, 5, 0], "key": [2, 5, 0]}, "query is 0 wide, not a multiple of its 2 heads"),
]


@pytest.mark.parametrize(("case", "attributes", "text"), ATTRIBUTES)
def test_attributes(case: Attention, attributes: dict[str, Any], text: str) -> None:
    error = refusal(with_attributes(case.model(), **attributes))
    assert isinstance(error, rl.InvalidNodeError)
    assert text in str(error)


@pytest.mark.parametrize("name", ["q_num_heads", "kv_num_heads"])
@pytest.mark.parametrize("case", [NODE, OF_MS])
def test_a_missing_attribute(name: str, case: Attention) -> None:
    assert f"attribute '{name}' is missing" in str(refusal(with_attributes(case.model(), **{name: None})))


def test_a_window_of_states() -> None:
    error = refusal(with_attributes(OF_MS.model(), state_window=4))
    assert not isinstance(error, rl.InvalidNodeError)
    assert "state_window is 4: the states after several tokens cannot be kept; export the model with" in str(error)
    rl.lower(with_attributes(OF_MS.model(), state_window=0, chunk_size=-3))


@pytest.mark.parametrize(("case", "shapes", "text"), SHAPES)
def test_shapes(case: Attention, shapes: dict[str, Sequence[int | str]], text: str) -> None:
    error = refusal(with_shapes(case.model(), shapes))
    assert isinstance(error, rl.InvalidNodeError)
    assert text in str(error)


@pytest.mark.parametrize("symbol", ["query", "key", "value"])
@pytest.mark.parametrize("case", [NODE, replace(NODE, domain=MS, state=False)])
def test_an_unknown_width(symbol: str, case: Attention) -> None:
    """The sizes of a key and a value may follow from another input."""
    original = with_shapes(case.model(), {symbol: None})
    if (case.domain == STANDARD) or (symbol == "value" and case.state):
        rl.lower(original)
        return
    assert f"the width of {symbol} is not known; run onnx.shape_inference first" in str(refusal(original))


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_missing_input(slot: int) -> None:
    original = NODE.model()
    original.graph.node[0].input[slot] = ""
    assert f"input {('query', 'key', 'value')[slot]} is missing" in str(refusal(original))


@pytest.mark.parametrize(("slot", "name"), [(0, "output"), (1, "present_state")])
@pytest.mark.parametrize("case", [NODE, OF_MS])
def test_a_missing_output(slot: int, name: str, case: Attention) -> None:
    original = case.model()
    original.graph.node[0].output[slot] = ""
    del original.graph.output[slot]
    assert f"output {name} is missing; both outputs are required" in str(refusal(original))


def test_types() -> None:
    mixed = NODE.model()
    mixed.graph.input[5].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert "inputs are of different types: query FLOAT, key FLOAT, value FLOAT, decay FLOAT, beta FLOAT16" in str(
        refusal(mixed)
    )
    for case, version in ((NODE, 27), (OF_MS, 1)):
        double = case.model()
        for value in double.graph.input:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
        assert f"DOUBLE is not a type of LinearAttention-{version}" in str(refusal(double))
        double = case.model()
        double.graph.input[3].type.tensor_type.elem_type = TensorProto.DOUBLE
        assert f"DOUBLE is not a type of LinearAttention-{version}" in str(refusal(double))


def test_an_opset_without_the_operator() -> None:
    text = "opset 26 has no LinearAttention; it exists from opset 27 on, and in the domain com.microsoft"
    assert text in str(refusal(replace(NODE, opset=26).model()))
