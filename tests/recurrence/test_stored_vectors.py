"""The node cases of ONNX, and the unit tests of onnxruntime's operators, lowered: against the stored outputs."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from cases import FORMALS, RESULTS
from graphs import Graph
from running import TOLERANCES, assert_close, recurrent_left, run
from thinning import exhaustive
from vectors import COARSE_VECTORS, load_onnx_cases, load_vectors, to_arrays

import rnn_lowering as rl

OPSETS = {"scan": 13, "loop": 7, "unroll": 7}
WEIGHTS = {"W", "R", "B", "P"}

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


@pytest.mark.parametrize("form", ["auto", "scan", "loop", "unroll"])
@pytest.mark.parametrize("case", load_onnx_cases())
def test_onnx_node_case(case: Any, form: Any) -> None:
    lowered = rl.lower(case.model, form)
    assert recurrent_left(lowered) == []
    for inputs, outputs in case.data_sets:
        feed = dict(zip([v.name for v in case.model.graph.input], inputs, strict=True))
        expected = dict(zip([v.name for v in case.model.graph.output], outputs, strict=True))
        assert_close(run(lowered, feed), expected)


def test_onnx_has_the_cases() -> None:
    assert len(load_onnx_cases()) >= 18


def vector_model(vector: dict[str, Any], opset: int, known: Collection[str] = ()) -> onnx.ModelProto:
    """The model of one node; `known` inputs are initializers."""
    op_type, graph = vector["op"], Graph()
    arrays, stored = to_arrays(vector["inputs"]), vector["outputs"]
    for name, array in arrays.items():
        if name in known:
            graph.constant(array, name=name)
        else:
            graph.input(name, array.shape, array.dtype)
    graph.several(
        op_type,
        *(symbol if symbol in arrays else "" for symbol in FORMALS[op_type]),
        outputs=[symbol if symbol in stored else "" for symbol in RESULTS[op_type]],
        name="recurrent",
        **{name: _value(op_type, name, value) for name, value in vector["attrs"].items()},
    )
    for symbol in RESULTS[op_type]:
        if symbol in stored:
            graph.output(symbol, stored[symbol]["shape"])
    return graph.model(opset, ir_version=4)


def _value(op_type: str, name: str, value: Any) -> Any:
    """An attribute's value of the type that the operator specification gives it; JSON does not tell 1 from 1.0."""
    kinds, wanted = onnx.defs.OpSchema.AttrType, onnx.defs.get_schema(op_type, 7).attributes[name].type
    if wanted in (kinds.FLOAT, kinds.FLOATS):
        return np.asarray(value, float).tolist()
    return value


def in_turn(parameters: Sequence[Any]) -> list[Any]:
    """Each vector in each form; in the default run in one of them."""
    pairs = [
        (pytest.param(*p.values, form, id=f"{p.id}-{form}", marks=p.marks), n % len(OPSETS) == k)
        for n, p in enumerate(parameters)
        for k, form in enumerate(OPSETS)
    ]
    return [p if always else exhaustive(p) for p, always in pairs]


@pytest.mark.few(16)
@pytest.mark.parametrize(("vector", "form"), in_turn(load_vectors("success")))
def test_vector(vector: dict[str, Any], form: Any) -> None:
    known = WEIGHTS & vector["inputs"].keys()
    lowered = rl.lower(vector_model(vector, OPSETS[form], known), form)
    assert recurrent_left(lowered) == []
    onnx.checker.check_model(lowered, full_check=True)
    fed = {name: array for name, array in to_arrays(vector["inputs"]).items() if name not in known}
    rtol, atol = TOLERANCES["float32"]
    atol = max(atol, COARSE_VECTORS.get(vector["name"].split("#")[0], 0))
    expected = to_arrays(vector["outputs"])
    assert_close(run(lowered, fed), expected, "float32", tolerances={"float32": (rtol, atol)})


@pytest.mark.parametrize("form", OPSETS)
@pytest.mark.parametrize("vector", load_vectors("failure"))
def test_failure_vector(vector: dict[str, Any], form: Any) -> None:
    with pytest.raises(rl.InvalidNodeError, match=r"sequence_lens|activation|has shape"):
        rl.lower(vector_model(vector, OPSETS[form], vector["inputs"].keys() - {"X"}), form)
