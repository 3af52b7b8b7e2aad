"""Each invalid CausalConvWithState or LinearAttention has one error, which names the node and what is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import causal_conv
import onnx
import pytest
from attention import STANDARD, Attention
from causal_conv import ConvCase
from graphs import MS
from onnx import TensorProto
from refusals import refusal, with_attributes, with_shapes

import rnn_lowering as rl

CONV = replace(causal_conv.STANDARD, constants=())
CONV_OF_MS = replace(CONV, domain=MS)
LAST = replace(CONV_OF_MS, channels_last=True, channels=(2, 3))
NODE = Attention(domain=STANDARD)
OF_MS = Attention(domain=MS)
GROUPS = Attention(domain=MS, Hq=2, H=4, n=2)
STATELESS = replace(OF_MS, state=False)
Case = ConvCase | Attention
Shapes = Mapping[str, Sequence[int | str] | None]


def made(case: Case, shapes: Shapes | None = None, **attributes: Any) -> onnx.ModelProto:
    """Return the model of a node with other attributes, and with other declared shapes of its inputs."""
    plain = causal_conv.model(case) if isinstance(case, ConvCase) else case.model()
    return with_shapes(with_attributes(plain, **attributes), shapes or {})


def without(case: Case, field: str, slot: int) -> onnx.ModelProto:
    """Return the model of a node without one of its inputs or outputs."""
    original = made(case)
    getattr(original.graph.node[0], field)[slot] = ""
    if field == "output":
        del original.graph.output[slot]
    return original


def typed(case: Case, elem_type: int, *slots: int) -> onnx.ModelProto:
    """Return the model of a node some inputs of which have another type."""
    original = made(case)
    for slot in slots or range(len(original.graph.input)):
        original.graph.input[slot].type.tensor_type.elem_type = elem_type
    return original


INVALID: list[tuple[onnx.ModelProto, str]] = [
    (made(CONV, dilation=2), "CausalConvWithState-27 has no attribute 'dilation'"),
    (made(CONV, activation="relu"), "activation is 'relu'; none, silu and swish are allowed"),
    (made(CONV, activation=1), "attribute 'activation' is of type INT, not STRING"),
    (made(CONV_OF_MS, dilation=0), "dilation is 0; it must be at least 1"),
    (made(CONV_OF_MS, channels_last=2), "channels_last is 2; 0 and 1 are allowed"),
    (made(CONV_OF_MS, ndim=0), "ndim is 0; it must be at least 1"),
    (made(CONV_OF_MS, ndim=4), "ndim is 4; at most 3 is allowed"),
    (made(CONV_OF_MS, state_window=9), "state_window is 9; at most 8 is allowed"),
    (made(CONV_OF_MS, state_window=-1), "state_window is -1; it must be at least 0"),
    (made(CONV, {"weight": [3, 4]}), "weight has shape [3, 4], not [channels, 1, kernel_size]"),
    (made(CONV, {"weight": [3, 2, 4]}), "weight has shape [3, 2, 4], not [channels, 1, kernel_size]"),
    (made(CONV, {"weight": [3, 1, 0]}), "weight has shape [3, 1, 0], not [channels, 1, kernel_size]"),
    (made(CONV, {"bias": [4]}), "bias has shape [4], not [channels=3]"),
    (made(CONV, {"bias": [1, 3]}), "bias has shape [1, 3], not [channels=3]"),
    (made(CONV, {"past_state": [2, 3, 4]}), "past_state has shape [2, 3, 4], not [batch_size, channels=3, 3]"),
    (made(CONV, {"past_state": [2, 3]}), "past_state has shape [2, 3], not [batch_size, channels=3, 3]"),
    (made(CONV, {"input": [2, 4, 5]}), "input has shape [2, 4, 5], not [batch_size=2, channels=3, length]"),
    (made(CONV, {"input": [1, 3, 5]}), "input has shape [1, 3, 5], not [batch_size=2, channels=3, length]"),
    (made(CONV, {"input": [2, 3, 5, 1]}), "input has shape [2, 3, 5, 1], not"),
    (made(LAST, {"input": [2, 5, 2, 4]}), "input has shape [2, 5, 2, 4], not [batch_size=2, length, channels_1=2"),
    (made(LAST, {"weight": [5, 1, 4], "bias": [5]}), "input has 6 channels, weight has 5"),
    (made(replace(LAST, optional=()), {"input": [2, 5]}), "input has rank 2; with channels_last it is"),
    (made(NODE, state_window=0), "LinearAttention-27 has no attribute 'state_window'"),
    (made(NODE, update_rule="erase"), "update_rule is 'erase'; linear, gated, delta and gated_delta are allowed"),
    (made(NODE, update_rule=1), "attribute 'update_rule' is of type INT, not STRING"),
    (made(NODE, scale=1), "attribute 'scale' is of type INT, not FLOAT"),
    (made(NODE, q_num_heads=0), "q_num_heads is 0; it must be positive"),
    (made(NODE, kv_num_heads=-2), "kv_num_heads is -2; it must be positive"),
    (made(NODE, q_num_heads=3), "q_num_heads is 3, kv_num_heads 2; the first must be a multiple of the second"),
    (
        made(replace(NODE, Hq=2, H=4)),
        "q_num_heads is 2, kv_num_heads 4; the first must be a multiple of the second",
    ),
    (made(OF_MS, q_num_heads=3), "the first must be a multiple of the second, or the other way round"),
    (made(NODE, update_rule="gated"), "input beta is connected; update_rule gated does not allow it"),
    (made(NODE, update_rule="delta"), "input decay is connected; update_rule delta does not allow it"),
    (
        made(replace(NODE, rule="gated"), update_rule="gated_delta"),
        "input beta is missing; update_rule gated_delta",
    ),
    (
        made(replace(OF_MS, rule="linear"), update_rule="gated"),
        "input decay is missing; update_rule gated needs it",
    ),
    (made(NODE, {"query": [2, 5, 7]}), "query is 7 wide, not a multiple of its 2 heads"),
    (made(NODE, {"query": [2, 5, 2, 4]}), "query has shape [2, 5, 2, 4], not one of rank 3"),
    (made(NODE, {"key": [2, 5, 6]}), "key has shape [2, 5, 6], not [batch size=2, sequence length=5, 8]"),
    (made(NODE, {"key": [2, 6, 8]}), "key has shape [2, 6, 8], not [batch size=2, sequence length=5, 8]"),
    (made(NODE, {"value": [1, 5, 6]}), "value has shape [1, 5, 6], not [batch size=2, sequence length=5, 6]"),
    (made(NODE, {"value": [2, 5, 7]}), "value is 7 wide, not a multiple of its 2 heads"),
    (made(NODE, {"past_state": [2, 2, 3, 4]}), "past_state has shape [2, 2, 3, 4], not [batch size=2, 2, 4, 3]"),
    (made(NODE, {"past_state": [2, 8, 3]}), "past_state has shape [2, 8, 3], not one of rank 4"),
    (made(NODE, {"past_state": [1, 2, 4, 3]}), "past_state has shape [1, 2, 4, 3], not [batch size=2, 2, 4, 3]"),
    (made(NODE, {"decay": [2, 5, 4]}), "decay is 4 wide, not 2 (of each head) or 8 (of each key dimension)"),
    (made(NODE, {"decay": [2, 4, 2]}), "decay has shape [2, 4, 2], not [batch size=2, sequence length=5, 2]"),
    (made(NODE, {"beta": [2, 5, 3]}), "beta has shape [2, 5, 3], not [batch size=2, sequence length=5, 2]"),
    (
        made(GROUPS, {"key": [2, 5, 12]}),
        "key is 12 wide, not a number of heads of size 4 that divides kv_num_heads",
    ),
    (made(NODE, {"query": [2, 5, 0], "key": [2, 5, 0]}), "query is 0 wide, not a multiple of its 2 heads"),
    *((without(CONV, "input", n), f"input {name} is missing") for n, name in enumerate(("input", "weight"))),
    *((without(NODE, "input", n), f"input {name} is missing") for n, name in enumerate(("query", "key", "value"))),
    *(
        (without(case, "output", n), f"output {name} is missing; both outputs are required")
        for case in (CONV, CONV_OF_MS, NODE, OF_MS)
        for n, name in enumerate(("output", "present_state"))
    ),
    *(
        (made(case, **{name: None}), f"attribute '{name}' is missing")
        for case in (NODE, OF_MS)
        for name in ("q_num_heads", "kv_num_heads")
    ),
    (
        typed(CONV, TensorProto.FLOAT16, 3),
        "inputs are of different types: input FLOAT, weight FLOAT, bias FLOAT, past_state FLOAT16",
    ),
    (typed(CONV, TensorProto.DOUBLE), "DOUBLE is not a type of CausalConvWithState-27"),
    (
        typed(NODE, TensorProto.FLOAT16, 5),
        "inputs are of different types: query FLOAT, key FLOAT, value FLOAT, decay FLOAT, beta FLOAT16",
    ),
    *(
        (typed(case, TensorProto.DOUBLE, *slots), f"DOUBLE is not a type of LinearAttention-{version}")
        for case, version in ((NODE, 27), (OF_MS, 1))
        for slots in ((), (3,))
    ),
    *(
        (
            made(replace(case, opset=26)),
            f"opset 26 has no {name}; it exists from opset 27 on, and in the domain com.microsoft",
        )
        for case, name in ((CONV, "CausalConvWithState"), (NODE, "LinearAttention"))
    ),
]
UNSUPPORTED: list[tuple[onnx.ModelProto, str]] = [
    (made(CONV, {"weight": None}), "the shape of weight is not known; make weight an initializer"),
    (made(STATELESS, {"query": None}), "the width of query is not known; fix the sizes"),
    (made(STATELESS, {"key": None}), "the width of key is not known; fix the sizes"),
    (made(STATELESS, {"value": None}), "the width of value is not known; fix the sizes"),
    # The CPU kernel of onnxruntime refuses these too.
    (made(CONV_OF_MS, ndim=2), "ndim is 2: only 1 is supported; put the other axes into the batch"),
    (made(CONV_OF_MS, state_window=2), "state_window is 2: only 0 is supported; export the model without a window"),
    (
        made(OF_MS, state_window=4),
        "state_window is 4: the states after several tokens cannot be kept; export the model with",
    ),
]


@pytest.mark.parametrize(("original", "text"), [*INVALID, *UNSUPPORTED])
def test_refused(original: onnx.ModelProto, text: str) -> None:
    error = refusal(original)
    assert text in str(error)
    assert isinstance(error, rl.InvalidNodeError) == ((original, text) in INVALID)


@pytest.mark.parametrize("symbol", ["query", "key", "value"])
def test_sizes_that_follow_from_another_input(symbol: str) -> None:
    rl.lower(made(NODE, {symbol: None}))
    rl.lower(made(OF_MS, {"value": None}, state_window=0, chunk_size=-3))
