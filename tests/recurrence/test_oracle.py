"""The oracle against stored vectors of onnxruntime and ONNX; the package's own reference against the oracle."""

from typing import Any

import numpy as np
import onnx
import pytest
from case_list import CASES
from cases import FORMALS, RESULTS, Case, expected, values
from onnx import helper
from oracle import GATES, evaluate
from running import assert_close
from vectors import COARSE_VECTORS, load_onnx_cases, load_vectors, to_arrays

from rnn_lowering.compare.float64 import rnn_equations

VECTOR_ATOL = 1e-6


def to_plain(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.few(44)
@pytest.mark.parametrize("vector", load_vectors("success"))
def test_onnxruntime_vector(vector: dict[str, Any]) -> None:
    results = evaluate(vector["op"], vector["attrs"], to_arrays(vector["inputs"]))
    atol = COARSE_VECTORS.get(vector["name"].split("#")[0], VECTOR_ATOL)
    for name, stored in to_arrays(vector["outputs"]).items():
        np.testing.assert_allclose(results[name], stored, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("case", load_onnx_cases())
def test_onnx_node_case(case: Any) -> None:
    (node,) = case.model.graph.node
    ((arrays, stored),) = case.data_sets
    names = [formal for formal, name in zip(FORMALS[node.op_type], node.input, strict=False) if name]
    attributes = {attribute.name: to_plain(attribute) for attribute in node.attribute}
    results = evaluate(node.op_type, attributes, dict(zip(names, arrays, strict=True)))
    outputs = [formal for formal, name in zip(RESULTS[node.op_type], node.output, strict=False) if name]
    for name, array in zip(outputs, stored, strict=True):
        np.testing.assert_allclose(results[name], array, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("op", GATES)
def test_layout_1_is_layout_0_with_batch_first(op: str) -> None:
    """onnxruntime has no layout 1."""
    case = Case(
        "oracle", op, {"direction": "bidirectional"}, optional=("B", "sequence_lens", "initial_h", "initial_c")
    )
    inputs = values(case)
    swapped = inputs.keys() & {"X", "initial_h", "initial_c"}
    batch_first = inputs | {name: inputs[name].swapaxes(0, 1) for name in swapped}
    results = evaluate(op, {**case.attributes, "layout": 1}, batch_first)
    for name, array in evaluate(op, case.attributes, inputs).items():
        turned = array.transpose(2, 0, 1, 3) if name == "Y" else array.swapaxes(0, 1)
        np.testing.assert_array_equal(results[name], turned)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(("T", "N"), [(0, 2), (3, 0), (0, 0)])
def test_nothing_to_run_gives_states_of_zero(op: str, T: int, N: int) -> None:
    """Nor does it run these."""
    results = evaluate(op, {}, values(Case("oracle", op, T=T, N=N, H=3, optional=("initial_h", "initial_c"))))
    assert results["Y"].shape == (T, 1, N, 3)
    for name in RESULTS[op][1:]:
        np.testing.assert_array_equal(results[name], np.zeros((1, N, 3)), strict=True)


@pytest.mark.parametrize(("alpha", "at_alpha"), [(1.0, 0.0), (0.75, 1.0)])
def test_thresholded_relu_is_0_at_its_threshold(alpha: float, at_alpha: float) -> None:
    ones, zeros = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    attributes = {"activations": ["ThresholdedRelu"], "activation_alpha": [alpha]}
    assert evaluate("RNN", attributes, {"X": ones, "W": ones, "R": zeros})["Y"].item() == at_alpha


@pytest.mark.few(1)
@pytest.mark.parametrize("op", GATES)
def test_the_reference_of_the_package(op: str) -> None:
    """Attributes are floats of 32 bits, as files hold them."""
    for case in (case for case in CASES if case.op_type == op):
        single = {n: float(np.float32(v)) for n, v in case.attributes.items() if isinstance(v, float)}
        results = rnn_equations.evaluate(op, {**case.attributes, **single}, values(case))
        assert_close({name: results[name] for name in case.results}, expected(case), "float64", case.name)
