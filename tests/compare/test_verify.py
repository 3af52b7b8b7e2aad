"""Verification: true only for a model that does the same, and never at the cost of the caller."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from cases import Array, Case, model
from chains import Link, chain
from onnx import TensorProto, helper, numpy_helper
from running import runs_in_onnxruntime
from stream_models import net, recurrent

import rnn_lowering as rl
from rnn_lowering import verify
from rnn_lowering.compare.result import Verification
from rnn_lowering.options import Tolerance

pytestmark = pytest.mark.usefixtures("workers_here")

ALL = ("B", "sequence_lens", "initial_h", "initial_c", "P")
SYMBOLIC = Case("verify_symbolic", "LSTM", x="symbolic")
RAGGED = Case("verify_ragged", "GRU", {"direction": "reverse"}, x="symbolic", optional=("B", "sequence_lens"))


def changed(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def with_weight(proto: onnx.ModelProto, name: str, array: Array) -> onnx.ModelProto:
    copy = changed(proto)
    (tensor,) = [t for t in copy.graph.initializer if t.name == name]
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return copy


def weight(proto: onnx.ModelProto, name: str) -> Array:
    (tensor,) = [t for t in proto.graph.initializer if t.name == name]
    return numpy_helper.to_array(tensor).copy()


def with_last(
    proto: onnx.ModelProto, op_type: str, *inputs: tuple[str, Array], **attributes: Any
) -> onnx.ModelProto:
    """The model with a node between its first output and what computed it."""
    copy = changed(proto)
    name = copy.graph.output[0].name
    for node in copy.graph.node:
        node.output[:] = [f"{name}_before" if given == name else given for given in node.output]
    extra = [numpy_helper.from_array(array, f"last_{key}") for key, array in inputs]
    copy.graph.initializer.extend(extra)
    names = [f"{name}_before", *(tensor.name for tensor in extra)]
    copy.graph.node.append(helper.make_node(op_type, names, [name], **attributes))
    copy.graph.output[0].CopyFrom(onnx.ValueInfoProto(name=name))
    return onnx.shape_inference.infer_shapes(copy)


# Right and wrong


@pytest.mark.usefixtures("own_processes")
def test_in_processes_of_their_own() -> None:
    original = model(SYMBOLIC, 17)
    assert verify(original, rl.lower(original))
    assert verify(original, rl.lower(swapped_gates(original))).status == "failed"


@pytest.mark.parametrize("to", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_a_right_model_is_verified(op_type: str, to: str) -> None:
    original = model(Case("verify_right", op_type, {"direction": "bidirectional"}, optional=ALL), 17)
    check = verify(original, rl.lower(original, to))
    assert check
    assert check.status == "verified"
    assert check.runs == 3
    assert [output.name for output in check.outputs] == [value.name for value in original.graph.output]
    assert all(output.passed for output in check.outputs)
    assert 0 <= check.max_abs < 1e-5


def swapped_gates(original: onnx.ModelProto) -> onnx.ModelProto:
    H = SYMBOLIC.H
    W = weight(original, "W")
    return with_weight(
        original, "W", np.concatenate([W[:, 2 * H : 3 * H], W[:, H : 2 * H], W[:, :H], W[:, 3 * H :]], 1)
    )


def one_changed_number(original: onnx.ModelProto) -> onnx.ModelProto:
    B = weight(original, "B")
    B[0, 3] += 1e-3
    return with_weight(original, "B", B)


def nan_weight(original: onnx.ModelProto) -> onnx.ModelProto:
    W = weight(original, "W")
    W[0, 0, 0] = np.nan
    return with_weight(original, "W", W)


WRONG_WEIGHTS = {"gates": swapped_gates, "number": one_changed_number, "nan": nan_weight}


@pytest.mark.parametrize("to", ["scan", "loop"])
@pytest.mark.parametrize("name", WRONG_WEIGHTS)
def test_wrong_numbers_fail(name: str, to: str) -> None:
    original = model(SYMBOLIC, 17)
    check = verify(original, rl.lower(WRONG_WEIGHTS[name](original), to))
    assert not check
    assert check.status == "failed"
    assert "output 'Y'" in check.reason
    assert "output 'Y_h'" in check.reason
    assert check.max_abs > 1e-5
    assert not any(output.passed for output in check.outputs)


def test_nan_in_one_place_fails() -> None:
    original = model(SYMBOLIC, 17)
    mask = np.zeros(SYMBOLIC.H, np.float32)
    mask[1] = np.nan
    check = verify(original, with_last(rl.lower(original), "Add", ("mask", mask)), tolerance=Tolerance(1e9, 1e9))
    assert check.status == "failed"
    assert "NaN" in check.reason
    assert [output.passed for output in check.outputs] == [False, True, True]


def without_output(lowered: onnx.ModelProto) -> onnx.ModelProto:
    copy = changed(lowered)
    del copy.graph.output[1]
    return copy


def renamed_output(lowered: onnx.ModelProto) -> onnx.ModelProto:
    copy = changed(lowered)
    copy.graph.node.append(helper.make_node("Identity", [copy.graph.output[2].name], ["state"]))
    copy.graph.output[2].name = "state"
    return copy


def exchanged_outputs(lowered: onnx.ModelProto) -> onnx.ModelProto:
    copy = changed(lowered)
    first, second = copy.graph.output[1], copy.graph.output[2]
    first.name, second.name = second.name, first.name
    return copy


def another_output(lowered: onnx.ModelProto) -> onnx.ModelProto:
    copy = changed(lowered)
    copy.graph.node.append(helper.make_node("Relu", ["Y"], ["more"]))
    copy.graph.output.append(onnx.ValueInfoProto(name="more"))
    return onnx.shape_inference.infer_shapes(copy)


def as_double(lowered: onnx.ModelProto) -> onnx.ModelProto:
    return with_last(lowered, "Cast", to=TensorProto.DOUBLE)


def unsqueezed(lowered: onnx.ModelProto) -> onnx.ModelProto:
    return with_last(lowered, "Unsqueeze", ("axes", np.array([0])))


def not_loadable(lowered: onnx.ModelProto) -> onnx.ModelProto:
    return with_last(lowered, "NoSuchOperator")


OTHER_INTERFACES = {
    "missing": (without_output, "Y_h"),
    "renamed": (renamed_output, "state"),
    "exchanged": (exchanged_outputs, "Y_c"),
    "additional": (another_output, "more"),
    "type": (as_double, "float64"),
    "shape": (unsqueezed, "output 'Y'"),
    "not loadable": (not_loadable, "NoSuchOperator"),
}


@pytest.mark.parametrize("name", OTHER_INTERFACES)
def test_another_interface_fails(name: str) -> None:
    change, fact = OTHER_INTERFACES[name]
    original = model(SYMBOLIC, 17)
    check = verify(original, change(rl.lower(original)), runs=1, tolerance=Tolerance(1e9, 1e9))
    assert check.status == "failed"
    assert fact in check.reason
    assert not check


@pytest.mark.usefixtures("own_processes")
def test_a_lowered_model_that_dies_fails() -> None:
    native = model(Case("verify_dies", "GRU", x="symbolic"), 17)
    check = verify(rl.lower(native, "loop"), native, feeds=[{"X": np.zeros((0, 1, 2), np.float32)}])
    assert check.status == "failed"
    assert "lowered model" in check.reason


@pytest.mark.parametrize("axis", [0, 1], ids=["seq", "batch"])
def test_dynamic_sizes_vary(axis: int) -> None:
    """A model that is right at size 1 only, and wrong after the lowered node."""
    original = chain(Link("LSTM", "only"))
    bounds = [("starts", np.array([0])), ("ends", np.array([1])), ("axes", np.array([axis]))]
    assert not verify(original, with_last(rl.lower(original), "Slice", *bounds))


@pytest.mark.parametrize(("length", "told"), [(1, True), (-1, False)])
def test_an_original_of_one_size_is_told(length: int, told: bool) -> None:
    """As exporters write it: the input has a name for its length, and a Reshape the length of an example."""
    one = Case("one_size", "RNN", x="symbolic", outputs=("Y",), I=3, H=4)
    proto = with_last(model(one, 17), "Reshape", ("shape", np.array([length, 1, 1, 4])))
    check = verify(proto, rl.lower(proto))
    assert check
    assert ("of the tried sizes, the original accepted only X [1, 1, 3]" in check.reason) == told
    given = verify(proto, rl.lower(proto), shapes={"X": [1, 1, 3]})
    assert (given.status, given.reason) == ("verified", "")


def test_what_is_wrong_around_the_nodes() -> None:
    original = chain(Link("LSTM", "first"), Link("GRU", "second"))
    lowered = rl.lower(original)
    assert verify(original, lowered)
    assert not verify(original, with_last(lowered, "Mul", ("factor", np.array(1.01, np.float32))))
    between = changed(lowered)
    (turn,) = [node for node in between.graph.node if node.name == "turn0"]
    turn.input[0] = "Y0_shifted"
    between.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "shift"))
    position = list(between.graph.node).index(turn)
    between.graph.node.insert(position, helper.make_node("Add", ["Y0", "shift"], ["Y0_shifted"]))
    assert not verify(original, between)


def test_sizes_of_one_name_agree() -> None:
    case = Case("verify_states", "LSTM", x="symbolic", optional=("B", "initial_h", "initial_c", "sequence_lens"))
    original = model(case, 17)
    check = verify(original, rl.lower(original), runs=5)
    assert (check.status, check.runs) == ("verified", 5)


# Inputs that a model accepts


def test_lengths_are_ragged() -> None:
    original = model(RAGGED, 17)
    assert verify(original, rl.lower(original))
    ignoring = changed(original)
    ignoring.graph.node[0].input[4] = ""
    check = verify(original, rl.lower(ignoring))
    assert check.status == "failed"


def embedding(rows: int, cast: bool) -> onnx.ModelProto:
    text = (
        "wide = Cast <to = 7> (ids) embedded = Gather (table, wide)" if cast else "embedded = Gather (table, ids)"
    )
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        embedding ({"int32" if cast else "int64"}[seq, batch] ids) => (float[seq, 1, batch, 4] Y)
        {{ {text} Y = GRU <hidden_size = 4> (embedded, W, R) }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in {"table": (rows, 2), "W": (1, 12, 2), "R": (1, 12, 4)}.items():
        array = rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3000])
def test_indices_stay_in_the_table(rows: int, cast: bool) -> None:
    original = embedding(rows, cast)
    check = verify(original, rl.lower(original), runs=5)
    assert (check.status, check.runs) == ("verified", 5)


def test_indices_vary() -> None:
    original = embedding(3000, cast=False)
    table = weight(original, "table")
    only_first_rows = with_weight(original, "table", np.concatenate([table[:4], np.zeros_like(table[4:])]))
    assert not verify(original, rl.lower(only_first_rows))


def test_a_logarithm_is_met_with_positive_numbers() -> None:
    original = model(Case("verify_log", "GRU", x="symbolic"), 17)
    original.graph.node[0].input[0] = "logarithm"
    original.graph.node.insert(0, helper.make_node("Log", ["X"], ["logarithm"]))
    assert verify(original, rl.lower(original))
    B = weight(original, "B")
    B[0, 0] += 1
    assert not verify(original, rl.lower(with_weight(original, "B", B)))


@pytest.mark.parametrize(
    "elem_type", [TensorProto.BOOL, TensorProto.INT64, TensorProto.UINT8, TensorProto.FLOAT16, TensorProto.DOUBLE]
)
def test_inputs_of_other_types(elem_type: int) -> None:
    original = model(Case("verify_types", "RNN", x="symbolic"), 17)
    original.graph.node[0].input[0] = "x"
    original.graph.node.insert(0, helper.make_node("Cast", ["X"], ["x"], to=TensorProto.FLOAT))
    original.graph.input[0].type.tensor_type.elem_type = elem_type
    assert verify(original, rl.lower(original))


def with_strings() -> onnx.ModelProto:
    proto = model(SYMBOLIC, 17)
    proto.graph.input.append(helper.make_tensor_value_info("words", TensorProto.STRING, ["seq"]))
    proto.graph.node.append(helper.make_node("Identity", ["words"], ["same_words"]))
    proto.graph.output.append(helper.make_tensor_value_info("same_words", TensorProto.STRING, ["seq"]))
    return proto


def with_sequence() -> onnx.ModelProto:
    proto = model(SYMBOLIC, 17)
    proto.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("Xs", TensorProto.FLOAT, None))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(0), "first"))
    proto.graph.node.insert(0, helper.make_node("SequenceAt", ["Xs", "first"], ["X"]))
    return proto


def with_sequence_output() -> onnx.ModelProto:
    proto = model(SYMBOLIC, 17)
    proto.graph.node.append(helper.make_node("SequenceConstruct", ["Y", "Y_h"], ["parts"]))
    proto.graph.output.append(helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None))
    return proto


@pytest.mark.parametrize(
    "make",
    [
        with_strings,
        with_sequence,
        with_sequence_output,
    ],
)
def test_inputs_and_outputs_that_are_no_numbers(make: Callable[[], onnx.ModelProto]) -> None:
    original = make()
    onnx.checker.check_model(original, full_check=True)
    assert verify(original, rl.lower(original)).status != "failed"
    B = weight(original, "B")
    B[0, 0] += 1
    assert not verify(original, rl.lower(with_weight(original, "B", B)))


def test_a_sequence_is_compared() -> None:
    original = with_sequence_output()
    other = rl.lower(original)
    other.graph.node[-1].input[1] = "Y"
    assert "parts" in verify(original, other).reason


# Given inputs


def test_given_feeds() -> None:
    original = model(SYMBOLIC, 17)
    lowered = rl.lower(original)
    feeds = [{"X": np.full((T, N, 2), 0.1, np.float32)} for T, N in ((1, 1), (40, 2))]
    check = verify(original, lowered, feeds=feeds)
    assert check
    assert check.runs == len(feeds)


def test_given_feeds_decide() -> None:
    original = model(SYMBOLIC, 17)
    bounded = with_last(rl.lower(original), "Min", ("bound", np.array(0.1, np.float32)))
    small, large = ({"X": np.full((2, 1, 2), x, np.float32)} for x in (0.0, 9.0))
    assert verify(original, original, feeds=[large]).max_abs == 0
    assert not verify(original, bounded, feeds=[large])
    assert not verify(original, bounded, feeds=[small, large])


def test_given_inputs_of_one_name_have_one_size() -> None:
    original = model(Case("verify_one_size", "LSTM", x="symbolic", optional=("B", "initial_h")), 17)
    given = {"X": np.zeros((2, 3, 2), np.float32), "initial_h": np.zeros((1, 4, 4), np.float32)}
    with pytest.raises(rl.OptionError, match="initial_h"):
        verify(original, rl.lower(original), feeds=[given])


def test_inputs_that_are_not_given_are_random() -> None:
    case = Case("verify_rest", "LSTM", x="symbolic", optional=("B", "initial_h", "initial_c"))
    original = model(case, 17)
    check = verify(original, rl.lower(original), feeds=[{"X": np.zeros((6, 5, 2), np.float32)}])
    assert check
    shapes = {given.name: given.shape for given in check.each_run[0].inputs}
    assert shapes == {"X": (6, 5, 2), "initial_h": (1, 5, 4), "initial_c": (1, 5, 4)}


def test_no_runs_verify_nothing() -> None:
    original = model(SYMBOLIC, 17)
    lowered = rl.lower(original)
    check = verify(original, lowered, runs=0)
    assert check.status == "not verified"
    assert not check


def test_the_seed_chooses_the_numbers() -> None:
    original = model(Case("verify_seed", "LSTM", T=20, H=16), 17)
    lowered = rl.lower(original, "loop")
    first, same, other = (verify(original, lowered, runs=1, seed=seed) for seed in (0, 0, 1))
    assert first == same
    assert first
    assert other
    assert first.outputs != other.outputs


# What onnxruntime cannot run


def custom_operator() -> onnx.ModelProto:
    proto = model(SYMBOLIC, 17)
    proto.graph.node.append(helper.make_node("Special", ["Y_before"], ["Y"], domain="com.example"))
    proto.graph.node[0].output[0] = "Y_before"
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    return proto


NOT_RUNNABLE = {
    "layout": model(Case("verify_layout", "LSTM", {"layout": 1}, optional=ALL), 17),
    "layout, symbolic": model(Case("verify_layout_symbolic", "GRU", {"layout": 1}, optional=ALL, x="symbolic"), 17),
    "double RNN": model(Case("verify_double", "RNN", {"direction": "reverse"}, dtype="float64"), 17),
    "double GRU": model(Case("verify_double", "GRU", dtype="float64", optional=ALL), 17),
    "bfloat16": model(Case("verify_bfloat16", "LSTM", dtype="bfloat16"), 22),
    "custom operator": custom_operator(),
    "old opset": model(Case("verify_old", "LSTM"), 6),
}
if not runs_in_onnxruntime(newest := model(Case("verify_new", "LSTM", optional=ALL), 28)):  # from 1.32 on it does
    NOT_RUNNABLE["new opset"] = newest


@pytest.mark.parametrize("name", NOT_RUNNABLE)
def test_an_original_that_does_not_run_is_judged_by_its_nodes(name: str) -> None:
    original = NOT_RUNNABLE[name]
    check = verify(original, rl.lower(original), runs=2)
    assert check.status == "verified", check.reason
    assert check.method == "each node against float64 NumPy"
    assert check.runs == len(check.each_run) >= 2
    assert all("recurrent" in output.name for output in check.outputs)
    assert not check.whole
    assert str(check).startswith("nodes verified, not the whole model")
    assert "float64" in str(check)


@pytest.mark.parametrize("name", NOT_RUNNABLE)
def test_a_wrong_node_of_an_original_that_does_not_run_fails(name: str) -> None:
    original = NOT_RUNNABLE[name]
    B = weight(original, "B")
    B[0, :2] += np.asarray(0.5, B.dtype)
    check = verify(original, rl.lower(with_weight(original, "B", B)), runs=1)
    assert check.status == "failed"
    assert "LSTM" in check.reason or "GRU" in check.reason or "RNN" in check.reason


def test_an_original_of_an_opset_that_onnxruntime_has_unreleased_is_run_as_a_whole() -> None:
    original = model(Case("verify_unreleased", "LSTM", optional=ALL), 27)
    check = verify(original, rl.lower(original), runs=1)
    assert check.whole
    assert check.status == "verified", check.reason


def test_nodes_in_functions_run_on_their_own() -> None:
    original = model(Case("verify_function", "GRU", {"clip": 0.5}, scope="function", optional=ALL), 17)
    check = verify(original, rl.lower(original), runs=1)
    assert check
    assert check.reason == ""
    assert [node.name.split()[0] for node in check.nodes] == ["Y", "Y_h"]


def branches(name: str) -> onnx.ModelProto:
    """RNN nodes with other weights in the branches of two Ifs; the values have equal names."""
    ifs = [
        f"""{out} = If (c) <
            then_branch = tb () => (float[seq,1,2,4] Y) {{ Y = RNN <hidden_size = 4> (X, W{n}, R) }},
            else_branch = eb () => (float[seq,1,2,4] Y) {{ Y = RNN <hidden_size = 4> (X, W{n + 1}, R) }}>"""
        for n, out in enumerate(("a", "b"))
    ]
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[seq,2,3] X) => (float[seq,1,2,4] a, float[seq,1,2,4] b) {{ {" ".join(ifs)} }}"""
    )
    for node in proto.graph.node:
        node.name = name
    rng = np.random.default_rng(0)
    for weights, shape in {"W0": (1, 4, 3), "W1": (1, 4, 3), "W2": (1, 4, 3), "R": (1, 4, 4)}.items():
        array = rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, weights))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_branches_whose_values_have_equal_names() -> None:
    original = branches("")
    check = verify(original, rl.lower(original), runs=4)
    assert check, check.reason
    assert check.reason == ""
    assert len(check.nodes) == 4
    assert not verify(original, rl.lower(with_weight(original, "W1", weight(original, "W0"))), runs=4)


def test_nodes_of_equal_names_are_told_apart_by_the_paths_of_their_scopes() -> None:
    """onnxruntime does not run such a model. The nodes of both Ifs have other weights, and equal descriptions."""
    original = branches("same")
    check = verify(original, rl.lower(original), runs=1)
    assert check.status == "verified"
    assert len(check.nodes) == 2


def test_nodes_of_an_unsorted_model_run_on_their_own() -> None:
    original = chain(Link("LSTM", "first"), Link("GRU", "second"))
    nodes = list(original.graph.node)
    del original.graph.node[:]
    original.graph.node.extend(reversed(nodes))
    check = verify(original, rl.lower(original), runs=1)
    assert check.reason == ""
    assert len(check.nodes) == 2


def test_nothing_to_judge_by() -> None:
    original = custom_operator()
    check = verify(original, original)
    assert check.status == "not verified"
    assert not check
    assert check.reason.startswith("onnxruntime cannot run the original: ")
    assert "Special" in check.reason
    assert "\n" not in check.reason
    assert check.reason.endswith("; compare both models in a runtime that supports the original")
    assert check.outputs == ()
    assert str(check) == f"not verified: {check.reason}"


@pytest.mark.usefixtures("own_processes")
@pytest.mark.parametrize("shape", [(0, 2, 2), (3, 0, 2)], ids=["no steps", "no rows"])
def test_a_native_crash_spares_the_caller(shape: tuple[int, ...]) -> None:
    original = model(Case("verify_crash", "GRU", x="symbolic"), 17)
    check = verify(original, rl.lower(original, "loop"), feeds=[{"X": np.zeros(shape, np.float32)}])
    assert check.status == "not verified" or check.method != "onnxruntime"
    assert check.status != "failed"


# What counts as equal


@pytest.mark.parametrize(
    ("tolerance", "equal"),
    [
        (None, False),
        (Tolerance(), False),
        (Tolerance(atol=0.1), True),
        (Tolerance(rtol=0.1, atol=0.1), True),
        (Tolerance(rtol=0.0, atol=1e-7), False),
    ],
)
def test_tolerance(tolerance: Tolerance | None, equal: bool) -> None:
    original = model(SYMBOLIC, 17)
    check = verify(original, rl.lower(one_changed_number(original)), tolerance=tolerance)
    assert bool(check) == equal
    assert 1e-5 < check.max_abs < 1e-3


def test_a_tolerance_of_zero_wants_equal_numbers() -> None:
    original = model(Case("verify_equal", "LSTM", T=20, H=16), 17)
    assert verify(original, original, tolerance=Tolerance(0.0, 0.0)).max_abs == 0
    assert not verify(original, rl.lower(one_changed_number(original)), tolerance=Tolerance(0.0, 0.0))


def test_a_relative_tolerance_is_relative_to_the_original() -> None:
    original = model(SYMBOLIC, 17)
    doubled = with_last(rl.lower(original), "Mul", ("two", np.array(2.0, np.float32)))
    assert not verify(original, doubled, tolerance=Tolerance(rtol=0.9, atol=0.0))
    assert verify(original, doubled, tolerance=Tolerance(rtol=1.1, atol=1e-5))


def test_weights_of_zeros_show_nothing() -> None:
    original = model(SYMBOLIC, 17)
    for name in ("W", "R"):
        original = with_weight(original, name, 0 * weight(original, name))
    check = rl.verify(original, rl.lower(original))
    assert check
    for name in ("W", "R"):
        assert f"{name} of LSTM node" in check.reason
    assert "is all zeros" in check.reason
    usual = model(SYMBOLIC, 17)
    assert not rl.verify(usual, rl.lower(usual)).reason


def test_both_branches_of_a_boolean_input_run() -> None:
    text = """g (float[3, 2, 3] X, bool fast) => (float[a, b, c, d] Y) {{
        {} Y = If (fast) <then_branch = t () => (float[a, b, c, d] y) {{ y = Add (h, one) }},
                          else_branch = e () => (float[a, b, c, d] z) {{ z = Sub (h, one) }}> }}"""
    weights = {**recurrent("GRU", 3, 4), "one": np.ones(1, np.float32)}
    original = net(text.format("h = GRU <hidden_size = 4> (X, W, R, B)"), weights)
    for branch in ("then_branch", "else_branch"):
        wrong = changed(rl.lower(original))
        for node in wrong.graph.node:
            for attribute in node.attribute:
                if attribute.name == branch:
                    attribute.g.node[0].op_type = "Mul"
        assert rl.verify(original, wrong, runs=1).status == "failed"


def test_integers_must_be_equal() -> None:
    original = with_last(model(SYMBOLIC, 17), "ArgMax", axis=3, keepdims=0)
    assert verify(original, rl.lower(original))
    later = with_last(rl.lower(original), "Add", ("one", np.array(1)))
    assert not verify(original, later, tolerance=None)


def test_float16_has_a_tolerance_of_its_own() -> None:
    original = model(Case("verify_float16", "LSTM", dtype="float16", x="symbolic"), 17)
    check = verify(original, rl.lower(original))
    assert check
    shifted = with_last(rl.lower(original), "Add", ("shift", np.array(0.1, np.float16)))
    assert not verify(original, shifted)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_the_same_nan_or_infinity_is_equal(number: float) -> None:
    proto = model(SYMBOLIC, 17)
    odd = np.zeros(SYMBOLIC.H, np.float32)
    odd[2] = number
    original = with_last(proto, "Add", ("odd", odd))
    assert verify(original, rl.lower(original))
    other = np.where(np.isfinite(odd), odd, 0 if np.isnan(number) else -np.inf).astype(np.float32)
    assert not verify(original, rl.lower(with_last(proto, "Add", ("odd", other))))


# The result


def test_result_as_text_and_data() -> None:
    original = model(SYMBOLIC, 17)
    good, bad = verify(original, rl.lower(original)), verify(original, rl.lower(swapped_gates(original)))
    assert re.fullmatch(rf"verified .*onnxruntime.*: 3 runs, largest difference {good.max_abs:.2g}", str(good))
    assert re.fullmatch(rf"verification failed.*: {re.escape(bad.reason)}", str(bad))
    for check in (good, bad):
        data = check.to_dict()
        assert data.keys() >= {"status", "method", "runs", "outputs", "reason"}
        assert json.loads(json.dumps(data))["status"] == check.status
        assert [output["name"] for output in data["outputs"]] == ["Y", "Y_h", "Y_c"]
    assert good == verify(original, rl.lower(original))
    assert Verification("verified").max_abs == 0.0


# Kinds of models


def external(folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save_model(model(SYMBOLIC, 17), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def as_kind(kind: str, path: Path) -> Any:
    if kind in ("proto", "ir"):
        return onnx.load(path) if kind == "proto" else ir.load(path)
    return path if kind == "path" else str(path)


@pytest.mark.parametrize("kind", ["proto", "ir", "path", "text"])
@pytest.mark.parametrize("data", ["inline", "external"])
def test_kinds_of_models(kind: str, data: str, tmp_path: Path) -> None:
    original = tmp_path / "model.onnx"
    if data == "external":
        external(tmp_path)
    else:
        onnx.save(model(SYMBOLIC, 17), original)
    lowered, wrong = tmp_path / "lowered.onnx", tmp_path / "wrong.onnx"
    onnx.save(rl.lower(onnx.load(original)), lowered)
    onnx.save(rl.lower(swapped_gates(model(SYMBOLIC, 17))), wrong)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert verify(as_kind(kind, original), as_kind(kind, lowered), runs=1)
    assert verify(as_kind(kind, original), as_kind(kind, wrong), runs=1).status == "failed"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("own_processes")
def test_both_models_with_external_data(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source, target = external(tmp_path / "a"), tmp_path / "b" / "lowered.onnx"
    rl.lower_file(source, target, external_data="weights.bin", verify=0)
    assert verify(source, target, runs=1)


@pytest.mark.parametrize("to", ["scan", "loop"])
def test_nodes_with_external_weights_run_on_their_own(to: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    original = chain(Link("LSTM", "first", hidden=16))
    onnx.save(original, source)
    rl.lower_file(source, target, to, external_data="always", verify=0)
    check = verify(source, target, runs=1)
    assert check
    assert check.reason == ""
    assert [node.name.split()[0] for node in check.nodes] == ["Y"]
    R = weight(original, "R0") * np.float32(1.01)
    onnx.save(with_weight(original, "R0", R), source)
    assert verify(source, target, runs=1).status == "failed"


@pytest.mark.parametrize("kind", ["original", "lowered"])
def test_a_missing_model_is_an_error(kind: str, tmp_path: Path) -> None:
    proto = model(SYMBOLIC, 17)
    models: dict[str, Any] = {"original": proto, "lowered": proto, kind: tmp_path / "missing.onnx"}
    with pytest.raises((rl.RnnLoweringError, OSError), match=r"missing\.onnx"):
        verify(models["original"], models["lowered"])


def test_a_model_that_onnxruntimes_optimizer_refuses() -> None:
    """It makes names that a model which it saved has already, and does not look."""
    original = model(Case("token", "LSTM", outputs=("Y_h",), T=3, N=2), 17)
    result = original.graph.output[0].name
    outputs = original.graph.node[-1].output
    outputs[list(outputs).index(result)] = "state0"
    for n in range(12):
        name = "gemm_input_shape" + (f"_token_{n - 1}" if n else "")
        original.graph.initializer.append(numpy_helper.from_array(np.array([1, 2, 4]), name))
        after = result if n == 11 else f"state{n + 1}"
        original.graph.node.append(helper.make_node("Reshape", [f"state{n}", name], [after]))
    lowered = rl.lower(original)
    with pytest.raises(Exception, match="replace the existing tensor"):
        ort.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    for models, which in (((original, lowered), "lowered model"), ((lowered, original), "original")):
        check = rl.verify(*models, runs=1)
        assert check
        assert f"the {which} runs only with onnxruntime's optimizations disabled" in check.reason


@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_an_absent_output_beside_an_absent_state(op_type: str) -> None:
    """Both are called "": the original runs in onnxruntime all the same."""
    original = model(
        Case("absent", op_type, outputs=("Y_h",), optional=("B", "P") if op_type == "LSTM" else ("B",)), 17
    )
    node = next(n for n in original.graph.node if n.op_type == op_type)
    node.input.extend([""] * (6 - len(node.input)))
    check = rl.verify(original, rl.lower(original), runs=1)
    assert check
    assert check.method == "onnxruntime"


# Names


@pytest.mark.parametrize(
    "name", ["file", "allow_pickle", "a/../b", "names\n", "é\0", "n" * 70_000], ids=lambda name: ascii(name[:12])
)
def test_inputs_of_any_name_are_compared(name: str) -> None:
    original = changed(model(Case("verify_names", "RNN"), 17))
    renamed = original.graph.input[0].name
    for node in original.graph.node:
        node.input[:] = [name if given == renamed else given for given in node.input]
    original.graph.input[0].name = name
    check = verify(original, rl.lower(original), runs=1)
    assert check.status == "verified", check
    assert [given.name for run in check.each_run for given in run.inputs] == [name]
