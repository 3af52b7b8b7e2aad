"""Every hint that the package writes is provoked by a test; what a hint offers is done here, and helps."""

import errno
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from case_list import BY_NAME
from cases import model
from provoked import all_hints, is_defined, register

import rnn_lowering as rl

HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
STEADY = "<int64 M = {60}, bool yes = {1}> { p = Loop (M, yes, a) <body = d (int64 i, bool c, float[N,2] s) => "


def test_every_hint_has_a_test() -> None:
    """Write a test that provokes a new hint; tests/support/provoked.py adds its name to hints_provoked.json."""
    assert set(register()) == all_hints()
    assert [text for text, test in register().items() if not is_defined(test)] == []


def read(text: str, unranked: str = "") -> onnx.ModelProto:
    """Return a model; the named input loses its shape."""
    found = onnx.parser.parse_model(HEAD + text)
    for value in found.graph.input:
        if value.name == unranked:
            value.type.tensor_type.ClearField("shape")
    return found


SCAN = """(float[T,N,2] X, float[N,2] a) => (float[N,2] p, float[T,N,2] Y)
    { p, Y = Scan <num_scan_inputs = 1, body = d (float[N,2] s, float[N,2] x) => (float[N,2] s1, float[N,2] y)
        { s1 = Add (s, x) y = Tanh (s1) }> (a, X) }"""
STACK = """(int64 M, float[N,K] x, float[N,2] a) => (float[N,2] p, float[S,A,B] Y) <bool yes = {1}>
    { p, Y = Loop (M, yes, a) <body = d (int64 i, bool c, float[N,2] s) => (bool c1, float[N,2] s1, float[A,B] y)
        { c1 = Identity (c) s1 = Tanh (s) z = NonZero (s1) y = Cast <to = 1> (z) }> }"""
MANY = f"""(float[N,2] a) => (float[N,2] p) {STEADY} (bool c1, float[N,2] s1)
        {{ c1 = Identity (c) s1 = Tanh (s) }}> }}"""

LOOPS: dict[str, tuple[onnx.ModelProto, dict[str, Any], str, dict[str, Any] | None]] = {
    "no step": (read(SCAN), {"to": "unroll", "dims": {"T": 0}}, "fix a length of 1 or more", {"dims": {"T": 1}}),
    "no rank": (
        read(SCAN, "X"),
        {"to": "unroll"},
        "fix the shapes of the inputs (input_shapes)",
        {"input_shapes": {"X": [3, 1, 2]}},
    ),
    "perhaps no step": (
        read(STACK),
        {"to": "scan"},
        'fix the sizes of the inputs (dims, input_shapes), or unroll it (to="unroll")',
        {"to": "unroll", "set_inputs": {"M": 2}, "dims": {"N": 1}},
    ),
    "no step, and no sizes": (
        read(STACK),
        {"to": "unroll", "set_inputs": {"M": 0}},
        "fix the sizes of all inputs (input_shapes), or give it a step",
        {"set_inputs": {"M": 1}},
    ),
    "many nodes": (
        read(MANY),
        {"to": "unroll", "max_nodes": 20},
        "raise the limit (max_nodes=N) if this is intended",
        {"max_nodes": 200},
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_of_a_loop(name: str) -> None:
    original, options, hint, followed = LOOPS[name]
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(original, **options)
    assert hint in caught.value.hint
    lowered = rl.lower(original, **options | (followed or {}))
    assert not {"Loop", "Scan"} & {node.op_type for node in lowered.graph.node}


RNN = """RNN <hidden_size = 4> (X, W, R) }"""
WEIGHTED = """(float[T,1,2] X, float[K] b) => (float[T,1,1,4] Y, float[K] c)
    <float[1,4,2] W = {1,2,3,4,5,6,7,8}, float[1,4,4] R = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}, float[3] b = {1,2,3}>
    { c = Identity (b) Y = """


def test_the_shape_of_a_default() -> None:
    original = read(WEIGHTED + RNN)
    with pytest.raises(
        rl.OptionError, match=r"give that shape, or set the input \(set_inputs={\"b\": numpy.load"
    ) as caught:
        rl.lower(original, input_shapes={"b": [2]})
    assert "has the shape [3], not [2]" in str(caught.value)
    rl.lower(original, input_shapes={"b": [3]})


def test_an_attribute_of_a_function_outside_of_it() -> None:
    original = read(WEIGHTED + RNN)
    (hidden,) = original.graph.node[1].attribute
    hidden.ClearField("i")
    hidden.ref_attr_name = "H"
    with pytest.raises(rl.UnsupportedError, match=r"'hidden_size' refers to .* 'H'; inline the function first"):
        rl.lower(original)


def test_a_branch_that_the_caller_passes() -> None:
    original = read(WEIGHTED + RNN)
    choice = onnx.helper.make_node("If", ["yes"], ["y"], "choice")
    for name in ("then_branch", "else_branch"):
        choice.attribute.add(name=name, ref_attr_name=name, type=onnx.AttributeProto.GRAPH)
    imports = [onnx.helper.make_opsetid("", 17)]
    original.functions.append(onnx.helper.make_function("own", "Choice", ["yes"], ["y"], [choice], imports))
    with pytest.raises(rl.UnsupportedError, match=r"a graph that the caller passes; inline the function first"):
        rl.lower(original)


STRIDED = """(float[1,2,T] X) => (float[1,2,U] Y) <float[2,2,3] W = {1,2,3,4,5,6,7,8,9,10,11,12}>
    { Y = Conv <strides = [2], kernel_shape = [3], pads = [2, 0]> (X, W) }"""


def test_the_frames_of_a_chunk() -> None:
    stream = rl.Stream(rl.lower(read(STRIDED), stream="T").SerializeToString())
    with pytest.raises(rl.OptionError, match="has 3 frames on axis 2; give a multiple of 2"):
        stream({"X": np.zeros((1, 2, 3), np.float32)})
    stream({"X": np.zeros((1, 2, 4), np.float32)})


def test_bits_of_states() -> None:
    with pytest.raises(rl.OptionError, match="state_bits is 4; give 8 or 16"):
        rl.Calibration(onnx.ModelProto(), [], state_bits=4)


def test_calibration_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    monkeypatch.delitem(sys.modules, "rnn_lowering.streaming.integers.calibration", raising=False)
    with pytest.raises(rl.UnsupportedError, match=r"Calibration needs onnxruntime: .*pip install onnxruntime"):
        importlib.import_module("rnn_lowering.streaming.integers.calibration")


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    original = model(BY_NAME["RNN_x_symbolic"], 17)
    with pytest.raises(rl.ModelFileError, match=r"no folder for temporary files: No usable .*; set TMPDIR"):
        rl.verify(original, original)


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A model with a weight of 2.1 GiB, whose file is a hole."""
    columns, text = 1 << 29, "(float[T,1,2] X, float[T,1,{0}] U) => (float[T,1,1,4] Y, float[T,1,{0}] V)"
    nodes = "{ Y = RNN <hidden_size = 4> (X, W, R) V = Add (U, big) }"
    graph = read(
        text.format(columns)
        + " <float[1,4,2] W = {1,2,3,4,5,6,7,8}, float[1,4,4] R = {"
        + "0," * 15
        + "0}> "
        + nodes
    )
    big = graph.graph.initializer.add(name="big", data_type=onnx.TensorProto.FLOAT, dims=[columns + (1 << 25)])
    big.data_location = onnx.TensorProto.EXTERNAL
    big.external_data.add(key="location", value="big.data")
    with open(tmp_path / "big.data", "wb") as file:
        file.truncate(4 * big.dims[0])
    onnx.save(graph, tmp_path / "huge.onnx")
    return tmp_path / "huge.onnx"


def test_of_a_model_above_two_gigabytes(huge: Path) -> None:
    """It fits into no message: its tensors stay in a file of their own."""
    output = huge.with_name("out.onnx")
    with pytest.raises(
        rl.UnsupportedError, match=r'2.1 GiB of tensors do not fit into one file; use external_data="auto"'
    ):
        rl.lower_file(huge, output, external_data="never", verify=0)
    assert not output.exists()
    with pytest.raises(rl.ModelFileError, match=r"too many for a ModelProto; use rl.lower_file"):
        rl.lower(huge)
