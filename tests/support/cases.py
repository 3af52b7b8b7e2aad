"""A recurrent node, its numbers and the model around it; case_list.py has those that every test of meaning runs.

`model(case, opset)` and `feed(case)` are what a runtime gets, `expected(case)` is what it must give back.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from graphs import Graph, value
from onnx import TensorProto, helper, numpy_helper
from oracle import ACTIVATIONS, GATES, evaluate

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
Attributes: TypeAlias = Mapping[str, Any]

FORMALS = {op: [formal.name for formal in onnx.defs.get_schema(op, 22).inputs] for op in GATES}
RESULTS = {op: [formal.name for formal in onnx.defs.get_schema(op, 22).outputs] for op in GATES}
FUNCTIONS = ["Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid"]
FUNCTIONS += ["Elu", "Softsign", "Softplus"]
"""The activation functions."""
DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
ALL_OPTIONAL = ("B", "sequence_lens", "initial_h", "initial_c", "P")


@dataclass(frozen=True, eq=False)
class Case:
    """A node and the model around it.

    Attributes:
        attributes: Those of the node except hidden_size, which is given where `hidden_size` is true.
        T, N, I, H: seq_length, batch_size, input_size, hidden_size.
        optional: The connected optional inputs; those that the operator does not have do not count.
        outputs: The connected outputs; those that the operator does not have do not count.
        lengths: sequence_lens, random in [0, T] where None.
        padding: What X holds beyond the lengths; None for ordinary numbers.
        fill: Inputs that are full of one number.
        x_scale: Standard deviation of X.
        x: What the model declares of X: all its sizes, all but the batch size, all but the length, only input_size,
            only its rank ("unknown"), nothing ("unranked"), all, but before a Transpose, or its numbers ("known").
        weights: How W, R, B and P come: see `_give_weight`.
        lengths_from, states_from: How sequence_lens and the initial states come.
        trimmed: Whether unconnected trailing inputs and outputs are left away rather than empty.
        ir3: Below opset 9: IR version 3, in which every initializer is a graph input.
        scope: The scope that the node is in.
        native: Whether onnxruntime's own operator computes what the operator specification does.
    """

    name: str
    op_type: str
    attributes: Attributes = field(default_factory=dict)
    T: int = 5
    N: int = 3
    I: int = 2  # noqa: E741
    H: int = 4
    optional: tuple[str, ...] = ("B",)
    outputs: tuple[str, ...] = ("Y", "Y_h", "Y_c")
    dtype: str = "float32"
    lengths: tuple[int, ...] | None = None
    padding: float | None = None
    fill: Mapping[str, float] = field(default_factory=dict)
    x_scale: float = 1.0
    x: Literal["static", "batch", "length", "symbolic", "unknown", "unranked", "transposed", "known"] = "static"
    weights: Literal["initializer", "input", "unsized", "overridable", "constant", "node"] = "initializer"
    lengths_from: Literal["input", "initializer", "cast"] = "input"
    states_from: Literal["input", "initializer"] = "input"
    trimmed: bool = False
    hidden_size: bool = True
    ir3: bool = False
    scope: Literal["main", "if", "function"] = "main"
    native: bool = True

    @property
    def reverse(self) -> list[bool]:
        """One entry per direction."""
        directions = {"bidirectional": [False, True], "reverse": [True]}
        return directions.get(self.attributes.get("direction", "forward"), [False])

    @property
    def inputs(self) -> list[str]:
        """The connected inputs in the order of the page."""
        return [s for s in FORMALS[self.op_type] if s in ("X", "W", "R") or s in self.optional]

    @property
    def results(self) -> list[str]:
        """The connected outputs in the order of the page."""
        return [s for s in RESULTS[self.op_type] if s in self.outputs]

    @property
    def opsets(self) -> range:
        """The opsets that can express the case."""
        oldest = 1
        if self.op_type == "GRU" and ("linear_before_reset" in self.attributes or "Y_h" not in self.results):
            oldest = 3
        if self.x == "unranked":
            oldest = 5  # Reshape with the shape as an input
        if "sequence_lens" in self.inputs and self.lengths_from == "cast":
            oldest = 6  # Cast with its present attribute
        if self.scope != "main":
            oldest = 7
        if "layout" in self.attributes:
            oldest = 14
        if self.dtype == "bfloat16":
            oldest = 22
        below_7 = "output_sequence" in self.attributes or self.attributes.get("direction") == "foward"
        return range(oldest, 7 if below_7 else 29)

    @property
    def knows_length(self) -> bool:
        """Whether T can be read off the model."""
        return self.x in ("static", "batch", "transposed", "known") and self.scope != "function"

    @property
    def knows_batch(self) -> bool:
        """Whether the batch size can be read off the model."""
        return self.x in ("static", "length", "transposed", "known") and self.scope != "function"

    @property
    def disputed(self) -> bool:
        """Whether a default of alpha or beta is taken on which onnxruntime and the operator specifications
        disagree."""
        left = {q: len(self.attributes.get(f"activation_{q}", ())) for q in ("alpha", "beta")}
        found = False
        for name in self.attributes.get("activations", ()):
            for queue, default in zip(("alpha", "beta"), ACTIVATIONS[name.lower()][1:], strict=True):
                if default is not None:
                    found |= left[queue] <= 0 and name.lower() in ("affine", "scaledtanh", "thresholdedrelu")
                    left[queue] -= 1
        return found


# Numbers


def values(case: Case) -> Arrays:
    """The connected inputs of the node, by their symbols."""
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    bound = 1 / math.sqrt(case.H)
    arrays: Arrays = {}
    for symbol in case.inputs:
        shape = _shape(case, symbol)
        if symbol == "sequence_lens":
            arrays[symbol] = rng.integers(0, case.T, shape, np.int32, endpoint=True)
            if case.lengths is not None:
                arrays[symbol] = np.array(case.lengths, np.int32)
            continue
        if symbol == "X":
            array = rng.normal(0, case.x_scale, shape)
        else:
            limit = 1.0 if symbol.startswith("initial") else bound
            array = rng.uniform(-limit, limit, shape)
        if symbol in case.fill:
            array = np.full(shape, case.fill[symbol])
        arrays[symbol] = array.astype(DTYPES[case.dtype])
    if case.padding is not None:
        batch_first = arrays["X"] if case.attributes.get("layout") else arrays["X"].swapaxes(0, 1)
        for row, length in zip(batch_first, arrays["sequence_lens"], strict=True):
            row[length:] = case.padding
    return arrays


def feed(case: Case) -> Arrays:
    """What the graph inputs of `model(case, opset)` get."""
    arrays = values(case)
    if case.x == "transposed":
        arrays["X_transposed"] = arrays.pop("X").swapaxes(0, 1)
    if case.x == "unranked":
        X = arrays.pop("X")
        arrays |= {"X_flat": X.ravel(), "X_shape": np.array(X.shape, np.int64)}
    if "sequence_lens" in arrays and case.lengths_from == "cast":
        arrays["sequence_lens_int64"] = arrays.pop("sequence_lens").astype(np.int64)
    given = {"W", "R", "B", "P"} if case.weights not in ("input", "unsized", "overridable") else set()
    given |= {"X"} if case.x == "known" else set()
    given |= {"sequence_lens"} if case.lengths_from == "initializer" else set()
    given |= {"initial_h", "initial_c"} if case.states_from == "initializer" else set()
    return {name: array for name, array in arrays.items() if name not in given}


def expected(case: Case) -> Arrays:
    """What the outputs of `model(case, opset)` must be, in float64."""
    results = evaluate(case.op_type, case.attributes, values(case))
    return {symbol: results[symbol] for symbol in case.results}


def _shape(case: Case, symbol: str) -> tuple[int, ...]:
    return tuple(size for _, size in _page(case)[symbol])


def _page(case: Case) -> dict[str, list[tuple[str, int]]]:
    """The shapes of inputs and outputs on the operator specification; sizes that a model may leave open have a
    name."""
    T, N, I = ("T", case.T), ("N", case.N), ("I", case.I)  # noqa: E741
    H, dirs = ("", case.H), ("", len(case.reverse))
    rows = GATES[case.op_type] * case.H
    layout = case.attributes.get("layout")
    state = [N, dirs, H] if layout else [dirs, N, H]
    return {
        "X": [N, T, I] if layout else [T, N, I],
        "W": [dirs, ("", rows), I],
        "R": [dirs, ("", rows), H],
        "B": [dirs, ("", 2 * rows)],
        "sequence_lens": [N],
        "P": [dirs, ("", 3 * case.H)],
        "Y": [N, T, dirs, H] if layout else [T, dirs, N, H],
        **dict.fromkeys(("initial_h", "initial_c", "Y_h", "Y_c"), state),
    }


# The model


def model(case: Case, opset: int) -> onnx.ModelProto:
    """The model of a case at one of its opsets."""
    parts = Graph()
    for symbol, array in values(case).items():
        _give(parts, case, symbol, array)
    functions = []
    if case.scope == "if":
        _give_if(parts, case)
    elif case.scope == "function":
        functions.append(_give_function(parts, case, opset))
    else:
        parts.nodes.append(_node(case, "recurrent"))
    ir_version = _ir_version(case, opset)
    if ir_version == 3:
        _list_initializers(parts)
    parts.outputs += [_output_info(case, symbol, symbol) for symbol in case.results]
    return parts.model(opset, [f.domain for f in functions], functions, ir_version)


def _list_initializers(parts: Graph) -> None:
    """Make every initializer a graph input too."""
    listed = {value.name for value in parts.inputs}
    for tensor in parts.tensors:
        if tensor.name not in listed:
            parts.inputs.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


def _ir_version(case: Case, opset: int) -> int:
    if opset < 9:
        return 3 if case.ir3 else 8 if case.scope == "function" else 4
    oldest: int = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    return max(oldest, 8) if case.scope == "function" else oldest


def _declared(case: Case, symbol: str) -> list[int | str | None]:
    """The sizes that the model declares."""
    undeclared: dict[str, dict[str, str | None]] = {
        "static": {},
        "transposed": {},
        "known": {},
        "batch": {"N": "batch"},
        "length": {"T": "seq"},
        "symbolic": {"N": "batch", "T": "seq"},
        "unknown": {"N": None, "T": None, "I": None},
        "unranked": {"N": None, "T": None, "I": None},
    }
    hidden: dict[str, int | str | None] = {**undeclared[case.x]}
    return [hidden.get(name, size) for name, size in _page(case)[symbol]]


def _output_info(case: Case, symbol: str, name: str) -> onnx.ValueInfoProto:
    return value(name, _declared(case, symbol), DTYPES[case.dtype])


def _give(parts: Graph, case: Case, symbol: str, array: Array) -> None:
    if symbol == "X":
        _give_x(parts, case, array)
    elif symbol == "sequence_lens":
        _give_lengths(parts, case, array)
    elif symbol in ("initial_h", "initial_c"):
        if case.states_from == "initializer":
            parts.constant(array, name=symbol)
        else:
            parts.input(symbol, _declared(case, symbol), DTYPES[case.dtype])
    else:
        _give_weight(parts, case, symbol, array)


def _compute(parts: Graph, output: str, op_type: str, *inputs: str, **attributes: Any) -> None:
    parts.node(op_type, *inputs, outputs=[output], name=f"give_{output}", **attributes)


def _give_x(parts: Graph, case: Case, array: Array) -> None:
    dims = _declared(case, "X")
    if case.x == "transposed":
        parts.input("X_transposed", [dims[1], dims[0], dims[2]], DTYPES[case.dtype])
        _compute(parts, "X", "Transpose", "X_transposed", perm=[1, 0, 2])
    elif case.x == "unranked":
        parts.input("X_flat", [None], DTYPES[case.dtype])
        parts.input("X_shape", [None], np.int64)
        _compute(parts, "X", "Reshape", "X_flat", "X_shape")
    elif case.x == "known":
        parts.constant(array, name="X")
    else:
        parts.input("X", dims, DTYPES[case.dtype])


def _give_lengths(parts: Graph, case: Case, array: Array) -> None:
    if case.lengths_from == "initializer":
        parts.constant(array, name="sequence_lens")
    elif case.lengths_from == "cast":
        parts.input("sequence_lens_int64", _declared(case, "sequence_lens"), np.int64)
        _compute(parts, "sequence_lens", "Cast", "sequence_lens_int64", to=TensorProto.INT32)
    else:
        parts.input("sequence_lens", _declared(case, "sequence_lens"), np.int32)


def _give_weight(parts: Graph, case: Case, symbol: str, array: Array) -> None:
    """W, R, B or P as

    initializer; input; unsized: an input without sizes; overridable: an initializer of zeros that is an input
    too, and is fed; constant: a Constant node; node: nodes compute it from initializers.
    """
    if case.weights == "initializer":
        parts.constant(array, name=symbol)
    elif case.weights == "constant":
        _compute(parts, symbol, "Constant", value=numpy_helper.from_array(array, f"{symbol}_value"))
    elif case.weights == "node":
        _compute_weight(parts, symbol, array)
    else:
        dims = [None] * array.ndim if case.weights == "unsized" else list(array.shape)
        parts.input(symbol, dims, DTYPES[case.dtype])
        if case.weights == "overridable":
            parts.constant(np.zeros_like(array), name=symbol)


def _compute_weight(parts: Graph, symbol: str, array: Array) -> None:
    if symbol == "W":
        first, second = f"{symbol}_first", f"{symbol}_second"
        cut = array.shape[1] // 2
        parts.constant(array[:, :cut], name=first)
        parts.constant(array[:, cut:], name=second)
        _compute(parts, symbol, "Concat", first, second, axis=1)
    elif symbol == "R":
        parts.constant(array.swapaxes(1, 2), name="R_transposed")
        _compute(parts, symbol, "Transpose", "R_transposed", perm=[0, 2, 1])
    else:
        parts.constant(array, name=f"{symbol}_source")
        _compute(parts, symbol, "Identity", f"{symbol}_source")


def _node(case: Case, name: str, prefix: str = "") -> onnx.NodeProto:
    inputs = [s if s in case.inputs else "" for s in FORMALS[case.op_type]]
    outputs = [prefix + s if s in case.results else "" for s in RESULTS[case.op_type]]
    if case.trimmed:
        inputs, outputs = _trimmed(inputs), _trimmed(outputs)
    return helper.make_node(case.op_type, inputs, outputs, name=name, **_attributes(case))


def _attributes(case: Case) -> dict[str, Any]:
    return {**case.attributes, **({"hidden_size": case.H} if case.hidden_size else {})}


def _trimmed(names: list[str]) -> list[str]:
    return names[: max(n for n, name in enumerate(names, 1) if name)]


def _give_if(parts: Graph, case: Case) -> None:
    """The node in both branches of an If, on values of the outer scope."""
    branches = {}
    for branch in ("then", "else"):
        infos = [_output_info(case, symbol, f"{branch}_{symbol}") for symbol in case.results]
        node = _node(case, f"{branch}_recurrent", f"{branch}_")
        branches[f"{branch}_branch"] = helper.make_graph([node], branch, [], infos)
    parts.constant(np.array(True), name="condition")
    parts.nodes.append(helper.make_node("If", ["condition"], case.results, name="if", **branches))


def _give_function(parts: Graph, case: Case, opset: int) -> onnx.FunctionProto:
    """The node in a function whose attributes it refers to."""
    body = _node(case, "recurrent")
    call = helper.make_node("Recurrent", case.inputs, case.results, name="call", domain="test")
    call.attribute.extend(body.attribute)
    for attribute in body.attribute:
        reference = onnx.AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name=attribute.name)
        attribute.CopyFrom(reference)
    parts.nodes.append(call)
    names = [attribute.name for attribute in body.attribute]
    imports = [helper.make_opsetid("", opset)]
    return helper.make_function("test", "Recurrent", case.inputs, case.results, [body], imports, names)
