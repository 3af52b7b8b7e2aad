"""Verification: true only for a model that does the same, and never at the cost of the caller."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import ALL_OPTIONAL, Case, model
from onnx import helper, numpy_helper
from texts import parse

import rnn_lowering as rl
from rnn_lowering import verify
from rnn_lowering.compare.options import Tolerance
from rnn_lowering.compare.result import Verification

pytestmark = pytest.mark.usefixtures("workers_here")

STATES = "float[1,N,4] Y_h, float[1,N,4] Y_c"
OUTPUTS = f"float[T,1,N,4] Y, {STATES}"
LOOSE = Tolerance(1e9, 1e9)


def lstm(
    end: str = "Y = Identity (y)",
    *,
    start: str = "x = Identity (X)",
    inputs: str = "float[T,N,2] X",
    weights: str = "W, R, B",
    outputs: str = OUTPUTS,
    tensors: str = "float[1] one = {1}",
) -> onnx.ModelProto:
    """An LSTM with nodes before its `x` and behind its `y`."""
    return parse(
        f"""main ({inputs}) => ({outputs})
        <float[1,16,2] W = {{}}, float[1,16,4] R = {{}}, float[1,32] B = {{}}, {tensors}>
        {{ {start} [node] y, Y_h, Y_c = LSTM <hidden_size = 4> (x, {weights}) {end} }}""",
        domains=', "local": 1',
    )


def with_weight(
    proto: onnx.ModelProto, name: str = "B", *, add: float = 0.0, times: float = 1.0
) -> onnx.ModelProto:
    """The model with other numbers in a weight; `add` changes the first one."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    (tensor,) = [t for t in copy.graph.initializer if t.name == name]
    array = numpy_helper.to_array(tensor)
    array = array * np.asarray(times, array.dtype)
    array.reshape(-1)[:1] += np.asarray(add, array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return copy


# Right and wrong


@pytest.mark.usefixtures("own_processes")
def test_in_processes_of_their_own() -> None:
    original = lstm()
    assert verify(original, rl.lower(original))
    assert verify(original, rl.lower(with_weight(original, "W", times=2))).status == "failed"


@pytest.mark.few(1)
@pytest.mark.parametrize("to", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_a_right_model_is_verified(op_type: str, to: Any) -> None:
    original = model(Case("verify_right", op_type, {"direction": "bidirectional"}, optional=ALL_OPTIONAL), 17)
    check = verify(original, rl.lower(original, to))
    assert check
    assert (check.status, check.runs) == ("verified", 3)
    assert [output.name for output in check.outputs] == [value.name for value in original.graph.output]
    assert all(output.passed for output in check.outputs)
    assert 0 <= check.max_abs < 1e-5


EXCHANGED = "i, o, f, c = Split <axis = 1> (W) other = Concat <axis = 1> (f, o, i, c) x = Identity (X)"
WRONG_WEIGHTS = {
    "gates": lstm(start=EXCHANGED, weights="other, R, B"),
    "number": with_weight(lstm(), add=1e-3),
    "nan": with_weight(lstm(), "W", add=np.nan),
}


@pytest.mark.parametrize("to", ["scan", "loop"])
@pytest.mark.parametrize("name", WRONG_WEIGHTS)
def test_wrong_numbers_fail(name: str, to: Any) -> None:
    check = verify(lstm(), rl.lower(WRONG_WEIGHTS[name], to))
    assert not check
    assert check.status == "failed"
    assert "output 'Y'" in check.reason
    assert "output 'Y_h'" in check.reason
    assert check.max_abs > 1e-5
    assert not any(output.passed for output in check.outputs)


OTHER_INTERFACES: dict[str, tuple[dict[str, str], str]] = {
    "missing": ({"outputs": "float[T,1,N,4] Y, float[1,N,4] Y_c"}, "Y_h"),
    "renamed": (
        {"outputs": OUTPUTS.replace("Y_c", "state"), "end": "Y = Identity (y) state = Identity (Y_c)"},
        "state",
    ),
    "exchanged": ({"outputs": "float[T,1,N,4] Y, float[1,N,4] Y_c, float[1,N,4] Y_h"}, "Y_c"),
    "additional": ({"outputs": f"{OUTPUTS}, float[T,1,N,4] y"}, "y"),
    "type": ({"outputs": f"double[T,1,N,4] Y, {STATES}", "end": "Y = Cast <to = 11> (y)"}, "float64"),
    "shape": (
        {
            "outputs": f"float[1,T,1,N,4] Y, {STATES}",
            "end": "Y = Unsqueeze (y, first)",
            "tensors": "int64[1] first = {0}",
        },
        "output 'Y'",
    ),
    "not loadable": ({"end": "Y = local.NoSuchOperator (y)"}, "NoSuchOperator"),
    "NaN in one place": ({"end": "Y = Add (y, odd)", "tensors": "float[4] odd = {0, nan, 0, 0}"}, "NaN"),
}


@pytest.mark.parametrize("name", OTHER_INTERFACES)
def test_no_tolerance_excuses_another_interface_or_nan(name: str) -> None:
    fields, fact = OTHER_INTERFACES[name]
    check = verify(lstm(), rl.lower(lstm(**fields)), runs=1, tolerance=LOOSE)
    assert check.status == "failed"
    assert fact in check.reason
    if fact == "NaN":
        assert [output.passed for output in check.outputs] == [False, True, True]


IF = """Y = If (fast) <then_branch = t () => (float[a,b,c,d] p) {{ p = {} (y, one) }},
                       else_branch = e () => (float[a,b,c,d] q) {{ q = {} (y, one) }}>"""
BOOL = "float[T,N,2] X, bool fast"
SIZES = {"tensors": "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}"}
EMBEDDED = {"start": "x = Gather (table, ids)", "inputs": "int64[T,N] ids"}
LENGTHS = {"inputs": "float[T,N,2] X, int32[N] lens", "weights": "W, R, B, lens"}
ODD = {"end": "Y = Add (y, odd)", "tensors": "float[4] odd = {0, 0, nan, 0}"}
PARTS = {"outputs": f"{OUTPUTS}, seq(float) parts", "end": "Y = Identity (y) parts = SequenceConstruct (Y, Y_h)"}
NO_NUMBERS = {
    "inputs": "float[T,N,2] X, string[T] words",
    "outputs": f"{OUTPUTS}, string[T] same",
    "end": "Y = Identity (y) same = Identity (words)",
}

AROUND: dict[str, tuple[dict[str, str], dict[str, str] | None, str]] = {
    "right at one step only": (SIZES, {"end": "Y = Slice (y, zero, one, zero)"}, "'Y'"),
    "right at one row only": (SIZES, {"end": "Y = Slice (y, zero, one, two)"}, "'Y'"),
    "behind the node": ({"tensors": "float f = {1.01}"}, {"end": "Y = Mul (y, f)"}, "'Y'"),
    "before the node": ({"tensors": "float f = {0.1}"}, {"start": "x = Add (X, f)"}, "'Y'"),
    "lengths are ragged": (LENGTHS, {"weights": "W, R, B"}, "'Y_h'"),
    "sizes of one name agree": (
        {
            "inputs": "float[T,N,2] X, int32[N] lens, float[1,N,4] h, float[1,N,4] c",
            "weights": "W, R, B, lens, h, c",
        },
        {"weights": "W, R, B, lens, c, h"},
        "'Y'",
    ),
    "a table of one row": ({**EMBEDDED, "tensors": "float[1,2] table = {}"}, None, "'Y'"),
    "a table of two rows": ({**EMBEDDED, "tensors": "float[2,2] table = {}"}, None, "'Y'"),
    "indices of int32": (
        {
            "start": "wide = Cast <to = 7> (ids) x = Gather (table, wide)",
            "inputs": "int32[T,N] ids",
            "tensors": "float[3,2] table = {}",
        },
        None,
        "'Y'",
    ),
    "indices vary": (
        {**EMBEDDED, "tensors": "float[3000,2] table = {}, int64 four = {4}"},
        {"start": "few = Mod (ids, four) x = Gather (table, few)"},
        "'Y'",
    ),
    "a logarithm of positive numbers": ({"start": "x = Log (X)"}, None, "'Y'"),
    **{
        f"inputs of {kind}": ({"inputs": f"{kind}[T,N,2] X", "start": "x = Cast <to = 1> (X)"}, None, "'Y'")
        for kind in ("bool", "int64", "uint8", "float16", "double")
    },
    "strings": (NO_NUMBERS, None, "Y of LSTM node"),
    "a sequence": (
        {
            "inputs": "seq(float[T,N,2]) Xs",
            "start": "x = SequenceAt (Xs, zero)",
            "tensors": "int64 zero = {0}",
        },
        None,
        "Y of LSTM node",
    ),
    "a sequence is compared": (PARTS, {"end": "Y = Identity (y) parts = SequenceConstruct (Y, Y)"}, "parts"),
    "the same NaN": (ODD, {"end": "Y = Identity (y)"}, "'Y'"),
    "the same infinity": (
        {**ODD, "tensors": "float[4] odd = {0, 0, inf, 0}"},
        {"tensors": "float[4] odd = {0, 0, -inf, 0}"},
        "'Y'",
    ),
    "then_branch runs": ({"inputs": BOOL, "end": IF.format("Add", "Sub")}, {"end": IF.format("Mul", "Sub")}, "'Y'"),
    "else_branch runs": ({"inputs": BOOL, "end": IF.format("Add", "Sub")}, {"end": IF.format("Add", "Mul")}, "'Y'"),
    "integers are equal": (
        {
            "outputs": f"int64[T,1,N] Y, {STATES}",
            "end": "Y = ArgMax <axis = 3, keepdims = 0> (y)",
            "tensors": "int64 one = {1}",
        },
        {"end": "z = ArgMax <axis = 3, keepdims = 0> (y) Y = Add (z, one)"},
        "'Y'",
    ),
}
"""The model; what is different in the wrong one, None for its first bias; what the reason names."""


@pytest.mark.few(4)
@pytest.mark.parametrize("name", AROUND)
def test_inputs_are_such_as_models_accept_and_show_what_is_wrong(name: str) -> None:
    fields, other, fact = AROUND[name]
    original = lstm(**fields)
    onnx.checker.check_model(original, full_check=True)
    check = verify(original, rl.lower(original), runs=5)
    assert check.status == "verified", check.reason
    assert check.runs >= 5 or not check.whole
    wrong = with_weight(original, add=1) if other is None else lstm(**fields | other)
    check = verify(original, rl.lower(wrong), runs=1)
    assert check.status == "failed"
    assert fact in check.reason


VOICE = """
main (float[?,?] samples, float[2,?,4] state, int64 rate) => (float[?,?,?] Y_h, float[?,?,?] h0) <
    int64[4] ends = {0, 0, 0, 64}, int64 fast = {16000}, int64 zero = {0}, int64 one = {1}, int64[1] first = {0},
    int64[1] last = {2}, float[1,16,1] W = {}, float[1,16,4] R = {}, float factor = {1.1}
> {
    padded = Pad <mode="reflect"> (samples, ends)
    turned = Transpose <perm=[1, 0]> (padded)
    X = Unsqueeze (turned, last)
    is_fast = Equal (rate, fast)
    h = Gather <axis=0> (state, zero)
    c = Gather <axis=0> (state, one)
    h0 = If (is_fast) <
        then_branch = yes () => (float[?,?,?] yes_h) { same = Identity (h) yes_h = Unsqueeze (same, first) },
        else_branch = no () => (float[?,?,?] no_h) { twice = Add (h, h) no_h = Unsqueeze (twice, first) }
    >
    c0 = Unsqueeze (c, first)
    [lstm] , Y_h = LSTM <hidden_size=4> (X, W, R, "", "", h0, c0)
}
"""
"""As voice detectors: both states in one input of any batch size, a reflecting Pad, a number that decides."""


def test_a_state_of_any_batch_size_samples_to_reflect_and_both_branches_of_a_comparison() -> None:
    original = parse(VOICE)
    check = rl.verify(original, rl.lower(original))
    assert "verified (onnxruntime): 8 runs" in str(check)
    assert "rate = 16000, " in str(check)
    for right in ("Identity (h)", "Add (h, h)"):
        wrong = parse(VOICE.replace(right, "Mul (h, factor)"))
        assert rl.verify(original, rl.lower(wrong)).status == "failed"


@pytest.mark.usefixtures("own_processes")
def test_a_native_crash_spares_the_caller() -> None:
    """onnxruntime's GRU dies where there are no steps or no rows."""
    native = model(Case("verify_dies", "GRU", x="symbolic"), 17)
    lowered = rl.lower(native, "loop")
    for shape in ((0, 1, 2), (3, 0, 2)):
        feeds = [{"X": np.zeros(shape, np.float32)}]
        check = verify(native, lowered, feeds=feeds)
        assert check.status == "not verified" or check.method != "onnxruntime"
        assert check.status != "failed"
    check = verify(lowered, native, feeds=[{"X": np.zeros((0, 1, 2), np.float32)}])
    assert check.status == "failed"
    assert "lowered model" in check.reason


@pytest.mark.few(1)
@pytest.mark.parametrize(("length", "told"), [(1, True), (-1, False)])
def test_an_original_of_one_size_is_told(length: int, told: bool) -> None:
    """As exporters write it: the input has a name for its length, and a Reshape the length of an example."""
    shape = f"int64[4] shape = {{{length}, 1, 1, 4}}"
    original = lstm("Y = Reshape (y, shape)", tensors=shape, outputs="float[t,1,1,4] Y")
    check = verify(original, rl.lower(original))
    assert check
    assert ("of the tried sizes, the original accepted only X [1, 1, 2]" in check.reason) == told
    given = verify(original, rl.lower(original), shapes={"X": [1, 1, 2]})
    assert (given.status, given.reason) == ("verified", "")


def test_an_original_of_one_batch_size_is_told() -> None:
    """The length stays open; the Reshape has the batch of an example."""
    original = lstm("Y = Reshape (y, shape)", tensors="int64[4] shape = {-1, 1, 2, 4}", inputs="float[T,N,2] X")
    check = verify(original, rl.lower(original))
    assert check.reason.endswith("the original accepted only 2 on axis 1 of 'X'"), check.reason


@pytest.mark.parametrize("outputs", ["float[a,b,c,d] Y", "float[50,1,N,4] Y"])
def test_an_original_of_a_length_that_is_written_in_it(outputs: str) -> None:
    """As torch 2.13 writes it: the whole is compared at that length, with several batch sizes."""
    shape = "int64[4] shape = {50, 1, -1, 4}"
    original = lstm("Y = Reshape (y, shape)", tensors=shape, outputs=outputs)
    check = verify(original, rl.lower(original))
    assert check.whole
    assert check.reason == "of the tried sizes, the original accepted only 50 on axis 0 of 'X'"
    assert {run.inputs[0].shape for run in check.each_run} == {(50, 9, 2), (50, 1, 2), (50, 2, 2)}


@pytest.mark.parametrize(("declared", "status"), [("t", "verified"), ("5", "failed"), ("t, 1", "failed")])
def test_an_output_that_has_another_shape_than_the_result_declares(declared: str, status: str) -> None:
    """onnxruntime warns and goes on. What the original declares too is no fault of the lowering."""
    original = lstm(outputs="float[t,1,N,4] Y")
    lowered = rl.lower(original)
    lowered.graph.output[0].CopyFrom(lstm(outputs=f"float[{declared},1,N,4] Y").graph.output[0])
    check = verify(original, lowered)
    assert check.status == status
    assert ("but the lowered model declares [" in check.reason) == (status == "failed")
    assert verify(lowered, lowered)


def test_given_feeds_decide() -> None:
    original, bounded = lstm(), rl.lower(lstm("Y = Min (y, bound)", tensors="float bound = {0.1}"))
    small, large = ({"X": np.full((2, 1, 2), x, np.float32)} for x in (0.0, -9.0))
    assert verify(original, original, feeds=[large]).max_abs == 0
    assert not verify(original, bounded, feeds=[large])
    assert not verify(original, bounded, feeds=[small, large])
    check = verify(original, rl.lower(original), feeds=[{"X": np.full((40, 2, 2), 0.1, np.float32)}, small])
    assert check
    assert check.runs == 2


def test_no_runs_verify_nothing() -> None:
    check = verify(lstm(), rl.lower(lstm()), runs=0)
    assert str(check) == "not compared with the original: no run was asked for"
    assert not check


def test_a_model_that_is_not_lowered_is_compared_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert verify(lstm(), lstm(), runs=1).max_abs == 0
    assert not caplog.records


@pytest.mark.exhaustive
def test_the_seed_chooses_the_numbers() -> None:
    original = model(Case("verify_seed", "LSTM", T=20, H=16), 17)
    lowered = rl.lower(original, "loop")
    first, same, other = (verify(original, lowered, runs=1, seed=seed) for seed in (0, 0, 1))
    assert first == same
    assert first
    assert other
    assert first.outputs != other.outputs


# What counts as equal


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("tolerance", "equal"),
    [
        (None, False),
        (Tolerance(), False),
        (Tolerance(atol=0.1), True),
        (Tolerance(rtol=0.1, atol=0.1), True),
        (Tolerance(rtol=0.0, atol=1e-7), False),
        (Tolerance(0.0, 0.0), False),
    ],
)
def test_tolerance(tolerance: Tolerance | None, equal: bool) -> None:
    original = lstm()
    check = verify(original, rl.lower(WRONG_WEIGHTS["number"]), tolerance=tolerance)
    assert bool(check) == equal
    assert 1e-5 < check.max_abs < 1e-3
    assert verify(original, original, tolerance=tolerance).max_abs == 0


def test_a_relative_tolerance_is_relative_to_the_original() -> None:
    doubled = rl.lower(lstm("Y = Add (y, y)"))
    assert not verify(lstm(), doubled, tolerance=Tolerance(rtol=0.9, atol=0.0))
    assert verify(lstm(), doubled, tolerance=Tolerance(rtol=1.1, atol=1e-5))


def test_float16_has_a_tolerance_of_its_own() -> None:
    original = model(Case("verify_float16", "LSTM", dtype="float16", x="symbolic"), 17)
    assert verify(original, rl.lower(original))
    assert not verify(original, rl.lower(with_weight(original, add=0.5)))


def test_weights_of_zeros_show_nothing() -> None:
    original = with_weight(with_weight(lstm(), "W", times=0), "R", times=0)
    check = rl.verify(original, rl.lower(original))
    assert check
    for text in ("W of LSTM node", "R of LSTM node", "is all zeros"):
        assert text in check.reason
    assert not rl.verify(lstm(), rl.lower(lstm())).reason


# The result


def test_result_as_text_and_data() -> None:
    good, bad = (verify(lstm(), rl.lower(other)) for other in (lstm(), WRONG_WEIGHTS["gates"]))
    sizes = r"\(X \[7, 9, 2\], \[1, 1, 2\], \[70, 2, 2\]\)"
    runs = rf"3 runs, largest difference {good.max_abs:.2g} {sizes}"
    assert re.fullmatch(rf"1 of 1 node proven for every .*; verified .*onnxruntime.*: {runs}", str(good))
    assert re.fullmatch(rf"verification failed.*: {re.escape(bad.reason)}", str(bad))
    for check in (good, bad):
        data = check.to_dict()
        assert data.keys() >= {"status", "method", "runs", "outputs", "reason"}
        assert json.loads(json.dumps(data))["status"] == check.status
        assert [output["name"] for output in data["outputs"]] == ["Y", "Y_h", "Y_c"]
    assert good == verify(lstm(), rl.lower(lstm()))
    assert Verification("verified").max_abs == 0.0


# Kinds of models


@pytest.mark.few(1)
@pytest.mark.parametrize("data", ["inline", "external"])
def test_kinds_of_models(data: str, tmp_path: Path) -> None:
    original, lowered, wrong = (tmp_path / f"{name}.onnx" for name in ("model", "lowered", "wrong"))
    where: dict[str, Any] = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(lstm(), original, **where if data == "external" else {})
    onnx.save(rl.lower(lstm()), lowered)
    onnx.save(rl.lower(WRONG_WEIGHTS["gates"]), wrong)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for kind in (onnx.load, ir.load, Path, str):
        assert verify(kind(original), kind(lowered), runs=1)
        assert verify(kind(original), kind(wrong), runs=1).status == "failed"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.few(1)
@pytest.mark.usefixtures("own_processes")
@pytest.mark.parametrize("to", ["scan", "loop"])
def test_both_models_with_external_data(to: Any, tmp_path: Path) -> None:
    """Their data have one name, and weights run with each node."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    source, target = tmp_path / "a" / "model.onnx", tmp_path / "b" / "model.onnx"
    where: dict[str, Any] = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(lstm(), source, **where)
    rl.lower_file(source, target, to, external_data="w.bin", verify=0)
    check = verify(source, target, runs=1)
    assert check
    assert check.reason == ""
    assert [node.name.split()[0] for node in check.nodes] == ["Y", "Y_h", "Y_c"]
    (tmp_path / "a" / "w.bin").unlink()
    onnx.save(with_weight(lstm(), "R", times=1.01), source, **where)
    assert verify(source, target, runs=1).status == "failed"


def test_bfloat16_in_external_data(tmp_path: Path) -> None:
    """The nodes are compared in float32, as onnxruntime does not run bfloat16; their weights are in a file."""
    original = model(Case("verify_external", "GRU", dtype="bfloat16", H=8, optional=("B",)), 22)
    onnx.save(original, tmp_path / "in.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", external_data="always", verify=0)
    check = verify(tmp_path / "in.onnx", tmp_path / "out.onnx", runs=1)
    assert check
    assert len(check.nodes) == 2


def test_a_missing_model_is_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing.onnx"
    for models in ((missing, lstm()), (lstm(), missing)):
        with pytest.raises(rl.ModelFileError, match=r"missing\.onnx"):
            verify(*models)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["file", "allow_pickle", "a/../b", "names\n", "é\0", "n" * 70_000], ids=lambda name: ascii(name[:12])
)
def test_inputs_of_any_name_are_compared(name: str) -> None:
    original = lstm()
    original.graph.input[0].name = original.graph.node[0].input[0] = name
    check = verify(original, rl.lower(original), runs=1)
    assert check.status == "verified", check
    assert [given.name for run in check.each_run for given in run.inputs] == [name]


def test_a_stream_with_bfloat16_is_not_called_wrong() -> None:
    """onnxruntime's Python can neither take nor return it."""
    original = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (bfloat16[T,2] X, float[T,2] Z)
        => (bfloat16[T,2] V, float[T,2] s) <int64 zero = {0}> { V = Identity (X) s = CumSum (Z, zero) }"""
    )
    found = rl.verify_stream(original, rl.lower(original, stream="T"))
    assert found.status == "not verified"
    assert "passes no bfloat16 to or from Python, which 'X' is" in found.reason


# Branches that no run takes


CHOICE = """If ({}) <then_branch = t{n} () => (v{n}) {{ v{n} = Neg ({of}) }},
    else_branch = e{n} () => (w{n}) {{ w{n} = Tanh ({of}) }}>"""


def choice(condition: str, of: str = "y", n: int = 0) -> str:
    return CHOICE.format(condition, of=of, n=n)


def loop(condition: str) -> str:
    """Of five steps, from i = 0."""
    return f"""Z = Loop (five, yes, y) <body = b (int64 i, bool c, float[a, b, d] u) => (bool k, float[a, b, d] z)
        {{ k = Identity (c) p = {condition} [inner] z = {choice("p", "u")} }}>"""


FEW, MANY = "Greater (i, seven)", "Greater (i, two)"
DEEP = f"""v0 = Loop (five, yes, u) <body = d (int64 j, bool f, float[a, b, d] x) => (bool g, float[a, b, d] r)
    {{ g = Identity (f) q = Greater (j, seven) [deep] r = {choice("q", "x", 1)} }}>"""
UNTAKEN = {
    "a constant": (f"[outer] Z = {choice('yes')}", ""),
    "an input": (f"[outer] Z = {choice('given')}", ""),
    "data": (f"far = Greater (s, most) [outer] Z = {choice('far')}", "then_branch of If node 'outer'"),
    "data in a branch": (
        f"""far = Greater (s, most) [outer] Z = If (given) <then_branch = t () => (v) {{
            [inner] v = {choice("far")} }}, else_branch = e () => (w) {{ w = Exp (y) }}>""",
        "then_branch of If node 'inner'",
    ),
    "a Loop": (loop(FEW), "then_branch of If node 'inner'"),
    "all of a Loop": (loop(MANY), ""),
    "a Loop in a Loop": (loop(MANY).replace("v0 = Neg (u)", DEEP), "then_branch of If node 'deep'"),
    "a Scan": (
        f"""none, Z = Scan <num_scan_inputs = 1, scan_output_axes = [0], body = b (float g, float[b, d] u)
            => (float h, float[b, d] z) {{ h = Identity (g) p = Greater (g, most) [inner] z = {choice("p", "u")} }}>
            (zero, y)""",
        "then_branch of If node 'inner'",
    ),
    "a function": ("Z = local.choose (y, s)", "then_branch of If node 'inner' in function 'choose'"),
    "functions": ("Z = local.both (y, s)", "then_branch of If node 'inner' in function 'choose'"),
}
CHOOSE = f"""<domain: "local", opset_import: ["": 17]> choose (y, s) => (o) {{
    most = Constant <value_float = 99.0> () far = Greater (s, most) [inner] o = {choice("far")} }}
    <domain: "local", opset_import: ["": 17, "local": 1]> both (y, s) => (o) {{
    p = local.choose (y, s) o = local.choose (p, s) }}"""


@pytest.mark.few(2)
@pytest.mark.parametrize("where", UNTAKEN)
def test_a_branch_that_no_run_takes_is_told(where: str) -> None:
    nodes, missed = UNTAKEN[where]
    original = parse(
        f"""main (float[T, 1, 4] X, bool given) => (float[a, b, c] Z)
        <float[1, 16, 4] W = {{}}, float[1, 16, 4] R = {{}}, int64[1] axis = {{1}},
        int64 five = {{5}}, bool yes = {{1}}, int64 two = {{2}}, int64 seven = {{7}},
        float most = {{99}}, float zero = {{0}}> {{ Y = LSTM <hidden_size = 4> (X, W, R)  y = Squeeze (Y, axis)
        s = ReduceSum <keepdims = 0> (X) {nodes} }} {CHOOSE}""",
        domains=', "local": 1',
    )
    check = verify(original, rl.lower(original))
    assert check, check.reason
    assert check.whole
    assert check.reason == (f"the runs may have missed {missed}" if missed else "")


# float16 inside a model of float32


def halves(inside: str, functions: str = "") -> onnx.ModelProto:
    """As converters with `keep_io_types` write it. Z is float32 all the way, V has only weights of float16."""
    return parse(
        f"""g (float[T, 2, 3] X) => (float[T, a, 2, 16] Y, float[T, 2, 3] Z, float[T, 2, 4] V)
        <float16[1, 64, 3] W = {{}}, float16[1, 64, 16] R = {{}}, float16[1, 128] B = {{}}, float16[3, 4] M = {{}},
        int64 one = {{1}}, bool yes = {{1}}>
        {{ fW = Cast <to = 1> (W)  fR = Cast <to = 1> (R)  fB = Cast <to = 1> (B)  {inside}
        Z = Neg (X)  m = Cast <to = 1> (M)  V = MatMul (X, m) }}
        {functions}""",
        domains=', "local": 1',
    )


HALF = "x = Cast <to = 10> (X)  y = LSTM <hidden_size = 16> (x, W, R, B)  Y = Cast <to = 1> (y)"
HALVES = {
    "a Cast": (HALF, ""),
    "a function": (
        "Y = local.half (X, W, R, B)",
        f"""<domain: "local", opset_import: ["": 17]> half (X, W, R, B) => (Y) {{ {HALF} }}""",
    ),
    "a branch": (
        f"Y = If (yes) <then_branch = t () => (v) {{ {HALF.replace('Y =', 'v =')} }}, "
        "else_branch = e () => (w) { o = LSTM <hidden_size = 16> (X, fW, fR, fB)  w = Identity (o) }>",
        "",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("where", HALVES)
@pytest.mark.parametrize("form", ["scan", "loop"])
def test_the_least_precise_type_on_the_way_counts(where: str, form: Any) -> None:
    original = halves(*HALVES[where])
    check = verify(original, rl.lower(original, form))
    assert check, check.reason
    assert check.method == "onnxruntime"
    assert max(output.max_abs for output in check.outputs) > 1e-4  # float32 allows less


@pytest.mark.parametrize("name", ["Z", "V"])
def test_another_way_does_not_count(name: str) -> None:
    """Those of float32 alone, and those that only have weights of float16, are compared as float32."""
    original = halves(*HALVES["a Cast"])
    lowered = rl.lower(original)
    node = next(node for node in lowered.graph.node if name in node.output)
    node.output[:] = [f"{name}_right"]
    lowered.graph.initializer.append(numpy_helper.from_array(np.array(1.001, np.float32), "near"))
    lowered.graph.node.append(helper.make_node("Mul", [f"{name}_right", "near"], [name]))
    check = verify(original, lowered)
    assert check.status == "failed"
    assert f"output '{name}'" in check.reason
