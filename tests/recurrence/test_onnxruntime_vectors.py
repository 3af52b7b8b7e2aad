"""The unit tests of onnxruntime's own operators, lowered, against the outputs stored with them."""

from collections.abc import Collection, Sequence
from typing import Any

import onnx
import pytest
from cases import FORMALS, RESULTS
from onnx import AttributeProto, helper, numpy_helper
from running import TOLERANCES, assert_close, recurrent_left, run
from thinning import exhaustive
from vectors import COARSE_VECTORS, load_vectors, to_arrays

import rnn_lowering as rl

OPSETS = {"scan": 13, "loop": 7, "unroll": 7}
WEIGHTS = {"W", "R", "B", "P"}

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


def vector_model(vector: dict[str, Any], opset: int, known: Collection[str] = ()) -> onnx.ModelProto:
    """The model of one node; `known` inputs are initializers."""
    op_type = vector["op"]
    arrays = to_arrays(vector["inputs"])
    node = helper.make_node(
        op_type,
        [symbol if symbol in arrays else "" for symbol in FORMALS[op_type]],
        [symbol if symbol in vector["outputs"] else "" for symbol in RESULTS[op_type]],
        name="recurrent",
    )
    node.attribute.extend(_attribute(op_type, name, value) for name, value in vector["attrs"].items())
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
        if name not in known
    ]
    outputs = [
        helper.make_tensor_value_info(symbol, onnx.TensorProto.FLOAT, vector["outputs"][symbol]["shape"])
        for symbol in RESULTS[op_type]
        if symbol in vector["outputs"]
    ]
    tensors = [numpy_helper.from_array(arrays[name], name) for name in arrays if name in known]
    graph = helper.make_graph([node], "vector", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def _attribute(op_type: str, name: str, value: Any) -> AttributeProto:
    """An attribute of the type that the operator specification gives it; JSON does not tell 1 from 1.0."""
    wanted = onnx.defs.get_schema(op_type, 7).attributes[name].type
    if wanted == onnx.defs.OpSchema.AttrType.FLOAT:
        value = float(value)
    if wanted == onnx.defs.OpSchema.AttrType.FLOATS:
        value = [float(v) for v in value]
    return helper.make_attribute(name, value)


def in_turn(parameters: Sequence[Any]) -> list[Any]:
    """Each vector in each form; in the default run in one of them."""
    pairs = [
        (pytest.param(*p.values, form, id=f"{p.id}-{form}", marks=p.marks), n % len(OPSETS) == k)
        for n, p in enumerate(parameters)
        for k, form in enumerate(OPSETS)
    ]
    return [p if always else exhaustive(p) for p, always in pairs]


@pytest.mark.parametrize(("vector", "form"), in_turn(load_vectors("success")))
def test_vector(vector: dict[str, Any], form: str) -> None:
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
def test_failure_vector(vector: dict[str, Any], form: str) -> None:
    with pytest.raises(rl.InvalidNodeError, match=r"sequence_lens|activation|has shape"):
        rl.lower(vector_model(vector, OPSETS[form], vector["inputs"].keys() - {"X"}), form)
