"""The oracle against stored vectors of onnxruntime and ONNX, and against onnxruntime on random nodes."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from cases import FORMALS, FUNCTIONS, RESULTS, Arrays
from onnx import helper
from oracle import GATES, evaluate
from vectors import COARSE_VECTORS, load_onnx_cases, load_vectors, to_arrays

VECTOR_ATOL = 1e-6
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
RANDOM_NODES = 216


def make_inputs(rng: np.random.Generator, op: str, dims: tuple[int, ...], num_directions: int = 1) -> Arrays:
    """All inputs of the operator for dims (seq, batch, input, hidden), weights bounded by 1/sqrt(hidden)."""
    seq, batch, size, hidden = dims
    gates = GATES[op] * hidden
    shapes = {
        "W": (num_directions, gates, size),
        "R": (num_directions, gates, hidden),
        "B": (num_directions, 2 * gates),
        "initial_h": (num_directions, batch, hidden),
        "initial_c": (num_directions, batch, hidden),
        "P": (num_directions, 3 * hidden),
    }
    bound = 1 / math.sqrt(hidden)
    arrays: Arrays = {n: rng.uniform(-bound, bound, s).astype(np.float32) for n, s in shapes.items()}
    arrays["X"] = rng.normal(size=(seq, batch, size)).astype(np.float32)
    arrays["sequence_lens"] = rng.integers(0, seq, batch, np.int32, endpoint=True)
    return {n: arrays[n] for n in FORMALS[op]}


def random_activations(rng: np.random.Generator, op: str, num_directions: int) -> dict[str, Any]:
    """Random names, with queues of parameters from empty to too long."""
    count = len(DEFAULTS[op]) * num_directions
    if op == "RNN" and num_directions == 1 and rng.random() < 0.3:
        count = 2
    names = [FUNCTIONS[i] for i in rng.integers(len(FUNCTIONS), size=count)]
    if op != "RNN":  # the RNN of onnxruntime accepts one letter case only
        names = [[name, name.lower(), name.upper()][rng.integers(3)] for name in names]
    attributes: dict[str, Any] = {"activations": names}
    for queue in ("activation_alpha", "activation_beta"):
        if length := int(rng.integers(0, count + 3)):
            attributes[queue] = rng.uniform(0.1, 0.9, length).tolist()
    return attributes


def random_node(seed: int) -> tuple[str, dict[str, Any], Arrays]:
    rng = np.random.default_rng(seed)
    op = ["RNN", "GRU", "LSTM"][seed % 3]
    direction = ["forward", "reverse", "bidirectional"][seed // 3 % 3]
    num_directions = 2 if direction == "bidirectional" else 1
    dims = tuple(int(size) for size in rng.integers(1, 6, 4))
    inputs = make_inputs(rng, op, dims, num_directions)
    for name in FORMALS[op][3:]:
        if rng.random() < 0.4:
            del inputs[name]
    for row, length in enumerate(inputs.get("sequence_lens", [])):
        inputs["X"][length:, row] = rng.choice([np.nan, np.inf, 1])
    attributes: dict[str, Any] = {"direction": direction, "hidden_size": dims[3]}
    if seed // 9 % 2:
        attributes |= random_activations(rng, op, num_directions)
    if rng.random() < 0.5:
        attributes["clip"] = float(rng.choice([0.1, 0.3, 1, np.inf, *([0, -1, np.nan] if op == "RNN" else [])]))
    if op != "RNN" and rng.random() < 0.6:
        attributes["linear_before_reset" if op == "GRU" else "input_forget"] = int(rng.integers(0, 3))
    return op, attributes, inputs


def run_onnxruntime(op: str, attributes: dict[str, Any], inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
    names = [name if name in inputs else "" for name in FORMALS[op]]
    node = helper.make_node(op, names, RESULTS[op], **attributes)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in RESULTS[op]]
    graph = helper.make_graph([node], "one_node", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(RESULTS[op], session.run(None, inputs), strict=True))


def to_plain(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("vector", load_vectors("success"))
def test_onnxruntime_vector(vector: dict[str, Any]) -> None:
    results = evaluate(vector["op"], vector["attrs"], to_arrays(vector["inputs"]))
    atol = COARSE_VECTORS.get(vector["name"].split("#")[0], VECTOR_ATOL)
    for name, expected in to_arrays(vector["outputs"]).items():
        np.testing.assert_allclose(results[name], expected, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("vector", load_vectors("failure"))
def test_onnxruntime_failure_vector(vector: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sequence_lens|activation"):
        evaluate(vector["op"], vector["attrs"], to_arrays(vector["inputs"]))


@pytest.mark.parametrize("case", load_onnx_cases())
def test_onnx_node_case(case: Any) -> None:
    (node,) = case.model.graph.node
    ((arrays, expected),) = case.data_sets
    names = [formal for formal, name in zip(FORMALS[node.op_type], node.input, strict=False) if name]
    attributes = {attribute.name: to_plain(attribute) for attribute in node.attribute}
    results = evaluate(node.op_type, attributes, dict(zip(names, arrays, strict=True)))
    outputs = [formal for formal, name in zip(RESULTS[node.op_type], node.output, strict=False) if name]
    for name, array in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(results[name], array, rtol=1e-6, atol=1e-6, err_msg=name)


def test_onnx_has_the_node_cases() -> None:
    assert len(load_onnx_cases()) >= 18


@pytest.mark.parametrize("seed", range(RANDOM_NODES))
def test_random_node_as_in_onnxruntime(seed: int) -> None:
    op, attributes, inputs = random_node(seed)
    results = evaluate(op, attributes, inputs)
    for name, array in run_onnxruntime(op, attributes, inputs).items():
        np.testing.assert_allclose(results[name], array, rtol=2e-6, atol=1e-6, err_msg=f"{op} {attributes}")


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *[(op, {"activations": ["Tanh"] * 5}, {}) for op in GATES],
    *[(op, {"activations": ["Swish"] * len(DEFAULTS[op])}, {}) for op in GATES],
    *[(op, {"direction": "Forward"}, {}) for op in GATES],
    *[(op, {"direction": "bidirectional"}, {}) for op in GATES],
    *[(op, {"hidden_size": 4}, {}) for op in GATES],
    *[(op, {}, {"sequence_lens": lengths}) for op in GATES for lengths in ([3, 4], [-1, 3], [3], [[3, 3]])],
    *[(op, {"clip": clip}, {}) for op in ("GRU", "LSTM") for clip in (0.0, -1.0, math.nan)],
    *[(op, {}, {name: [[0.0]]}) for op in GATES for name in FORMALS[op] if name != "sequence_lens"],
    ("RNN", {"activations": []}, {}),
    ("RNN", {"activations": ["Tanh"] * 3}, {}),
    ("GRU", {"input_forget": 1}, {}),
    ("LSTM", {"linear_before_reset": 1}, {}),
    ("LSTM", {"activations": ["Sigmoid", "Tanh"]}, {}),
]


@pytest.mark.parametrize(("op", "attributes", "changed"), REFUSED)
def test_refuses_what_onnxruntime_refuses(op: str, attributes: dict[str, Any], changed: dict[str, Any]) -> None:
    inputs = make_inputs(np.random.default_rng(0), op, (3, 2, 2, 3))
    inputs |= {name: np.array(value, inputs[name].dtype) for name, value in changed.items()}
    with pytest.raises(ValueError, match=r"."):
        evaluate(op, attributes, inputs)
    if attributes != {"activations": []}:  # make_node cannot make an empty list
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            run_onnxruntime(op, {"hidden_size": 3} | attributes, inputs)


@pytest.mark.parametrize(
    ("op", "attributes", "inputs"),
    [
        ("Lstm", {}, {}),
        ("LSTM", {"layout": 2}, {}),
        ("LSTM", {"direction": "foward"}, {}),
        ("GRU", {}, {"P": np.zeros((1, 9))}),
        ("GRU", {}, {"sequence_lens": np.array([3.0, 3.0])}),
        ("GRU", {}, {"X": None}),
    ],
)
def test_refuses(op: str, attributes: dict[str, Any], inputs: dict[str, Any]) -> None:
    complete = make_inputs(np.random.default_rng(0), op.upper(), (3, 2, 2, 3))
    with pytest.raises(ValueError, match=r"."):
        evaluate(op, attributes, complete | inputs)


@pytest.mark.parametrize("op", GATES)
def test_layout_1_is_layout_0_with_batch_first(op: str) -> None:
    attributes = {"direction": "bidirectional"}
    inputs = make_inputs(np.random.default_rng(0), op, (4, 3, 2, 5), 2)
    swapped = inputs.keys() & {"X", "initial_h", "initial_c"}
    batch_first = inputs | {name: inputs[name].swapaxes(0, 1) for name in swapped}
    expected = evaluate(op, attributes, inputs)
    results = evaluate(op, attributes | {"layout": 1}, batch_first)
    assert results["Y"].shape == (3, 4, 2, 5)  # [batch, seq, dirs, hidden]
    np.testing.assert_array_equal(results["Y"], expected["Y"].transpose(2, 0, 1, 3))
    for name in RESULTS[op][1:]:
        np.testing.assert_array_equal(results[name], expected[name].transpose(1, 0, 2))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize(("seq", "batch"), [(0, 2), (3, 0), (0, 0)])
def test_nothing_to_run_gives_states_of_zero(op: str, lengths: bool, seq: int, batch: int) -> None:
    inputs = make_inputs(np.random.default_rng(0), op, (seq, batch, 2, 3))
    if not lengths:
        del inputs["sequence_lens"]
    results = evaluate(op, {}, inputs)
    assert results["Y"].shape == (seq, 1, batch, 3)
    for name in RESULTS[op][1:]:
        np.testing.assert_array_equal(results[name], np.zeros((1, batch, 3)), strict=True)


@pytest.mark.parametrize("op", GATES)
def test_length_0_ignores_the_initial_state(op: str) -> None:
    inputs = make_inputs(np.random.default_rng(0), op, (3, 2, 2, 3))
    inputs["sequence_lens"] = np.array([0, 2], np.int32)
    results = evaluate(op, {}, inputs)
    for name in RESULTS[op][1:]:
        assert not results[name][0, 0].any()
        assert results[name][0, 1].all()


@pytest.mark.parametrize("op", GATES)
def test_input_size_0_is_an_input_of_zeros(op: str) -> None:
    inputs = make_inputs(np.random.default_rng(0), op, (3, 2, 1, 3))
    zeros = inputs | {"X": np.zeros_like(inputs["X"])}
    empty = inputs | {"X": inputs["X"][..., :0], "W": inputs["W"][..., :0]}
    np.testing.assert_array_equal(evaluate(op, {}, empty)["Y"], evaluate(op, {}, zeros)["Y"])


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_any_dtype_is_computed_in_float64(op: str, dtype: Any) -> None:
    inputs = make_inputs(np.random.default_rng(0), op, (3, 2, 2, 3))
    rounded = {name: a if name == "sequence_lens" else a.astype(dtype) for name, a in inputs.items()}
    exact = {name: a if name == "sequence_lens" else a.astype(np.float64) for name, a in rounded.items()}
    results, expected = evaluate(op, {}, rounded), evaluate(op, {}, exact)
    for name in RESULTS[op]:
        np.testing.assert_array_equal(results[name], expected[name], strict=True)
        assert results[name].dtype == np.float64


@pytest.mark.parametrize("op", GATES)
def test_absent_inputs_are_zero(op: str) -> None:
    inputs = make_inputs(np.random.default_rng(0), op, (3, 2, 2, 3))
    required = {name: inputs[name] for name in ("X", "W", "R")}
    explicit = required | {n: np.zeros_like(inputs[n]) for n in FORMALS[op][3:] if n != "sequence_lens"}
    explicit["sequence_lens"] = np.array([3, 3], np.int32)
    expected = evaluate(op, {}, explicit)["Y"]
    np.testing.assert_array_equal(evaluate(op, {}, required)["Y"], expected)
    absent = dict.fromkeys(("B", "sequence_lens", "initial_h", "initial_c", "P"))
    np.testing.assert_array_equal(evaluate(op, {}, required | absent)["Y"], expected)


@pytest.mark.parametrize(
    ("op", "attributes", "same"),
    [
        *[(op, {"output_sequence": 1, "hidden_size": 3, "layout": 0}, {}) for op in GATES],
        *[(op, {"clip": math.inf}, {}) for op in GATES],
        *[(op, {"activation_alpha": [0.5] * 9, "activation_beta": [0.5] * 9}, {}) for op in GATES],
        ("GRU", {"direction": "foward"}, {"direction": "forward"}),
        ("GRU", {"activations": []}, {}),
        ("LSTM", {"activations": []}, {}),
        ("RNN", {"activations": ["tANH", "Relu"]}, {}),
        ("RNN", {"activations": ["eLU"]}, {"activations": ["Elu"], "activation_alpha": [1]}),
        ("RNN", {"clip": 1}, {"clip": 1.0}),
        ("RNN", {"clip": 0.1}, {"clip": float(np.float32(0.1))}),
        (
            "RNN",
            {"activations": ["LeakyRelu"], "activation_alpha": [0.3]},
            {"activations": ["LeakyRelu"], "activation_alpha": [float(np.float32(0.3))]},
        ),
        ("RNN", {"activations": ["LeakyRelu"]}, {"activations": ["LeakyRelu"], "activation_alpha": [0.01]}),
    ],
)
def test_same_meaning(op: str, attributes: dict[str, Any], same: dict[str, Any]) -> None:
    inputs = make_inputs(np.random.default_rng(0), op, (4, 2, 2, 3))
    np.testing.assert_array_equal(evaluate(op, attributes, inputs)["Y"], evaluate(op, same, inputs)["Y"])


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, 0.0), (0.75, 1.0)])
def test_thresholded_relu_is_0_at_its_threshold(alpha: float, expected: float) -> None:
    ones, zeros = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    attributes = {"activations": ["ThresholdedRelu"], "activation_alpha": [alpha]}
    assert evaluate("RNN", attributes, {"X": ones, "W": ones, "R": zeros})["Y"].item() == expected


def test_large_arguments_stay_finite() -> None:
    inputs = {"X": np.array([[[-1e4], [1e4]]]), "W": np.ones((1, 1, 1)), "R": np.zeros((1, 1, 1))}
    for name, expected in {"Sigmoid": [0, 1], "Softplus": [0, 1e4], "Elu": [-1, 1e4]}.items():
        assert evaluate("RNN", {"activations": [name]}, inputs)["Y"].ravel().tolist() == expected
