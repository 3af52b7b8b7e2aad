"""Inputs that become constants: what follows from them is decided, and the lowered model lacks them."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays, Case, expected, model
from cases import feed as feed_of
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from paths import SHARED
from running import assert_close, operators, recurrent_left, run
from texts import parse
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.cli.command import main

WEIGHTS = "float[1,9,3] W = {}, float[1,9,3] R = {}, int64 sixteen = {16000}, int64[1] one = {1}"
X = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)


def two_rates(place: int = 1) -> onnx.ModelProto:
    """A voice detector in small: the rate decides which of two nodes reads the input, in subgraphs too."""
    inputs = ["float[seq,batch,3] X", "float[1,batch,3] state"]
    inputs.insert(place, "int64 sr")
    return parse(
        f"""g ({", ".join(inputs)}) => (float[?,?,?] Y, int64 rate) <{WEIGHTS}>
        {{
            rate = Identity (sr)
            high = Equal (sr, sixteen)
            Y = If (high) <
                then_branch = a () => (float[?,?,?] A) {{ , A = GRU <hidden_size = 3> (X, W, R, , , state) }},
                else_branch = b () => (float[?,?,?] B) {{
                    factor = Cast <to = 1> (sr)
                    scaled = Mul (X, factor)
                    , B = GRU <hidden_size = 3, linear_before_reset = 1> (scaled, W, R, , , state)
                }}>
        }}"""
    )


def feed(sr: int | None = None) -> Arrays:
    given: Arrays = {"X": X, "state": X[:1]}
    return given if sr is None else given | {"sr": np.array(sr, np.int64)}


@pytest.mark.few(2)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("sr", [16000, 3])
@pytest.mark.parametrize("form", ["unroll", "scan"])
def test_an_input_becomes_a_constant(place: int, sr: int, form: Any) -> None:
    original = two_rates(place)
    lowered = rl.lower(original, form, set_inputs={"sr": sr}, input_shapes={"X": X.shape})
    assert [value.name for value in lowered.graph.input] == ["X", "state"]
    assert "If" not in operators(lowered)
    assert recurrent_left(lowered) == []
    onnx.checker.check_model(lowered, full_check=True)
    assert_close(run(lowered, feed()), run(original, feed(sr)))
    check = rl.verify(original, lowered, runs=2)
    assert check
    assert check.nodes
    assert original == two_rates(place)


def test_another_value_is_not_verified() -> None:
    """The comparison feeds the original with what the lowered model was made for, and could tell another."""
    original = two_rates()
    lowered = rl.lower(original, set_inputs={"sr": 3})
    (prop,) = lowered.metadata_props
    assert json.loads(prop.value) == {"sr": 3}
    prop.value = '{"sr": 16000}'
    assert rl.verify(original, lowered, runs=1).status == "failed"
    prop.value = '{"sr": [[["'
    assert not rl.verify(original, lowered, runs=1)


def default(original: onnx.ModelProto) -> onnx.ModelProto:
    original.graph.initializer.append(numpy_helper.from_array(np.array(8000), "sr"))
    return original


def in_the_outputs(original: onnx.ModelProto) -> onnx.ModelProto:
    del original.graph.node[0]
    original.graph.output[1].name = "sr"
    return original


def one_element(original: onnx.ModelProto) -> onnx.ModelProto:
    for value in (original.graph.input[1], original.graph.output[1]):
        value.type.tensor_type.shape.dim.add(dim_value=1)
    original.graph.node.insert(1, helper.make_node("Squeeze", ["sr"], ["scalar"]))
    original.graph.node[2].input[0] = "scalar"
    return original


def old_format(original: onnx.ModelProto) -> onnx.ModelProto:
    """Before IR version 4 every initializer is an input too: what the rate is compared with is a default only."""
    for tensor in original.graph.initializer:
        original.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    original.ir_version = 3
    return original


@pytest.mark.few(1)
@pytest.mark.parametrize("change", [default, in_the_outputs, one_element, old_format])
@pytest.mark.parametrize("sr", [16000, np.array(16000, np.int32)])
def test_wherever_the_input_is(change: Any, sr: int) -> None:
    original = change(two_rates())
    if change is one_element and not isinstance(sr, int):
        sr = np.reshape(sr, 1)
    rank = len(original.graph.input[1].type.tensor_type.shape.dim)
    given = feed() | {"sr": np.full([1] * rank, 16000, np.int64)}
    lowered = rl.lower(original, "scan", set_inputs={"sr": sr})
    assert "sr" not in {value.name for value in lowered.graph.input}
    assert ("If" in operators(lowered)) == (change is old_format)
    assert_close(run(lowered, feed()), run(original, given))
    assert rl.verify(original, lowered, runs=1)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such input": ({"rate": 3}, r"no input 'rate'.*X, sr, state"),
    "a fraction": ({"sr": 0.5}, "'sr' is of type int64, which cannot hold"),
    "too large": ({"sr": 1 << 70}, "'sr'"),
    "not a number": ({"sr": float("nan")}, "'sr' is of type int64"),
    "text": ({"sr": "16000"}, "not numbers"),
    "another rank": ({"sr": [16000]}, r"'sr' has the shape \[\], the given value \[1\]"),
    "one number for many": ({"X": 1.0}, r"'X' has the shape \[seq, batch, 3\], the given value \[\].*\.npy"),
    "another shape": ({"X": np.zeros((5, 2, 4))}, r"\[seq, batch, 3\], the given value \[5, 2, 4\]"),
    "a ragged list": ({"X": [[1], [1, 2]]}, "'X'"),
}


@pytest.mark.parametrize(("given", "fact"), WRONG.values(), ids=WRONG)
def test_what_an_input_cannot_be(given: dict[str, Any], fact: str) -> None:
    with pytest.raises(rl.RnnLoweringError, match=fact):
        rl.lower(two_rates(), set_inputs=given)


def test_sizes_must_agree() -> None:
    with pytest.raises(rl.UnsupportedError, match="dimension 'seq' is 6 and cannot be 5"):
        rl.lower(two_rates(), set_inputs={"X": X}, dims={"seq": 6})
    lowered = rl.lower(two_rates(), "unroll", set_inputs={"X": X})
    assert [value.name for value in lowered.graph.input] == ["sr", "state"]
    assert_close(run(lowered, {n: a for n, a in feed(3).items() if n != "X"}), run(two_rates(), feed(3)))


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, value = (str(tmp_path / name) for name in ("in.onnx", "out.onnx", "sr.npy"))
    onnx.save(two_rates(), source)
    np.save(value, np.array(16000))
    fixed = ["--set-dim", "seq=5", "--to", "unroll"]
    assert main([source, "--list", *fixed, "--set-input", "sr=3"]) == 4
    for given, kind in ((f"sr={value}", "npy"), ("sr=16000", "number")):
        report = tmp_path / f"{kind}.json"
        options = [*fixed, "--set-input", given, "--force", "--report", str(report), "--verify", "1"]
        assert main([source, target, *options]) == 0
        done = json.loads(report.read_text())
        assert done["set_inputs"] == [{"name": "sr", "dtype": "int64", "shape": [], "value": 16000}]
        assert done["verification"]["status"] == "verified"
        assert "If" not in operators(onnx.load(target))
    for wrong in ("sr", "=3", "sr=high"):
        with pytest.raises(SystemExit):
            main([source, target, "--set-input", wrong])
    with pytest.raises(SystemExit, match="2"):
        main([source, target, "--force", "--set-input", "sr=1", "--set-input", "sr=2"])


def halves(op: str = "Equal") -> onnx.ModelProto:
    """Of two branches, one cannot be valid at the sizes of the other: it reads another width."""
    return parse(
        f"""g (float[seq,batch,wide] X, int64 sr) => (float[?,?,?] Y)
        <{WEIGHTS}, float[1,9,6] V = {{}}>
        {{
            high = {op} (sr, sixteen)
            Y = If (high) <
                then_branch = a () => (float[?,?,?] A) {{ , A = GRU <hidden_size = 3> (X, V, R) }},
                else_branch = b () => (float[?,?,?] B) {{ , B = GRU <hidden_size = 3> (X, W, R) }}>
        }}"""
    )


@pytest.mark.parametrize(
    ("op", "wide", "value"), [("Equal", 6, "16000"), ("Equal", 3, "1600[1-9]"), ("Greater", 6, "16001")]
)
def test_a_branch_that_cannot_be_valid_names_the_input_that_decides(op: str, wide: int, value: str) -> None:
    shape = {"X": [4, 2, wide]}
    with pytest.raises(rl.RnnLoweringError, match=rf"set_inputs=..sr.: {value}") as caught:
        rl.lower(halves(op), input_shapes=shape)
    number = int(re.findall(r'"sr": (-?\d+)', str(caught.value))[0])
    lowered = rl.lower(halves(op), "unroll", input_shapes=shape, set_inputs={"sr": number})
    assert operators(lowered).isdisjoint({"If", "GRU"})
    x = np.random.default_rng(1).standard_normal((4, 2, wide)).astype(np.float32)
    original = run(halves(op), {"X": x, "sr": np.array(number)}, optimize=False)
    assert_close(run(lowered, {"X": x}), original)


SILERO = SHARED / "models" / "github" / "snakers4__silero-vad" / "silero_vad_v6_op16.onnx"


@pytest.mark.skipif(not SILERO.exists(), reason=f"{SILERO.name} is not there")
@pytest.mark.parametrize(("sr", "samples"), thinned([(8000, 288), (16000, 576)], 2))
def test_silero_is_straight_line(sr: int, samples: int) -> None:
    original = onnx.load(SILERO)
    shapes = {"input": [1, samples], "state": [2, 1, 128]}
    if sr == 16000:
        with pytest.raises(rl.RnnLoweringError, match=r'set_inputs=\{"sr": 16000\}\)$'):
            rl.lower(original, target="tvm", input_shapes=shapes)
    lowered = rl.lower(original, target="tvm", input_shapes=shapes, set_inputs={"sr": sr})
    assert not operators(lowered) & {"LSTM", "If", "Loop", "Scan"}
    check = rl.verify(original, lowered, runs=1)
    assert check
    assert check.nodes


@pytest.mark.parametrize("opset", [6, 8, 9, 17])
def test_integers_at_opsets_without_constants_of_integers(opset: int) -> None:
    case = Case("lengths", "LSTM", optional=("B", "sequence_lens"), lengths=(2, 5, 3))
    given = feed_of(case)
    lengths = given.pop("sequence_lens")
    lowered = rl.lower(model(case, opset), "unroll", target="ncnn", set_inputs={"sequence_lens": lengths})
    assert_close(run(lowered, given), expected(case))


LENGTHS = """
main (float[T,N,3] X, int64[N] count) => (float[T,1,N,4] Y)
<float[1,16,3] W = {}, float[1,16,4] R = {}, int64[1] one = {1}, int64[1] two = {2}> {
    more = Add (count, one)
    halves = Div (more, two)
    lengths = Cast <to=6> (halves)
    Y = LSTM <hidden_size=4> (X, W, R, "", lengths)
}
"""


def test_lengths_that_are_computed_from_an_input() -> None:
    original = parse(LENGTHS)
    count = np.array([9, 4])
    shapes: dict[str, Any] = {"X": X.shape}
    with pytest.raises(rl.UnsupportedError, match=r"needs constant sequence_lens: .* set_inputs=.*FILE.npy.*$"):
        rl.lower(original, target="ncnn", input_shapes=shapes)
    new = rl.lower(original, target="ncnn", input_shapes=shapes, set_inputs={"count": count})
    assert_close(run(new, {"X": X}), run(original, {"X": X, "count": count}))


def test_lengths_that_are_computed_from_sizes() -> None:
    text = LENGTHS.replace(", int64[N] count", "").replace(
        "more = Add (count, one)", "N = Shape <start=1, end=2> (X) T = Shape <end=1> (X) more = Expand (T, N)"
    )
    original = parse(text)
    with pytest.raises(rl.UnsupportedError, match=r"fix the sizes of the inputs.*dims=\{.T.: \?, .N.: \?\}$"):
        rl.lower(original, target="coreml")
    for target in ("coreml", "ncnn"):
        new = rl.lower(original, target=target, dims={"T": 5, "N": 2})
        assert_close(run(new, {"X": X}), run(original, {"X": X}))


PADDED = """
main (float[N,3,T] X) => (float[longer,1,N,4] Y)
<float[1,16,3] W = {}, float[1,16,4] R = {}, int64[2] last = {0, 2}, int64[1] four = {4}, int64[2] pairs = {-1, 2},
int64[1] back = {-1}, int64[1] far = {-9223372036854775807}, int64[1] first = {0}> {
    others = ConstantOfShape <value = int64[1] {0}> (four)
    given = Concat <axis=0> (last, others)
    rows = Reshape (given, pairs)
    flipped = Slice (rows, back, far, first, back)
    columns = Transpose <perm=[1, 0]> (flipped)
    flat = Reshape (columns, back)
    amounts = Cast <to=7> (flat)
    longer = Pad (X, amounts)
    x = Transpose <perm=[2, 0, 1]> (longer)
    Y = LSTM <hidden_size=4> (x, W, R)
}
"""
"""A Pad as PyTorch's old exporter writes it."""


@pytest.mark.parametrize("before", [True, False])
def test_amounts_of_a_pad_are_constants_for_compilers(before: bool) -> None:
    """Also where no size of a node depends on them."""
    apart = PADDED.replace("> (longer)", "> (X)").replace("[longer,1,N,4] Y", "[T,1,N,4] Y, float[N,3,U] longer")
    original = parse(PADDED if before else apart)
    feed, dims = {"X": X.transpose(1, 2, 0)}, {"N": 2, "T": 5}
    new = rl.lower(original, target="tvm", dims=dims)
    assert [node.op_type for node in new.graph.node][:2] == ["Pad", "Transpose"]
    assert_close(run(new, feed), run(original, feed))
    assert "ConstantOfShape" in operators(rl.lower(original))
    with pytest.raises(rl.UnsupportedError, match=r": dims=\{.N.: \?, .T.: \?\}, or try a stream"):
        rl.lower(parse(PADDED), target="tvm")


BRANCHES = """g (float[5, 2, 3] X, bool chosen) => (float[] Y, float[] a, float[] b, float[] c)
<float[1, 16, 3] W = {}, float[1, 16, 4] R = {}>
{
    a, b, c = If (chosen) <
        then_branch = one () => (float[5, 2, 3] u, float[5, 2, 3] u, float[1] k) <float[1] k = {2}>
            { u = Mul (X, k) },
        else_branch = two () => (float[5, 2, 3] p, float[5, 2, 3] q, float[1] s)
            { p = Neg (X)  q = Abs (X)  s = Constant <value = float[1] {7}> () }>
    x = If (chosen) <
        then_branch = three () => (float[5, 2, 3] w) <float[1] k = {3}> { u = Add (a, k)  w = Tanh (u) },
        else_branch = four () => (float[5, 2, 3] r) { r = Add (a, c) }>
    Y = LSTM <hidden_size = 4> (x, W, R)
}"""


@pytest.mark.parametrize("chosen", [True, False])
def test_a_chosen_branch_takes_the_place_of_its_if(chosen: bool) -> None:
    """The branches use the same names, and return a constant, and one value as two outputs."""
    original = parse(BRANCHES)
    new = rl.lower(original, set_inputs={"chosen": chosen})
    onnx.checker.check_model(new, full_check=True)
    assert "If" not in operators(new)
    assert_close(run(new, {"X": X3}), _truth(original, chosen))


def _truth(model: onnx.ModelProto, chosen: bool) -> Arrays:
    """What onnx's evaluator computes: onnxruntime gives garbage for a branch that returns one value twice."""
    results = ReferenceEvaluator(model).run(None, {"X": X3, "chosen": np.array(chosen)})
    return {output.name: np.asarray(array) for output, array in zip(model.graph.output, results, strict=True)}


def test_a_branch_of_a_function_takes_the_place_of_its_if() -> None:
    original = parse(
        BRANCHES.replace("Y = LSTM <hidden_size = 4> (x,", "z = local.scaled (x)  Y = LSTM <hidden_size = 4> (z,")
        + SCALED,
        domains=LOCAL,
    )
    new = rl.lower(original, set_inputs={"chosen": True})
    onnx.checker.check_model(new, full_check=True)
    assert "If" not in {node.op_type for function in new.functions for node in function.node}
    assert_close(run(new, {"X": X3}), _truth(original, True))


X3 = np.random.default_rng(3).standard_normal((5, 2, 3)).astype(np.float32)
LOCAL = ', "local": 1'
SCALED = """
<domain: "local", opset_import: ["": 17]>
scaled (X) => (y)
{
    yes = Constant <value = bool {1}> ()
    y = If (yes) <
        then_branch = one () => (float[5, 2, 3] u) <float[1] k = {2}> { u = Mul (X, k) },
        else_branch = two () => (float[5, 2, 3] v) { v = Neg (X) }>
}"""
