"""LinearAttentionGate and GatedRMSNorm beside float64 and onnxruntime's kernels; each invalid one has one error."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from cases import Arrays
from graphs import MS, Graph
from onnx import TensorProto, helper
from refusals import refusal
from running import assert_near, evaluated, run

import rnn_lowering as rl
from rnn_lowering.types import Array

ELEMENTS: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NEAR = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 4e-2}


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def gate_inputs(dtype: str, shape: tuple[int, ...] = (2, 5, 3), with_b: bool = True) -> Arrays:
    rng, kind = np.random.default_rng(0), ELEMENTS[dtype]
    made = {"a": 5 * rng.standard_normal(shape), "b": 5 * rng.standard_normal(shape)}
    heads = {"dt_bias": rng.standard_normal(shape[2:]), "decay_scale": -rng.uniform(0.1, 4, shape[2:])}
    found = {s: array.astype(kind) for s, array in made.items()} | {s: a.astype("f") for s, a in heads.items()}
    return {s: found[s] for s in ("a", "dt_bias", "decay_scale", *(["b"] if with_b else []))}


def gate_expected(given: Arrays) -> Arrays:
    wide = {s: np.asarray(array, np.float64) for s, array in given.items()}
    decay = wide["decay_scale"] * np.log(1 + np.exp(wide["a"] + wide["dt_bias"]))
    return {"decay": decay} | ({"beta": sigmoid(wide["b"])} if "b" in wide else {})


def norm_inputs(dtype: str, shape: tuple[int, ...], group: int) -> Arrays:
    rng, kind = np.random.default_rng(0), ELEMENTS[dtype]
    shapes = {"X": shape, "scale": (group,), "gate": shape}
    return {s: (2 * rng.standard_normal(size)).astype(kind) for s, size in shapes.items()}


def norm_expected(given: Arrays, activation: str = "silu", epsilon: float = 1e-5) -> Arrays:
    x, scale, gate = (np.asarray(given[s], np.float64) for s in ("X", "scale", "gate"))
    groups = x.reshape(*x.shape[:-1], -1, len(scale))
    y = groups / np.sqrt(np.mean(groups**2, axis=-1, keepdims=True) + epsilon) * scale
    return {"Y": y.reshape(x.shape) * sigmoid(gate) * (1 if activation == "sigmoid" else gate)}


def model(
    operator: str,
    given: Arrays,
    outputs: list[str],
    constants: tuple[str, ...] = (),
    declared: dict[str, list[Any]] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    graph = Graph()
    for symbol, array in given.items():
        if symbol in constants:
            graph.constant(array, name=symbol)
        else:
            graph.input(symbol, (declared or {}).get(symbol, array.shape), array.dtype)
    graph.several(operator, *given, outputs=outputs, name="gate", domain=MS, **attributes)
    for symbol in outputs:
        graph.output(symbol, None, next(iter(given.values())).dtype)
    return graph.model(21, [MS], ir_version=10)


def assert_right(original: onnx.ModelProto, given: Arrays, expected: Arrays, dtype: str) -> None:
    """Compare the lowered model, and where onnxruntime has a kernel the original, with float64."""
    lowered = rl.lower(original)
    assert not [node.op_type for node in lowered.graph.node if node.domain]
    fed = {s: given[s] for s in (value.name for value in original.graph.input)}
    half = dtype == "bfloat16"
    for got in [evaluated(lowered, fed)] if half else [run(lowered, fed), run(original, fed)]:
        assert {got[symbol].dtype for symbol in expected} == {np.dtype(ELEMENTS[dtype])}
        assert_near(got, expected, NEAR[dtype])


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("with_b", [True, False])
@pytest.mark.parametrize("constants", [(), ("dt_bias", "decay_scale")])
def test_attention_gate(dtype: str, with_b: bool, constants: tuple[str, ...]) -> None:
    given = gate_inputs(dtype, with_b=with_b)
    expected = gate_expected(given)
    assert_right(model("LinearAttentionGate", given, list(expected), constants), given, expected, dtype)


NORMS: list[tuple[tuple[int, ...], int, dict[str, list[Any]]]] = [
    ((2, 5, 6), 6, {}),
    ((2, 5, 6), 3, {}),
    ((2, 5, 6), 3, {s: ["B", "T", 6] for s in ("X", "gate")}),
    ((2, 5, 6), 3, {s: ["B", "T", "W"] for s in ("X", "gate")}),
    ((4, 6), 2, {}),
    ((2, 3, 2, 4), 4, {}),
]


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize(("shape", "group", "declared"), NORMS)
def test_gated_norm(dtype: str, shape: tuple[int, ...], group: int, declared: dict[str, list[Any]]) -> None:
    given = norm_inputs(dtype, shape, group)
    for activation, epsilon in (("silu", 1e-5), ("sigmoid", 0.5), ("swish", 1e-5)):
        attributes = {"activation": activation, "epsilon": epsilon}
        original = model("GatedRMSNorm", given, ["Y"], ("scale",), declared, **attributes)
        assert_right(original, given, norm_expected(given, activation, epsilon), dtype)
    assert_right(model("GatedRMSNorm", given, ["Y"]), given, norm_expected(given), dtype)


NODES = {
    "GatedRMSNorm": (norm_inputs("float32", (2, 5, 6), 3), ["Y"], "scale"),
    "LinearAttentionGate": (gate_inputs("float32"), ["decay", "beta"], "dt_bias"),
}


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("operator", NODES)
def test_is_verified_and_a_fault_is_found(operator: str) -> None:
    given, outputs, constant = NODES[operator]
    original = model(operator, given, outputs, (constant,))
    check = rl.verify(original, rl.lower(original), runs=1)
    assert check.whole
    assert [node.name.split()[0] for node in check.nodes] == outputs
    other = model(operator, given | {constant: given[constant] * 1.01}, outputs, (constant,))
    assert rl.verify(original, rl.lower(other), runs=1).status == "failed"


def test_no_rows() -> None:
    for shape in ((0, 5, 6), (2, 0, 6)):
        given = norm_inputs("float32", shape, 3)
        assert run(rl.lower(model("GatedRMSNorm", given, ["Y"])), given)["Y"].shape == shape


def broken(operator: str, change: str) -> onnx.ModelProto:
    proto = model(operator, *NODES[operator][:2])
    (node,), inputs = proto.graph.node, {value.name: value for value in proto.graph.input}
    name, _, what = change.partition("=")
    if name in inputs and what in ("float16", "float"):
        inputs[name].type.tensor_type.elem_type = getattr(TensorProto, what.upper())
    elif name in inputs and what == "none":
        node.input[list(node.input).index(name)] = ""
    elif name in inputs and what == "?":
        inputs[name].type.tensor_type.ClearField("shape")
    elif name in inputs:
        shape = [int(size) for size in what.split(",")]
        element = inputs[name].type.tensor_type.elem_type
        inputs[name].CopyFrom(helper.make_tensor_value_info(name, element, shape))
    elif name in ("Y", "decay"):
        node.output[0] = ""
        del proto.graph.output[0]
    else:
        node.attribute.append(helper.make_attribute(name, what))
    return proto


INVALID = [
    ("GatedRMSNorm", "activation=relu", "activation is 'relu'; silu, swish and sigmoid are allowed"),
    ("GatedRMSNorm", "other=1", "GatedRMSNorm-1 has no attribute 'other'"),
    ("GatedRMSNorm", "scale=4", "the last axis of X has 6 elements, not a multiple of 4"),
    ("GatedRMSNorm", "scale=0", "scale is empty"),
    ("GatedRMSNorm", "scale=3,1", "scale has shape [3, 1], not [group]"),
    ("GatedRMSNorm", "scale=?", "the length of scale is not known; declare it"),
    ("GatedRMSNorm", "gate=2,5,3", "gate has shape [2, 5, 3], not [axis 0=2, axis 1=5, axis 2=6]"),
    ("GatedRMSNorm", "gate=float16", "inputs are of different types: X FLOAT, scale FLOAT, gate FLOAT16"),
    ("GatedRMSNorm", "gate=none", "input gate is missing"),
    ("GatedRMSNorm", "Y=none", "output Y is missing"),
    ("LinearAttentionGate", "dt_bias=4", "dt_bias has shape [4], not [heads=3]"),
    ("LinearAttentionGate", "a=2,3", "a has shape [2, 3], not [batch_size, length, heads]"),
    ("LinearAttentionGate", "b=2,4,3", "b has shape [2, 4, 3], not [batch_size=2, length=5, heads=3]"),
    ("LinearAttentionGate", "b=none", "input b is missing; output beta needs it"),
    ("LinearAttentionGate", "b=float16", "inputs are of different types: a FLOAT, b FLOAT16"),
    ("LinearAttentionGate", "dt_bias=float16", "FLOAT16 is not a type of LinearAttentionGate-1"),
    ("LinearAttentionGate", "decay_scale=none", "input decay_scale is missing"),
    ("LinearAttentionGate", "decay=none", "output decay is missing"),
]


@pytest.mark.parametrize(("operator", "change", "text"), INVALID)
def test_an_invalid_node_has_one_error(operator: str, change: str, text: str) -> None:
    refusal(broken(operator, change), text)


def test_no_form_needs_a_loop() -> None:
    original = model("LinearAttentionGate", gate_inputs("float32"), ["decay", "beta"])
    for target in ("tvm", "tract", "iree", "ncnn"):
        (node,) = rl.lower(original, target=target, full=True)[1].nodes
        assert (node.form, node.reason) == ("unroll", "it has no steps")
