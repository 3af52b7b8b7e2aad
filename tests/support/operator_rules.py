"""Nodes for the rules of `raising/`: each operator, each attribute with two values or more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from cases import Array, Arrays
from onnx import TensorProto, helper, numpy_helper

from rnn_lowering.facts.operators import inputs_and_attributes

OPSETS = (7, 9, 11, 13, 18, 21)
TYPES = ("float32", "int64")
OTHER_TYPES = ("float64", "int32", "float16", "uint8", "int8")
FUNCTIONS = ("Abs", "Exp", "Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
FOLDED = ("Add", "Div", "Mul", "Sub")
COMPARED = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
PAIRS = ("v23 v23", "v23 k3", "k21 v3", "v k", "k v", "v v")

Row = tuple[str, dict[str, Any]]


def _rows(given: str | Sequence[str], **parameters: Sequence[Any]) -> list[Row]:
    """Each of these inputs with each of the values of one parameter; () for none."""
    all_given = [given] if isinstance(given, str) else given
    values = [(name, value) for name, several in parameters.items() for value in several] or [("", ())]
    return [(each, {} if value == () else {name: value}) for each in all_given for name, value in values]


NODES: dict[str, list[Row]] = {
    **dict.fromkeys(FUNCTIONS, _rows(("v23", "v"))),
    **dict.fromkeys(FOLDED, _rows(PAIRS)),
    **dict.fromkeys(COMPARED, _rows(PAIRS)),
    **dict.fromkeys(("And", "Or"), _rows(("b23 b23", "b23 c3", "c21 b3", "b b"))),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), _rows(("v23", "v"), alpha=[(), 0.7, 1.5])),
    **dict.fromkeys(("Max", "Min"), _rows(("v23 k1", "k1 v23", "v23", "v23 v23", "v23 k1 k1", "v23 k3", "v k"))),
    "Cast": [
        (given, {"to": to, **more})
        for given in ("v23", "b23", "k23")
        for to in (1, 2, 3, 6, 7, 9, 10, 11, 16, 17)
        for more in ({}, {"saturate": 0})
        if given != "k23" or to < 16
    ],
    "Clip": [
        *_rows(("v23", "v"), min=[(), -1.0, 0.0], max=[1.0, 2.0, 3.0]),
        *[("v23", {"min": a, "max": b}) for a, b in ((-1.0, 2.0), (0.0, 1.0), (2.0, 1.0), (-3e38, 1.0))],
    ],
    "Concat": [(given, {"axis": axis}) for given in ("v23 k23", "v23 v23 k23", "v23") for axis in (0, 1, -1)],
    "Einsum": _rows(
        "v23 k34", equation=["ij,jk->ik", "ij, jk -> ki", "ij,jk", "ij,jk->i", "ij,jk->ijk", "...j,jk->...k"]
    )
    + _rows(("v23 k23", "k23 v23"), equation=["ij,ij->ij", "ij,kj->ik", "ij,ij->", "ij,kl->ijkl", "ii,jk->ijk"]),
    "Expand": _rows("v", shape=[[2, 3], []])
    + _rows("v23", shape=[[4, 2, 3], [1, 1], [2, 3]])
    + _rows("v21", shape=[[2, 3], [3]]),
    "Flatten": _rows("v234", axis=[(), 0, 1, 2, 3, -1, -2]),
    "Gather": [
        ("v234", {"indices": index, **axis})
        for index in (1, [0], [1, 0], [[-1, 0]])
        for axis in ({}, {"axis": 1}, {"axis": -1}, {"axis": 0})
    ],
    "Gemm": [
        *_rows(("v23 k34 k4", "v23 k34", "k23 v34 v4"), alpha=[(), 0.5], beta=[0.5, 2.0]),
        *_rows("v32 k34 k1", transA=[1]),
        *_rows("v23 k43 k24", transB=[1]),
        ("v32 k43 v24", {"transA": 1, "transB": 1, "alpha": 2.0, "beta": 0.5}),
    ],
    "HardSigmoid": _rows(("v23", "v"), alpha=[(), 0.3], beta=[0.2, 0.7]),
    "Identity": _rows(("v23", "v")),
    "MatMul": _rows(
        ("v23 k34", "k23 v34", "v3 k34", "v23 k3", "v234 k45", "v234 k245", "k3 v3", "v123 k234", "v3 k3")
    ),
    "Not": _rows(("b23", "b")),
    "Reshape": [
        *_rows("v234", shape=[[0, -1], [4, 6], [-1], [0, 0, 4]]),
        *_rows("v", shape=[[-1], [1, 1], []]),
        ("v234", {"shape": [4, 6], "allowzero": 1}),
        ("v234", {"shape": [2, -1], "allowzero": 1}),
    ],
    "ReduceMean": [],
    "ReduceSum": [],
    "Slice": [
        ("v54", {"starts": [a], "ends": [b], "axes": [axis], **steps})
        for a in (0, 1, -2, -9, 9)
        for b in (3, -1, 9, -9, 2**31)
        for axis in (0, -1)
        for steps in ({}, {"steps": [2]}, {"steps": [-1]}, {"steps": [-2]})
    ]
    + [("v54", {"starts": [1, 2], "ends": [3, 4]}), ("v54", {"starts": [1], "ends": [4]})],
    "Split": _rows("v64 2", axis=[(), 0, 1, -1])
    + _rows("v64 2", split=[[1, 5], [2, 4]])
    + [("v64 3", {"axis": 1, "split": [1, 2, 1]}), ("v54 2", {"num_outputs": 2}), ("v64 3", {"num_outputs": 3})],
    "Squeeze": _rows("v213", axes=[(), [], [1], [-2]]) + _rows("v211", axes=[[2], [1, 2], [-1]]),
    "Sum": _rows(("v23 v23", "v23", "v23 k3 v21", "v k v")),
    "Tile": _rows("v23", repeats=[[1, 2], [2, 1], [3, 2]]),
    "Transpose": _rows("v234", perm=[(), [0, 2, 1], [2, 0, 1]]),
    "Unsqueeze": _rows("v23", axes=[[0], [-1], [0, 3], [1, 2]]) + _rows("v", axes=[[0], [0, 1]]),
    "Where": _rows(("b23 v23 k3", "b21 k3 v23", "c23 v23 v23", "b23 k1 k1", "b v k", "c v v")),
}
_RECURRENT: dict[str, tuple[list[str], dict[str, Any]]] = {
    "GRU": (
        ["v123 k133 k131", "v123 k133 k131 k16 - v121 2", "k123 k133 k131 k16 - v121"],
        {"linear_before_reset": 1},
    ),
    "LSTM": (
        ["v123 k143 k141", "v123 k143 k141 k18 - v121 v121 3", "k123 k143 k141 k18 - v121"],
        {"input_forget": 1},
    ),
    "RNN": (["v123 k113 k111", "v123 k113 k111 k12 - v121 2", "v223 k113 k111", "v123 v113 k111"], {"layout": 1}),
}
_OPTIONS: list[dict[str, Any]] = [
    {"clip": 0.5},
    {"direction": "reverse"},
    {"layout": 1},
    {"activations": ["Relu"]},
    {"activation_alpha": [0.5]},
    {"activation_beta": [0.5]},
    {"output_sequence": 1},
]
for _name, (_given, _own) in _RECURRENT.items():
    NODES[_name] = [
        *((each, {"hidden_size": 1, **more}) for each in _given for more in ({}, _own)),
        *((_given[0], {"hidden_size": 1, **more}) for more in _OPTIONS),
        (_given[0], {}),
    ]
_SUMMED: list[dict[str, Any]] = [{}, {"axes": [0]}, {"axes": [1, -1]}, {"axes": []}]
_NOOP = "noop_with_empty_axes"
_KEPT: list[dict[str, Any]] = [{}, {"keepdims": 0}, {"keepdims": 1}, {_NOOP: 1}, {_NOOP: 0}]
for _name in ("ReduceMean", "ReduceSum"):
    NODES[_name] = [("v234", {**axes, **more}) for axes in _SUMMED for more in _KEPT]
"""By operator, inputs and parameters. `v23` is a tensor [2, 3] that is not known, `k23` one of constants, `b23` and
`c23` the same of Booleans, `-` an absent input; behind the inputs of a Split is the number of its parts."""


@dataclass(frozen=True)
class RuleNode:
    """A node between inputs and constants.

    Attributes:
        model: The node alone.
        feed: Its inputs.
    """

    name: str
    model: onnx.ModelProto
    feed: Arrays


def rule_nodes(op_type: str, types: Sequence[str]) -> Iterator[RuleNode]:
    """Each row of an operator, of each of these types, at each opset with another schema, if it is valid."""
    seen = set()
    for opset in OPSETS:
        try:
            since = onnx.defs.get_schema(op_type, opset, "").since_version
        except onnx.defs.SchemaError:
            continue
        for dtype in types if since not in seen else ():
            for given, parameters in NODES[op_type]:
                node = _node(op_type, opset, dtype, given, parameters)
                if node is not None:
                    yield node
        seen.add(since)


def _node(op_type: str, opset: int, dtype: str, given: str, parameters: dict[str, Any]) -> RuleNode | None:
    *specs, last = given.split()
    outputs = int(last) if last.isdecimal() else 1
    specs = specs if last.isdecimal() else [*specs, last]
    name = f"{op_type} {opset} {dtype} {given} {parameters}"
    rng = np.random.default_rng(len(name))
    feed, held = Arrays(), Arrays()
    for n, spec in enumerate(specs):
        if spec == "-":
            continue
        array = _random(rng, [int(size) for size in spec[1:]], "bool" if spec[0] in "bc" else dtype)
        (feed if spec[0] in "vb" else held)[f"i{n}"] = array

    def constant(value: Any) -> str:
        kind = dtype if op_type == "Clip" else "int64"
        held[f"i{len(feed) + len(held)}"] = np.array(value, kind)
        return f"i{len(feed) + len(held) - 1}"

    schema = onnx.defs.get_schema(op_type, opset, "")
    if any(name not in schema.attributes and name not in {v.name for v in schema.inputs} for name in parameters):
        return None
    try:
        inputs, attributes = inputs_and_attributes(
            op_type, opset, ["" if spec == "-" else f"i{n}" for n, spec in enumerate(specs)], parameters, constant
        )
    except OverflowError:
        return None
    names = [f"o{n}" for n in range(outputs)]
    given_attributes = {name: value for name, value in attributes.items() if value != []}
    node = helper.make_node(op_type, [each or "" for each in inputs], names, **given_attributes)
    if "axes" in attributes and "axes" not in given_attributes:
        node.attribute.append(helper.make_attribute("axes", [], attr_type=onnx.AttributeProto.INTS))
    if op_type == "Gemm" and attributes.get("beta") is not None and len(specs) < 3:
        return None
    inferred = _inferred(node, feed, held, opset)
    return None if inferred is None else RuleNode(name, inferred, feed)


def _random(rng: np.random.Generator, shape: list[int], dtype: str) -> Array:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        numbers = rng.integers(1, 9, shape)
        return (numbers if np.dtype(dtype).kind == "u" else numbers * rng.choice([-1, 1], shape)).astype(dtype)
    return rng.normal(0, 1.5, shape).astype(dtype)


def _inferred(node: onnx.NodeProto, feed: Arrays, held: Arrays, opset: int) -> onnx.ModelProto | None:
    """The node as a model whose outputs have types; None if it is not valid."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feed.items()
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output]
    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        onnx.checker.check_model(model)
    except Exception:  # the checker and inference have no common error
        return None
    return model
