"""Nodes with the names of recurrent operators: calls of the model's functions, and operators of no known kind."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from causal_conv import STANDARD, arrays, expected, feed, model
from graphs import MS
from onnx import TensorProto, helper, numpy_helper
from running import run

import rnn_lowering as rl

CASE = replace(STANDARD, domain=MS, opset=21)


def with_function(rank: int) -> onnx.ModelProto:
    """Add a function of the name of the operator; with rank 2, as onnxruntime-genai wrote it for onnxruntime before
    1.26: weight is [channels, k]."""
    proto = model(CASE)
    nodes = [
        helper.make_node("Concat", ["past_state", "input"], ["z"], axis=2),
        *([helper.make_node("Unsqueeze", ["weight", "one"], ["w"])] if rank == 2 else []),
        helper.make_node("Conv", ["z", "w" if rank == 2 else "weight", "bias"], ["y"], group=3),
        helper.make_node("Sigmoid", ["y"], ["s"]),
        helper.make_node("Mul", ["y", "s"], ["output"]),
        helper.make_node("Slice", ["z", "from", "to", "axis"], ["present_state"]),
    ]
    numbers = {"one": [1], "from": [-3], "to": [2**31], "axis": [2]}
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(number)))
        for name, number in numbers.items()
    ]
    names = ["input", "weight", "bias", "past_state"]
    imports = [helper.make_opsetid("", 21)]
    function = helper.make_function(
        MS, "CausalConvWithState", names, ["output", "present_state"], [*constants, *nodes], imports, ["activation"]
    )
    proto.functions.append(function)
    if rank == 2:
        weight = numpy_helper.from_array(arrays(CASE)["weight"][:, 0], "weight")
        proto.graph.initializer[0].CopyFrom(weight)
    return proto


def test_a_node_that_fits_the_operator_is_the_operator() -> None:
    with pytest.warns(rl.RnnLoweringWarning, match="'conv' in main graph is lowered as the operator"):
        lowered = rl.lower(with_function(3))
    assert not lowered.functions
    got = run(lowered, feed(CASE))
    for symbol, array in expected(CASE).items():
        np.testing.assert_allclose(got[symbol], array, atol=2e-6)


@pytest.mark.parametrize("target", ["portable", "tvm"])
def test_a_node_that_does_not_fit_is_a_call(target: str) -> None:
    original = with_function(2)
    assert rl.inspect(original) == []
    with pytest.warns(rl.RnnLoweringWarning, match="'conv' in main graph calls a function of the model"):
        assert rl.lower(original, target=target) == original


@pytest.mark.parametrize("operator", ["VarlenCausalConvWithState", "GatedDeltaNetOfTheFuture", "AttnLSTM"])
def test_a_recurrent_operator_of_no_known_kind_is_named(operator: str) -> None:
    node = helper.make_node(operator, ["x"], ["y"], name="other", domain=MS)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    original = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)])
    report = rl.lower(original, full=True)[1]
    assert report.left == [f"{operator} node 'other' in main graph: not an operator of ONNX"]
    (each,) = rl.preview(original)
    assert (each.form, each.reason) == ("left as it is", "not an operator of ONNX")
    with pytest.raises(rl.UnsupportedError, match=rf"{operator} node 'other' .*: tvm does not support it"):
        rl.lower(original, target="tvm")
