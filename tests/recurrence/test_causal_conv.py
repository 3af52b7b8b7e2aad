"""CausalConvWithState of both domains beside float64, onnx's reference and onnxruntime's kernels."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from cases import DTYPES
from causal_conv import CASES, EVERY_CASE, MORE_CASES, STANDARD, ConvCase, arrays, expected, feed, model
from graphs import MS
from onnx import TensorProto, helper
from running import assert_near, evaluated, run

import rnn_lowering as rl
from rnn_lowering.types import Array

RUNNABLE = {name: case for name, case in EVERY_CASE.items() if case.dtype != "bfloat16"}
FACTORS = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


pytestmark = pytest.mark.usefixtures("workers_here")


def assert_right(case: ConvCase, got: dict[str, Array], given: dict[str, Array] | None = None) -> None:
    wanted = expected(case, given)
    assert {got[symbol].dtype for symbol in wanted} == {np.dtype(DTYPES[case.dtype])}
    assert_near(got, wanted, FACTORS[case.dtype])


@pytest.mark.few(8)
@pytest.mark.parametrize("name", RUNNABLE)
def test_computes_what_float64_does_and_so_does_onnxruntime(name: str) -> None:
    case = RUNNABLE[name]
    for each in (rl.lower(model(case)), model(case)):
        assert_right(case, run(each, feed(case), relabel=False))


@pytest.mark.parametrize("name", CASES)
def test_onnx_computes_the_same_of_the_node(name: str) -> None:
    """So it does of a lowered one in bfloat16."""
    case = CASES[name]
    for each in (model(case), *([rl.lower(model(case))] if case.dtype == "bfloat16" else [])):
        assert_right(case, evaluated(each, feed(case)))


@pytest.mark.parametrize("form", ["scan", "loop", "unroll", "auto"])
def test_every_form_is_a_straight_line(form: Any) -> None:
    (node,) = rl.lower(model(replace(STANDARD, symbolic=True)), form, full=True)[1].nodes
    assert (node.form, node.reason) == ("unroll", "a convolution needs no loop")


def test_operators() -> None:
    """A frame is a Mul and a ReduceSum, frames are one Conv; nothing returns an Identity of a state."""
    taken = {1: "Concat Mul ReduceSum Add Sigmoid Mul Slice", 5: "Concat Conv Sigmoid Mul Slice"}
    for length, operators in taken.items():
        lowered = rl.lower(model(replace(STANDARD, length=length)))
        assert [node.op_type for node in lowered.graph.node] == operators.split()


@pytest.mark.parametrize(("domain", "channels_last"), [("", False), (MS, False), (MS, True)])
def test_channels_of_unknown_number(domain: str, channels_last: bool) -> None:
    case = replace(STANDARD, domain=domain, constants=(), symbolic=True, channels_last=channels_last)
    original = model(case)
    for value in original.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == case.channels[0] and value.name != "past_state":
                dim.dim_param = "channels"
            if value.name == "past_state":
                dim.Clear()
    lowered = rl.lower(original)
    assert "Conv" not in {node.op_type for node in lowered.graph.node}
    assert_right(case, run(lowered, feed(case)))


@pytest.mark.parametrize("case", [STANDARD, replace(MORE_CASES["channels of two axes"], kernel=3)])
@pytest.mark.parametrize("sizes", [{"length": 0}, {"batch": 0}, {"length": 0, "kernel": 1, "optional": ()}])
def test_no_frames_and_no_rows(case: ConvCase, sizes: dict[str, int]) -> None:
    """Without frames the state is passed on."""
    empty = replace(case, **sizes)  # type: ignore[arg-type]
    assert_right(empty, run(rl.lower(model(empty)), feed(empty)))
    if "length" not in sizes:  # sizes that are known at run time only; a Conv needs a frame
        assert_right(empty, run(rl.lower(model(replace(empty, symbolic=True))), feed(empty)))


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_calls_of_any_length_continue_each_other(target: Any) -> None:
    whole = replace(STANDARD, length=23, symbolic=True)
    lowered, given = rl.lower(model(whole), target=target), feed(whole)
    assert ("If" in {node.op_type for node in lowered.graph.node}) == (target == "onnxruntime")
    state, outputs = given["past_state"], []
    for start, end in ((0, 1), (1, 2), (2, 12), (12, 14), (14, 23)):
        got = run(lowered, {"input": given["input"][:, :, start:end], "past_state": state})
        state = got["present_state"]
        outputs.append(got["output"])
    assert_right(whole, {"output": np.concatenate(outputs, axis=2), "present_state": state})


@pytest.mark.few(6)
@pytest.mark.parametrize("name", RUNNABLE)
def test_one_frame_of_an_open_length_in_onnxruntime(name: str) -> None:
    """It is chosen at run time: in every type, with axes of channels behind the frames or before."""
    case = replace(EVERY_CASE[name], symbolic=True, constants=())
    lowered = rl.lower(model(case), target="onnxruntime")
    for length in (1, 2):
        part = replace(case, length=length)
        assert_right(part, run(lowered, feed(part)))


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("open, standard", True),
        ("dilation, open, com.microsoft", True),
        ("half, com.microsoft", True),
        ("brain, com.microsoft", False),
    ],
)
def test_is_verified(name: str, whole: bool) -> None:
    """In bfloat16 by its node."""
    original = model(EVERY_CASE[name])
    check = rl.verify(original, rl.lower(original), runs=1)
    assert (check.status, check.whole) == ("verified", whole)
    assert [node.name.split()[0] for node in check.nodes] == ["output", "present_state"]


@pytest.mark.parametrize("fault", ["weight", "bias", "activation", "dilation", "state"])
def test_a_fault_is_found_in_the_node(fault: str) -> None:
    case = replace(MORE_CASES["dilation, open"], length=9)
    other: dict[str, Any] = {
        "bias": {"optional": ("past_state",)},
        "activation": {"activation": "none"},
        "dilation": {"dilation": 1, "kernel": 7},
    }
    lowered = rl.lower(model(replace(case, **other.get(fault, {})), seed=int(fault == "weight")))
    if fault == "state":
        (last,) = (node for node in lowered.graph.node if "present_state" in node.output)
        lowered.graph.node.append(helper.make_node("Neg", ["before"], ["present_state"]))
        last.output[:] = ["before"]
    check = rl.verify(model(case), lowered, runs=1)
    assert check.status == "failed"


def block(activation: str) -> onnx.ModelProto:
    """A Loop of two convolutions, of which the second gets the state of the first, in an If and in a function."""
    text = f"""
        <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "local": 1]>
        main (float[2,3,L] x, bool go) => (float[2,3,L] y, float[2,3,3] s) {{
            y, s = If (go) <
                then_branch = yes () => (float[2,3,L] yes_y, float[2,3,3] yes_s) {{
                    [conv] first, first_s =
                        com.microsoft.CausalConvWithState <activation = "{activation}"> (x, w, b)
                    [again] yes_y, yes_s = com.microsoft.CausalConvWithState (first, w, "", first_s)
                }},
                else_branch = no () => (float[2,3,L] no_y, float[2,3,3] no_s) {{
                    no_y, no_s = local.conv <how = "{activation}"> (x, w, b)
                }}
            >
        }}
        <domain: "local", opset_import: ["": 21, "com.microsoft": 1]>
        conv <how> (x, w, b) => (y, s) {{
            [inner] y, s = com.microsoft.CausalConvWithState <activation: string = @how> (x, w, b)
        }}
    """
    proto = onnx.parser.parse_model(text)
    held = arrays(STANDARD)
    for name, symbol in (("w", "weight"), ("b", "bias")):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(held[symbol], name))
    return proto


@pytest.mark.parametrize("go", [True, False])
def test_in_bodies_and_functions(go: bool) -> None:
    original, x = block("silu"), arrays(STANDARD)["input"]
    lowered = rl.lower(original)
    assert not {node.op_type for node in lowered.graph.node} & {"CausalConvWithState", "conv"}
    given = {"x": x, "go": np.array(go)}
    before, after = run(original, given), run(lowered, given)
    for name in before:
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=2e-6)
    scopes = [spec.node.scope for spec in rl.inspect(original)]
    assert [scope.rpartition(" ")[2] for scope in scopes] == ["then_branch", "then_branch", "else_branch"]


def test_what_a_specification_says() -> None:
    (spec,) = rl.inspect(model(replace(MORE_CASES["channels of two axes, one frame"], dilation=2)))
    assert (spec.op_type, spec.version, spec.dtype.name) == ("CausalConvWithState", 1, "FLOAT")
    assert (spec.seq_length, spec.batch_size, spec.input_size) == (None, None, 6)
    assert spec.details == "kernel 4, dilation 2, SiLU"


def test_an_overridable_weight_stays_an_input() -> None:
    original = model(STANDARD)
    original.graph.input.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, [3, 1, 4]))
    other = {"weight": arrays(STANDARD, seed=5)["weight"]}
    assert_right(STANDARD, run(rl.lower(original), feed(STANDARD) | other), other)


@pytest.mark.parametrize("target", ["tvm", "tract", "openvino", "iree", "ncnn", "mnn", "opencv", "tinygrad"])
@pytest.mark.parametrize("length", [1, 5])
def test_for_each_runtime(target: Any, length: int) -> None:
    case = replace(STANDARD, length=length)
    lowered = rl.lower(model(case), target=target)
    assert_right(case, run(lowered, feed(case)))


def test_a_documented_target_without_conv_gets_products() -> None:
    documented = [t for t in rl.TARGETS.values() if t.documented]
    without = [t.name for t in documented if not {"Conv", "ReduceSum"} <= t.documented.operators]  # type: ignore[union-attr]
    name: Any
    for name in without:
        for length in (1, 5):
            case = replace(STANDARD, length=length, batch=1, opset=19, domain=MS)
            lowered = rl.lower(model(case), target=name)
            assert {node.op_type for node in lowered.graph.node} <= rl.TARGETS[name].documented.operators  # type: ignore[union-attr]
            assert_right(case, run(lowered, feed(case)))
    assert without
