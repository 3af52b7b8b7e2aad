"""Opsets 1 to 6: converted to opset 13, lowered, and right; or refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import ALL_OPTIONAL, Array, Arrays, Case, expected, feed, model, values
from graphs import value
from onnx import helper, numpy_helper
from oracle import GATES, evaluate
from running import assert_close, operators, recurrent_left, run
from texts import FORMS, parse
from thinning import exhaustive

import rnn_lowering as rl

OPSETS = range(1, 7)
RESULT = 13


def lowered_to(original: onnx.ModelProto, form: Any) -> onnx.ModelProto:
    """Lower, and check what must hold of every model of an old opset."""
    before = original.SerializeToString()
    proto = rl.lower(original, form)
    assert original.SerializeToString() == before
    onnx.checker.check_model(proto, full_check=True)
    assert recurrent_left(proto) == []
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": RESULT}
    assert proto.ir_version == original.ir_version
    assert [v.name for v in proto.graph.output] == [v.name for v in original.graph.output]
    return proto


def aliased(original: onnx.ModelProto, *, imports: bool, nodes: bool) -> onnx.ModelProto:
    """The model with the other name of the default domain."""
    if imports:
        original.opset_import[0].domain = "ai.onnx"
    if nodes:
        for node in original.graph.node:
            node.domain = "ai.onnx"
    return original


@pytest.mark.parametrize(("imports", "nodes"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("opset", [6, 17])
@pytest.mark.parametrize("op", GATES)
def test_the_other_name_of_the_default_domain(op: str, opset: int, imports: bool, nodes: bool) -> None:
    attributes = {"linear_before_reset": 1} if op == "GRU" else {}
    case = Case(f"legacy_alias_{op}", op, attributes, x="transposed", weights="node", optional=ALL_OPTIONAL)
    proto = rl.lower(aliased(model(case, opset), imports=imports, nodes=nodes), "loop")
    onnx.checker.check_model(proto, full_check=True)
    assert recurrent_left(proto) == []
    assert_close(run(proto, feed(case)), expected(case))
    plain = rl.lower(model(case, opset), "loop")
    assert [n.op_type for n in proto.graph.node] == [n.op_type for n in plain.graph.node]


# The nodes themselves


NODES = [
    *(Case(f"legacy_plain_{op}", op) for op in GATES),
    *(
        Case(f"legacy_all_{op}", op, {"direction": "bidirectional", "clip": 0.4}, optional=ALL_OPTIONAL)
        for op in GATES
    ),
    *(Case(f"legacy_reverse_{op}", op, {"direction": "reverse"}, ir3=True, optional=ALL_OPTIONAL) for op in GATES),
    *(Case(f"legacy_bare_{op}", op, optional=(), hidden_size=False, ir3=True) for op in GATES),
    *(Case(f"legacy_Y_h_{op}", op, outputs=("Y_h",)) for op in GATES),
    *(Case(f"legacy_trimmed_{op}", op, outputs=("Y",), optional=(), trimmed=True) for op in GATES),
    *(Case(f"legacy_sequence_0_{op}", op, {"output_sequence": 0}) for op in GATES),
    *(Case(f"legacy_sequence_1_{op}", op, {"output_sequence": 1}, outputs=("Y", "Y_h")) for op in GATES),
    *(Case(f"legacy_sequence_0_Y_h_{op}", op, {"output_sequence": 0}, outputs=("Y_h",), ir3=True) for op in GATES),
    *(Case(f"legacy_constant_{op}", op, weights="constant", ir3=True) for op in GATES),
    *(Case(f"legacy_input_{op}", op, weights="input", optional=ALL_OPTIONAL) for op in GATES),
    Case("legacy_foward", "GRU", {"direction": "foward"}),
    Case("legacy_lbr", "GRU", {"linear_before_reset": 1}, optional=ALL_OPTIONAL),
    Case("legacy_input_forget", "LSTM", {"input_forget": 1}, ir3=True),
    Case("legacy_one_step", "LSTM", T=1, ir3=True),
    Case("legacy_cast_lengths", "GRU", optional=ALL_OPTIONAL, lengths_from="cast"),
    Case("legacy_known_lengths", "LSTM", optional=ALL_OPTIONAL, lengths_from="initializer", lengths=(5, 0, 2)),
]
SYMBOLIC = [
    *(Case(f"legacy_symbolic_{op}", op, {"direction": "reverse"}, x="symbolic", ir3=True) for op in GATES),
    *(Case(f"legacy_symbolic_all_{op}", op, x="symbolic", optional=ALL_OPTIONAL) for op in GATES),
    Case("legacy_unknown", "LSTM", x="unknown"),
]


def in_forms() -> list[Any]:
    """Every case in each form that it has; in the default run in one, by turns."""
    found = []
    for n, case in enumerate([*NODES, *SYMBOLIC]):
        forms = FORMS if case.knows_length else FORMS[:2]
        for form in forms:
            parameter = pytest.param(case, form, id=f"{case.name}-{form}")
            found.append(parameter if form == forms[n % len(forms)] else exhaustive(parameter))
    return found


@pytest.mark.few(4)
@pytest.mark.parametrize(("case", "form"), in_forms())
def test_node(case: Case, form: str) -> None:
    possible = [opset for opset in OPSETS if opset in case.opsets]
    assert possible
    chosen = possible if case.name.startswith("legacy_plain") else possible[:: max(len(possible) - 1, 1)]
    for opset in chosen:
        results = run(lowered_to(model(case, opset), form), feed(case))
        assert_close(results, expected(case), case.dtype, f"opset {opset}, {form}")


@pytest.mark.parametrize(("op_type", "version"), [("RNN", 1), ("GRU", 1), ("GRU", 3), ("LSTM", 1)])
def test_what_a_node_is_read_as(op_type: str, version: int) -> None:
    original = model(Case("legacy_spec", op_type), version)
    (spec,) = rl.inspect(original)
    assert (spec.version, spec.hidden_size, spec.seq_length) == (version, 4, 5)
    assert "Scan" in operators(rl.lower(original))


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes"),
    [
        ("GRU", 1, {"linear_before_reset": 1}),
        ("GRU", 2, {"linear_before_reset": 0}),
        *[(op, 6, {"layout": 1}) for op in GATES],
        *[(op, 1, {"clip": 0.0}) for op in ("GRU", "LSTM")],
        *[(op, 3, {"direction": "backward"}) for op in GATES],
        *[(op, 5, {"output_sequence": 1.0}) for op in GATES],
    ],
)
def test_wrong_nodes_are_refused(op_type: str, opset: int, attributes: dict[str, Any]) -> None:
    proto = model(Case("legacy_wrong", op_type), opset)
    proto.graph.node[0].attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    with pytest.raises(rl.InvalidNodeError, match=f"{op_type} node 'recurrent' in main graph"):
        rl.lower(proto)


def test_report(tmp_path: Path) -> None:
    onnx.save(model(Case("legacy_report", "LSTM"), 6), tmp_path / "in.onnx")
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert any("opset 6" in note and "13" in note for note in report.notes)
    assert report.verification is not None
    assert report.verification.status == "verified"


# What stands around them


@dataclass(frozen=True, eq=False)
class Rest:
    """What follows a GRU: nodes from Y [T, 1, N, H] to `out`, one a line, and the same in NumPy."""

    text: str
    numpy: Callable[[Array, Arrays], Array]
    tensors: Arrays = field(default_factory=dict)
    opsets: Sequence[int] = tuple(OPSETS)


GRU = Case("legacy_rest", "GRU", outputs=("Y", "Y_h"), N=3, H=4, T=5)
SQUARE = replace(GRU, name="legacy_square", N=4, H=4, T=4)


def node(text: str) -> onnx.NodeProto:
    made = onnx.parser.parse_node(text)
    made.name = f"make_{made.output[0]}"
    return made


def numbers(*shape: int, low: float = -1.0) -> Array:
    return np.random.default_rng(sum(shape)).uniform(low, 1.0, shape).astype(np.float32)


def broadcast(op_type: str, function: Any, shape: tuple[int, ...], axis: int | None) -> Rest:
    """Y op b, with b broadcast from `axis` on; without it from the right."""

    def compute(Y: Array, t: Arrays) -> Array:
        first = Y.ndim - len(shape) if axis is None else axis % Y.ndim
        result: Array = function(Y, t["b"].reshape([*shape, *[1] * (Y.ndim - first - len(shape))]))
        return result

    more = "" if axis is None else f", axis={axis}"
    return Rest(f"out = {op_type} <broadcast=1{more}> (Y, b)", compute, {"b": numbers(*shape, low=0.5)})


def normalized(Y: Array, t: Arrays) -> Array:
    """Y as [batch, hidden, seq, 1], each hidden unit normalized."""
    scale, bias, mean, variance = (t[name].reshape(1, -1, 1, 1) for name in STATISTICS)
    result: Array = (Y.transpose(2, 3, 0, 1) - mean) / np.sqrt(variance + 1e-5) * scale + bias
    return result


def softmax(x: Array, *axes: int) -> Array:
    result: Array = np.exp(x) / np.exp(x).sum(axes, keepdims=True)
    return result


NORMALIZATION = """turned = Transpose <perm=[2,3,0,1]> (Y)
out = BatchNormalization <is_test=1{}> (turned, scale, bias, mean, variance)"""
STATISTICS = {name: numbers(4, low=0.5) + n for n, name in enumerate(("scale", "bias", "mean", "variance"))}
OLD, FLAT = NORMALIZATION.format(", consumed_inputs=[0,0,0,1,1]"), {"sizes": np.array([15, 4])}
GEMM = "flat = Squeeze <axes=[0]> (Y_h)\nout = Gemm <broadcast=1, alpha=0.5> (flat, k, b)"
SUMS = "first = Add <broadcast=1> (Y, a)\nsecond = Mul <broadcast=1, axis=0> (first, b)\nout = Sub (second, Y)"
POWERS = np.array([2.0, 1.0, 3.0, 2.0], np.float32)
RESTS = {
    "add to the right": broadcast("Add", np.add, (4,), None),
    "add two axes": broadcast("Add", np.add, (3, 4), None),
    "mul seq": broadcast("Mul", np.multiply, (5,), 0),
    "div batch": broadcast("Div", np.divide, (3,), 2),
    "sub middle axes": broadcast("Sub", np.subtract, (1, 3), 1),
    "sub from the end": broadcast("Sub", np.subtract, (4,), -1),
    "sub a number": broadcast("Sub", np.subtract, (), None),
    "pow": Rest("out = Pow <broadcast=1> (Y, b)", lambda Y, t: Y ** t["b"], {"b": POWERS}),
    "chain of broadcasts": Rest(
        SUMS, lambda Y, t: (Y + t["a"]) * t["b"].reshape(5, 1, 1, 1) - Y, {"a": numbers(4), "b": numbers(5)}
    ),
    "batch normalization 1": Rest(OLD, normalized, STATISTICS, range(1, 6)),
    "batch normalization 6": Rest(NORMALIZATION.format(""), normalized, STATISTICS, [6]),
    "batch normalization, spatial": Rest(NORMALIZATION.format(", spatial=1"), normalized, STATISTICS, [6]),
    "dropout 1": Rest(
        "out = Dropout <is_test=1, ratio=0.9, consumed_inputs=[0]> (Y)", lambda Y, t: Y, {}, range(1, 6)
    ),
    "dropout 6": Rest("out = Dropout <is_test=1, ratio=0.9> (Y)", lambda Y, t: Y, {}, [6]),
    "relu 1": Rest("out = Relu <consumed_inputs=[0]> (Y)", lambda Y, t: np.maximum(Y, 0), {}, range(1, 6)),
    "clip": Rest("out = Clip <min=-0.1, max=0.1> (Y)", lambda Y, t: np.clip(Y, -0.1, 0.1), {}, [6]),
    "squeeze": Rest("thin = Squeeze <axes=[1]> (Y)\nout = Unsqueeze <axes=[0]> (thin)", lambda Y, t: Y[:, 0][None]),
    "reshape 1": Rest("out = Reshape <shape=[5,-1]> (Y)", lambda Y, t: Y.reshape(5, -1), {}, range(1, 5)),
    "reshape 5": Rest("out = Reshape (Y, to)", lambda Y, t: Y.reshape(5, -1), {"to": np.array([5, -1])}, [5, 6]),
    "concat": Rest("out = Concat <axis=3> (Y, Y)", lambda Y, t: np.concatenate([Y, Y], 3)),
    "split": Rest("out, other = Split <axis=3, split=[1,3]> (Y)", lambda Y, t: Y[..., :1], {}, range(2, 7)),
    "slice": Rest("out = Slice <axes=[0], starts=[1], ends=[3]> (Y)", lambda Y, t: Y[1:3]),
    "gemm": Rest(GEMM, lambda Y, t: 0.5 * Y[-1, 0] @ t["k"] + t["b"], {"k": numbers(4, 2), "b": numbers(2)}),
    "softmax": Rest(
        "flat = Reshape (Y, sizes)\nout = Softmax (flat)", lambda Y, t: softmax(Y.reshape(15, 4), 1), FLAT, [5, 6]
    ),
    "sum and max": Rest("twice = Sum (Y, Y)\nout = Max (twice, Y)", lambda Y, t: np.maximum(2 * Y, Y), {}, [6]),
}
THREE, QUARTER = np.zeros(3, np.float32), np.array([0.25], np.float32)
TIMES = {"times": np.array([2.0], np.float32), "axis": np.array([3.0], np.float32)}
HARD = {
    "compare": Rest(
        "above = Greater <broadcast=1> (Y, b)\nout = Cast <to=1> (above)",
        lambda Y, t: t["b"] < Y,
        {"b": numbers(4)},
        [6],
    ),
    "compare to the right of the middle": Rest(
        "below = Less <broadcast=1, axis=2> (Y, b)\nout = Cast <to=1> (below)",
        lambda Y, t: np.less(Y, t["b"].reshape(3, 1)),
        {"b": THREE},
        [6],
    ),
    "slope": Rest("out = PRelu (Y, s)", lambda Y, t: np.where(Y < 0, Y * t["s"], Y), {"s": QUARTER}, [6]),
    "softmax of all but the first axis": Rest("out = Softmax (Y)", lambda Y, t: softmax(Y, 1, 2, 3), {}, [1, 6]),
    "log softmax of the last axes": Rest(
        "out = LogSoftmax <axis=2> (Y)", lambda Y, t: np.log(softmax(Y, 2, 3)), {}, [1, 6]
    ),
    "concat of the default axis": Rest("out = Concat (Y, Y)", lambda Y, t: np.concatenate([Y, Y], 1), {}, [1, 3]),
    "tile 1": Rest("out = Tile (Y, times, axis)", lambda Y, t: np.concatenate([Y, Y], 3), TIMES, [1]),
    "pad 1": Rest(
        "out = Pad <paddings=[0,0,0,1,0,0,0,0]> (Y)",
        lambda Y, t: np.pad(Y, [(0, 0), (0, 0), (0, 0), (1, 0)]),
        {},
        [1],
    ),
    "upsample": Rest(
        "out = Upsample <width_scale=2.0, height_scale=1.0> (Y)", lambda Y, t: Y.repeat(2, axis=3), {}, [1, 6]
    ),
}
"""What a converter may not know: right or refused."""


def extended(case: Case, opset: int, rest: Rest) -> onnx.ModelProto:
    proto = model(case, opset)
    graph = proto.graph
    for name, array in rest.tensors.items():
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        if proto.ir_version < 4:
            graph.input.append(value(name, array.shape, array.dtype))
    graph.node.extend(node(line) for line in rest.text.splitlines())
    del graph.output[:]
    rank = rest.numpy(np.zeros((case.T, 1, case.N, case.H), np.float32), rest.tensors).ndim
    graph.output.append(value("out", [None] * rank))
    return proto


@pytest.mark.few(5)
@pytest.mark.parametrize("name", RESTS)
@pytest.mark.parametrize("ir3", [False, True])
def test_rest(name: str, ir3: bool) -> None:
    rest, case = RESTS[name], replace(GRU, ir3=ir3)
    want = rest.numpy(expected(case)["Y"], rest.tensors)
    for n, opset in enumerate(dict.fromkeys((rest.opsets[0], rest.opsets[-1]))):
        proto = lowered_to(extended(case, opset, rest), FORMS[(len(name) + n) % 3])
        assert_close(run(proto, feed(case)), {"out": want}, "float32", f"opset {opset}")


@pytest.mark.few(6)
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("ir3", [False, True])
def test_right_or_refused(name: str, ir3: bool) -> None:
    rest = HARD[name]
    for opset in rest.opsets:
        original = extended(replace(GRU, ir3=ir3), opset, rest)
        try:
            proto = lowered_to(original, "loop")
        except rl.UnsupportedError:
            assert_refused(original, opset)
            continue
        assert_close(run(proto, feed(GRU)), {"out": rest.numpy(expected(GRU)["Y"], rest.tensors)}, "float32")


@pytest.mark.parametrize("axis", [0, 1, 2, 3, None])
def test_broadcast_axes_are_not_confused_by_equal_sizes(axis: int | None) -> None:
    shape = (1,) if axis == 1 else (4,)
    rest = broadcast("Mul", np.multiply, shape, axis)
    proto = lowered_to(extended(SQUARE, 6, rest), "loop")
    want = rest.numpy(expected(SQUARE)["Y"], rest.tensors)
    assert_close(run(proto, feed(SQUARE)), {"out": want}, "float32")


def test_stacked_nodes() -> None:
    """The second node's X has no shape but by way of the first node's Y and a legacy broadcast."""
    first, second = Case("legacy_first", "LSTM", outputs=("Y",)), Case("legacy_second", "GRU", I=4, optional=())
    proto, other = model(first, 6), model(second, 6)
    bias = numbers(4)
    proto.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    for tensor in other.graph.initializer:
        tensor.name += "2"
        proto.graph.initializer.append(tensor)
    gru = other.graph.node[0]
    gru.name, gru.input[:3], gru.output[:] = "second", ["x", "W2", "R2"], ["Y2", "Y_h2"]
    proto.graph.node.extend([node("sum = Add <broadcast=1> (Y, bias)"), node("x = Squeeze <axes=[1]> (sum)"), gru])
    proto.graph.output[0].CopyFrom(value("Y2", [5, 1, 3, 4]))
    x = (expected(first)["Y"] + bias)[:, 0]
    want = evaluate("GRU", {}, {**values(second), "X": x})["Y"]
    for form in FORMS:
        assert_close(run(lowered_to(proto, form), feed(first)), {"Y2": want}, "float32", form)


# What cannot be done, and what is left alone


def unknown_shapes(opset: int) -> onnx.ModelProto:
    rest = Rest("out = Mul <broadcast=1, axis=0> (Y, unknown)", lambda Y, t: Y, {}, [opset])
    proto = extended(GRU, opset, rest)
    proto.graph.input.append(value("unknown", None))
    return proto


def other_function(opset: int) -> onnx.ModelProto:
    proto = model(Case("legacy_other_function", "LSTM"), opset)
    proto.ir_version = 8
    imports = [helper.make_opsetid("", opset)]
    proto.functions.append(helper.make_function("test", "Other", ["a"], ["b"], [node("b = Relu (a)")], imports))
    proto.opset_import.append(helper.make_opsetid("test", 1))
    proto.graph.node.append(helper.make_node("Other", ["Y"], ["other"], "call", domain="test"))
    proto.graph.output.append(value("other", [5, 1, 3, 4]))
    return proto


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("make", [unknown_shapes, other_function])
def test_what_is_refused(make: Callable[[int], onnx.ModelProto], opset: int) -> None:
    assert_refused(make(opset), opset)


def assert_refused(proto: onnx.ModelProto, opset: int) -> None:
    """With one line; the model stays as it was."""
    ir_model = ir.from_proto(proto)
    before = proto.SerializeToString(), ir.to_proto(ir_model).SerializeToString(deterministic=True)
    for given in (proto, ir_model):
        with pytest.raises(rl.UnsupportedError, match=f"opset {opset}") as caught:
            rl.lower(given)
        assert "\n" not in str(caught.value)
    assert (proto.SerializeToString(), ir.to_proto(ir_model).SerializeToString(deterministic=True)) == before


def test_a_function_with_a_recurrent_node() -> None:
    case = Case("legacy_function", "LSTM", scope="function")
    original = model(case, 7)
    for holder in (original, *original.functions):
        holder.opset_import[0].version = 6
    form: Any
    for form in FORMS[:2]:
        proto = rl.lower(original, form)
        assert recurrent_left(proto) == []
        assert_close(run(proto, feed(case)), expected(case), "float32", form)


@pytest.mark.parametrize("opset", OPSETS)
def test_a_model_without_recurrent_nodes_keeps_its_opset(opset: int) -> None:
    proto = parse("plain (float[2] X) => (float[2] out) { out = Tanh (X) }", opset, 3)
    assert rl.lower(proto) == proto
    selected = model(Case("legacy_left", "LSTM"), opset)
    assert rl.lower(selected, except_=["LSTM"]) == selected


def test_an_ir_model_is_brought_forward_in_place() -> None:
    case = Case("legacy_ir", "LSTM")
    ir_model = ir.from_proto(model(case, 5))
    assert rl.lower(ir_model) is ir_model
    assert ir_model.opset_imports[""] == RESULT
    assert_close(run(ir.to_proto(ir_model), feed(case)), expected(case), "float32")


@pytest.mark.parametrize("outputs", [["Y"], ["Y", "Y_h"]])
@pytest.mark.parametrize(("opset", "ir_version"), [(1, 3), (3, 3), (3, 2), (3, 1), (6, 3)])
def test_initializers_that_are_no_inputs_before_they_could_be(
    opset: int, ir_version: int, outputs: list[str]
) -> None:
    """As onnxruntime takes them; also GRU-1 without its second output."""
    case = Case("unlisted", "GRU", outputs=tuple(outputs), trimmed=True)
    original = model(case, opset=3)
    original.ir_version, original.opset_import[0].version = ir_version, opset
    new = rl.lower(original)
    assert [given.name for given in new.graph.input] == ["X"]
    assert recurrent_left(new) == []
    assert_close(run(new, feed(case)), expected(case))


def test_a_model_without_an_opset() -> None:
    original = model(Case("no_opset", "RNN"), opset=3)
    del original.opset_import[:]
    with pytest.raises(rl.ModelFileError, match="the model has no opset import; is the file"):
        rl.lower(original)


# An If


def behind_an_if(case: Case, opset: int, *, constant: bool) -> onnx.ModelProto:
    """A node with Y, of which one branch takes the sum with a legacy broadcast of constants along axis 0."""
    proto = model(case, opset)
    sums = [
        helper.make_node("Constant", [], ["P"], value=numpy_helper.from_array(np.asarray([[1, 2], [3, 4]], "f"))),
        helper.make_node("Constant", [], ["Q"], value=numpy_helper.from_array(np.asarray([10, 20], "f"))),
        node("PQ = Add <broadcast=1, axis=0> (P, Q)"),
    ]
    total = node("total = ReduceSum <keepdims=0> (PQ)")
    added, kept = node("Z1 = Add <broadcast=1> (Y, total)"), node("Z2 = Neg (Y)")
    branches = {
        f"{name}_branch": helper.make_graph(nodes, name, [], [value(nodes[-1].output[0], None)])
        for name, nodes in (("then", [total, added]), ("else", [kept]))
    }
    proto.graph.node.extend([*sums, helper.make_node("If", ["c"], ["Z"], **branches)])
    proto.graph.output.extend([value("Z", [*expected(case)["Y"].shape]), value("PQ", [2, 2])])
    if constant:
        yes = numpy_helper.from_array(np.asarray([True]))
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=yes))
    else:
        proto.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [1]))
    return proto


@pytest.mark.few(2)
@pytest.mark.parametrize("opset", [1, 5, 6])
def test_an_if_that_is_decided(opset: int) -> None:
    """By a constant, or by the input that the hint names. The truth is NumPy's: onnx's evaluator aligns P and Q at
    the last axis."""
    case = Case("legacy_decided_if", "LSTM")
    want, sums = expected(case)["Y"], np.asarray([[11, 12], [23, 24]], "f")
    open_if = behind_an_if(case, opset, constant=False)
    with pytest.raises(rl.UnsupportedError, match="cannot be converted") as caught:
        rl.lower(open_if)
    assert caught.value.hint.startswith(
        'give fixed values to the inputs that decide: set_inputs={"c": ?}, or export'
    )
    lowered = {
        "then": [
            rl.lower(behind_an_if(case, opset, constant=True)),
            rl.lower(open_if, set_inputs={"c": True}),
        ],
        "else": [rl.lower(open_if, set_inputs={"c": False})],
    }
    for branch, models in lowered.items():
        for each in models:
            found = run(each, feed(case))
            np.testing.assert_array_equal(found["PQ"], sums)
            assert_close({"Z": found["Z"]}, {"Z": want + 70 if branch == "then" else -want}, "float32", "")
