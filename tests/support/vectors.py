"""What others have stored: unit tests of onnxruntime, node cases of ONNX."""

import importlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cases import Arrays
from oracle import GATES
from paths import SHARED

VECTORS = SHARED / "vectors" / "onnxruntime_unit_tests.json"
COARSE_VECTORS = {
    "LSTMTest.ONNXRuntime_TestLSTMBatchReallocation": 5e-6,  # expected values of five digits
    "LSTMTest.ONNXRuntime_TestLSTMShorterSeqInMiddle": 1e-4,  # Y[1, 1, 0, 0] of these two is off by 6e-5:
    "LSTMTest.ONNXRuntime_TestLSTMZeroSeqInMiddle": 1e-4,  # onnxruntime agrees with the oracle there
}
"""Absolute tolerances, by name, of the vectors whose expected values are not exact."""


def load_vectors(expect: str) -> list[Any]:
    """The vectors with this `expect`, or one skipped parameter where the file is absent."""
    if not VECTORS.exists():
        return [pytest.param({}, marks=pytest.mark.skip(reason=f"{VECTORS.name} is not there"))]
    vectors = json.loads(VECTORS.read_text())
    return [
        pytest.param(vector, id=vector["name"], marks=pytest.mark.shared)
        for vector in vectors
        if vector["expect"] == expect
    ]


def to_arrays(tensors: Mapping[str, Any]) -> Arrays:
    """The tensors of a vector as arrays."""
    return {n: np.array(t["data"], t["dtype"]).reshape(t["shape"]) for n, t in tensors.items()}


def load_onnx_cases() -> list[Any]:
    """The cases ONNX generates when the three modules are imported; `collect_testcases` imports them all."""
    package = importlib.import_module("onnx.backend.test.case.node")
    for op in GATES:
        importlib.import_module(f"{package.__name__}.{op.lower()}")
    cases = [case for case in package._NodeTestCases if case.model.graph.node[0].op_type in GATES]
    return [pytest.param(case, id=case.name) for case in sorted(cases, key=lambda case: case.name)]
