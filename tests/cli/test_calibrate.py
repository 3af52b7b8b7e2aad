"""`--calibrate`, `calibrate=` and `quantize_stream`: a stream in integers, judged against the float one."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cases import Array, Arrays
from commands import Command
from paths import EXAMPLES
from running import nodes
from stream_models import chunked, over, plan_of
from texts import parse

import rnn_lowering as rl

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("no state is carried", "onnxruntime on this processor")
]

STEP = ("--stream", "seq=1", "--verify", "0")
FRAMES = 12


def sequence(seed: int, frames: int = FRAMES) -> Array:
    return np.random.default_rng(seed).standard_normal((frames, 1, 80)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model of the documents in the current folder, with a folder of sequences."""
    monkeypatch.chdir(tmp_path)
    Path("signals").mkdir()
    np.save("signals/a.npy", sequence(1))
    np.savez("signals/b.npz", X=sequence(2, 7))
    Path("signals/notes.txt").write_text("not a sequence", encoding="utf-8")
    return EXAMPLES / "model.onnx"


def outputs(path: str, optimized: bool = False) -> Array:
    """What a stream returns for both sequences, run by onnxruntime as the operators are defined."""
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    stream = rl.Stream(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))
    found = []
    for frames in (sequence(1), sequence(2, 7)):
        stream.reset()
        found += [stream({"X": frame[None]})["Y"] for frame in frames]
    return np.concatenate(found)


def ratio(exact: Array, other: Array) -> float:
    return float(10 * np.log10(np.square(exact).sum() / np.square(exact - other).sum()))


def test_the_given_stream_stays_as_it_is() -> None:
    """onnxruntime's quantizer takes large weights out of the model that it gets."""
    step = rl.lower(onnx.load(EXAMPLES / "model.onnx"), stream="seq=1")
    before = step.SerializeToString(deterministic=True)
    rl.quantize_stream(step, [{"X": sequence(1)}])
    assert step.SerializeToString(deterministic=True) == before


@pytest.mark.few(1)
@pytest.mark.parametrize(("target", "integers"), [("qnn", "UINT8"), ("tract", "INT8")])
def test_activations_for_qnn_are_unsigned(model: Path, target: str, integers: str, rnn_lower: Command) -> None:
    """QNN's Pad computes signed ones wrongly."""
    done = rnn_lower(model, "int8.onnx", *STEP, "--calibrate", "signals", "--target", target)
    assert done.code == 0
    made = onnx.load("int8.onnx")
    types = {each.name: onnx.TensorProto.DataType.Name(each.data_type) for each in made.graph.initializer}
    assert {types[node.input[2]] for node in made.graph.node if node.op_type == "QuantizeLinear"} == {integers}


@pytest.mark.few(1)
@pytest.mark.parametrize(("bits", "least"), [("w8a8", 15), ("w8a16", 35)])
def test_a_folder_of_sequences(model: Path, bits: str, least: float, rnn_lower: Command) -> None:
    assert rnn_lower(model, "float.onnx", "--stream", "seq=1", "--verify", "0").code == 0
    options = ("--calibrate", "signals", "--bits", bits, "--report", "report.json")
    done = rnn_lower(model, "int8.onnx", *STEP, *options)
    assert done.code == 0
    exact, other = outputs("float.onnx"), outputs("int8.onnx")
    expected = ratio(exact, other)
    assert expected > least
    shown = f"quantized to {bits}: signal-to-noise ratio against float on the 2 sequences given:"
    assert f"{shown} Y {expected:.1f} dB" in done.out
    data = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert data["quantization"]["snr"]["Y"] == pytest.approx(expected, rel=1e-4)
    assert data["files"]["after"]["bytes"] == Path("int8.onnx").stat().st_size
    assert data["operators"]["after"]["QuantizeLinear"] > 10
    made = onnx.load("int8.onnx")
    known = {n.output[0] for n in made.graph.node if n.op_type == "DequantizeLinear"}
    assert all(set(n.input) <= known for n in nodes(made) if n.op_type == "MatMul")


def test_the_float_stream_is_compared_first(model: Path, rnn_lower: Command) -> None:
    done = rnn_lower(model, "int8.onnx", "--stream", "seq=1", "--calibrate", "signals/a.npy", "--verify", "1")
    lines = done.out.splitlines()
    verified = next(n for n, line in enumerate(lines) if "verified (onnxruntime" in line)
    assert lines[verified + 1].startswith("quantized to w8a8")


def test_the_quantizer_logs_nothing(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        rl.quantize_stream(rl.lower(onnx.load(model), stream="seq=1"), "signals/a.npy")
    assert not [record for record in caplog.records if record.name == "root"]


def beside(offset: float) -> onnx.ModelProto:
    """A GRU whose output has an offset for a moment, beside which 8 bits hold little of it."""
    text = """g (float[time, 1, 3] X) => (float[t, 1, 1, 4] Z)
        <float[1,12,3] W = {}, float[1,12,4] R = {}, float offset = {%s}> {
        Y = GRU <hidden_size = 4> (X, W, R)  more = Add (Y, offset)  Z = Sub (more, offset) }"""
    return rl.lower(parse(text % offset), stream="time=1")


FEW = [{"X": np.random.default_rng(0).standard_normal((30, 1, 3)).astype(np.float32)}]


def test_a_lost_output_is_refused() -> None:
    with pytest.raises(rl.UnsupportedError, match=r"output 'Z' differs by more than it holds: -.* dB"):
        rl.quantize_stream(beside(1000.0), FEW)


def test_a_poor_output_is_made_only_by_force() -> None:
    with pytest.raises(rl.UnsupportedError, match=r"output 'Z' is only .* dB") as caught:
        rl.quantize_stream(beside(200.0), FEW)
    for advice in ("calibrate with", "or use w8a16", "keep the stream in float", "force=True"):
        assert advice in caught.value.hint
    with pytest.warns(rl.RnnLoweringWarning, match=r"output 'Z' is only .* or use w8a16"):
        stream, made = rl.quantize_stream(beside(200.0), FEW, force=True)
    assert 0 < made.snr["Z"] < 10
    assert made.snr == measured(beside(200.0), stream, FEW)
    _, made = rl.quantize_stream(beside(200.0), FEW, bits="w8a16")
    assert made.snr["Z"] > 30


@pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")
def test_the_command_writes_a_poor_output_only_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rnn_lower: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(over("float[1, time, 4] X", "a = Add (X, 9000.0)  Y = Sub (a, 9000.0)"), "offset.onnx")
    np.save("X.npy", FEW[0]["X"].reshape(1, 10, 9)[..., :4].copy())
    options = ("offset.onnx", "int8.onnx", "--stream", "time=1", "--calibrate", "X.npy", "--verify", "0")
    done = rnn_lower(*options)
    assert done.code == 1
    assert "--force writes it all the same" in done.err
    assert not Path("int8.onnx").exists()
    done = rnn_lower(*options, "--force")
    assert done.code == 0
    assert "warning: output 'Y' " in done.err
    assert Path("int8.onnx").exists()
    for given in ("X.npy", [{"X": np.load("X.npy")}]):
        with pytest.raises(rl.UnsupportedError, match="overwrite=True writes it all the same"):
            rl.lower_file("offset.onnx", "other.onnx", stream="time=1", calibrate=given, verify=0)


def measured(exact: onnx.ModelProto, integers: onnx.ModelProto, sequences: list[Arrays]) -> dict[str, Any]:
    """The ratios in dB over whole sequences: with their late frames, and the last value of what has no frames."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = []
    for model in (exact, integers):
        running = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found.append([chunked(model, each, [plan_of(model)["frames"]], running=running) for each in sequences])
    joined = [
        {name: np.concatenate([each[name].ravel() for each in run], dtype=float) for name in run[0]}
        for run in found
    ]
    return {name: pytest.approx(ratio(array, joined[1][name]), abs=0.02) for name, array in joined[0].items()}


def signals(model: onnx.ModelProto, frames: tuple[int, ...] = (16, 12)) -> list[Arrays]:
    """Random sequences of so many frames; an input M is 0 or 1."""
    rng, found = np.random.default_rng(0), list[Arrays]()
    for count in frames:
        found.append({})
        for value in model.graph.input:
            array = 2 * rng.standard_normal([d.dim_value or count for d in value.type.tensor_type.shape.dim])
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            found[-1][value.name] = (array > 1 if value.name == "M" else array).astype(dtype)
    return found


HELD = {
    "NINF": np.array(-np.inf, np.float32),
    "MASK": np.where(np.arange(8) % 3 == 1, -np.inf, 0).astype(np.float32),
    "S": np.ones((4, 8), np.float32),
}
POSITIONS = """h = MatMul (X, K[8, 8])  k = Transpose <perm = [0, 2, 1]> (h)  s = MatMul (X, k)  sh = Shape (X)
    n = Gather (sh, 1)  r = Range (0, n, 1)  i = Unsqueeze (r, [1])  j = Unsqueeze (r, [0])  d = Sub (i, j)
    c = LessOrEqual (0, d)  e = Less (d, 5)  near = And (c, e)"""
WEIGHED = "w = Softmax (a)  Y = MatMul (w, V[8, 8])"
ROWS, COLUMNS, LAST = "float[1, time, 8] X", "float[1, 8, time] X", "float[1, time, 8] X => float[1, 8] Y"
FILLS = {
    "a window of attention": (ROWS, f"{POSITIONS} a = Where (near, s, -1e9)  w = Softmax (a)  Y = MatMul (w, h)"),
    "a window, scaled behind the mask": (
        ROWS,
        f"{POSITIONS} a = Where (near, s, -1e9)  b = Mul (a, 0.25)  w = Softmax (b)  Y = MatMul (w, h)",
    ),
    "MaxPool": (COLUMNS, "c = Conv (X, K[8, 8, 1])  Y = MaxPool <kernel_shape = [3], pads = [2, 0]> (c)"),
    "MaxPool, late": (COLUMNS, "c = Conv (X, K[8, 8, 1])  Y = MaxPool <kernel_shape = [3], pads = [1, 1]> (c)"),
    "Pad with -inf": (
        COLUMNS,
        "c = Conv (X, K[8, 8, 1])  p = Pad (c, [0, 0, 2, 0, 0, 0], NINF)  Y = MaxPool <kernel_shape = [3]> (p)",
    ),
    "Pad with -1e9": (
        COLUMNS,
        "c = Conv (X, K[8, 8, 1])  p = Pad (c, [0, 0, 2, 0, 0, 0], -1e9)  Y = MaxPool <kernel_shape = [3]> (p)",
    ),
    "Pad with -1e9 along channels": (
        ROWS,
        "h = MatMul (X, K[8, 8])  a = Pad (h, [0, 0, 1, 0, 0, 1], -1e9)  w = Softmax (a)  Y = MatMul (w, V[10, 8])",
    ),
    "ReduceMax": (LAST, "h = MatMul (X, K[8, 8])  Y = ReduceMax <keepdims = 0> (h, [1])"),
    "ReduceMin": (LAST, "h = MatMul (X, K[8, 8])  Y = ReduceMin <keepdims = 0> (h, [1])"),
    "ReduceLogSumExp": (LAST, "h = MatMul (X, K[8, 8])  Y = ReduceLogSumExp <keepdims = 0> (h, [1])"),
    "a softmax over frames": (
        LAST,
        """h = MatMul (X, K[8, 8])  a = MatMul (h, A[8, 1])  w = Softmax <axis = 1> (a)  p = Mul (w, h)
        Y = ReduceSum <keepdims = 0> (p, [1])""",
    ),
    "Add of -1e9": (
        ROWS,
        f"h = MatMul (X, K[8, 8])  a = Add (h, [0.0, 0.0, -1e9, 0.0, 0.0, 0.0, -1e9, 0.0])  {WEIGHED}",
    ),
    "Add of -inf": (ROWS, f"h = MatMul (X, K[8, 8])  a = Add (h, MASK)  {WEIGHED}"),
    "Add of -100": (
        ROWS,
        f"h = MatMul (X, K[8, 8])  a = Add (h, [0.0, 0.0, -100.0, 0.0, 0.0, 0.0, 0.0, 0.0])  {WEIGHED}",
    ),
    "Sub of 1e9": (
        ROWS,
        f"h = MatMul (X, K[8, 8])  a = Sub (h, [0.0, 0.0, 1e9, 0.0, 0.0, 0.0, 0.0, 0.0])  {WEIGHED}",
    ),
    "an input times -1e4": (
        f"{ROWS}, float[1, time, 8] M",
        f"h = MatMul (X, K[8, 8])  b = Mul (M, -1e4)  a = Add (h, b)  {WEIGHED}",
    ),
    "an input times 1e9, subtracted": (
        f"{ROWS}, float[1, time, 8] M",
        f"""h = MatMul (X, K[8, 8])  o = Sub (1.0, M)  p = Sub (o, 1.0)  b = Mul (p, 1e9)  a = Add (h, b)
        {WEIGHED}""",
    ),
    "samples, then MaxPool": (
        COLUMNS,
        """s = Mul (X, 32768.0)  b = Conv (X, K[8, 8, 1])  t = Add (s, b)  c = Conv (t, L[8, 8, 1])
        Y = MaxPool <kernel_shape = [3], pads = [2, 0]> (c)""",
    ),
    "Where of an input": (
        f"{ROWS}, float[1, time, 8] M",
        f"h = MatMul (X, K[8, 8])  c = Greater (M, 0.5)  a = Where (c, -1e9, h)  {WEIGHED}",
    ),
    "Where of an input, scaled behind it": (
        f"{ROWS}, float[1, time, 8] M",
        f"""g = MatMul (X, K[8, 8])  h = Mul (g, 20.0)  c = Greater (M, 0.5)  b = Where (c, -1e9, h)
        a = Div (b, 20.0)  {WEIGHED}""",
    ),
    "two masks": (
        f"{ROWS}, float[1, time, 8] M",
        f"""h = MatMul (X, K[8, 8])  c = Greater (M, 0.5)  b = Where (c, -1e9, h)
        a = Add (b, [0.0, 0.0, -1e9, 0.0, 0.0, 0.0, 0.0, 0.0])  {WEIGHED}""",
    ),
    "a mean so far": (LAST, "h = MatMul (X, K[8, 8])  Y = ReduceMean <keepdims = 0> (h, [1])"),
    "a sum so far": (LAST, "h = MatMul (X, K[8, 8])  Y = ReduceSum <keepdims = 0> (h, [1])"),
    "two inputs": (
        f"{ROWS}, {ROWS.replace('X', 'Z')}",
        "h = MatMul (X, K[8, 8])  k = MatMul (Z, L[8, 8])  Y = Add (h, k)",
    ),
    "a scale of samples": (ROWS, "s = Mul (X, 32768.0)  h = MatMul (s, K[8, 8])  Y = Mul (h, 3.0e-5)"),
}
"""Nets whose constants and first states would be most of an integer range, and nets whose are not."""


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", ["w8a8", "w8a16"])
@pytest.mark.parametrize("name", FILLS)
def test_fills_and_first_states_lie_in_the_measured_ranges(name: str, bits: str) -> None:
    """The ratio is that of an own host, and as good as without fills."""
    model = over(*FILLS[name], HELD)
    step, sequences = rl.lower(model, stream="time=1", delay=True), signals(model)
    integers, made = rl.quantize_stream(step, sequences, bits=bits)
    assert made.snr == measured(step, integers, sequences)
    assert min(made.snr.values()) > (40 if bits == "w8a16" else 10 if "so far" in name else 17)
    first = [np.array(s["initial"], float) for s in plan_of(integers)["states"] if s["initial"] != "zeros"]
    assert all((np.abs(numbers) < 1e6).all() for numbers in first)


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", ["w8a8", "w8a16"])
def test_a_model_of_float16(bits: str) -> None:
    held = {"KH": np.eye(8, dtype=np.float16), "LOW": np.array(-65504, np.float16)}
    nodes = "c = Conv (X, KH)  p = Pad (c, [0, 0, 2, 0, 0, 0], LOW)  Y = MaxPool <kernel_shape = [3]> (p)"
    held["KH"] = held["KH"][..., None]
    model = over("float16[1, 8, time] X => float16[1, 8, time] Y", nodes, held)
    step, sequences = rl.lower(model, stream="time=1"), signals(model)
    integers, made = rl.quantize_stream(step, sequences, bits=bits)
    assert made.snr == measured(step, integers, sequences)
    assert made.snr["Y"] > (45 if bits == "w8a16" else 30)
    assert made.in_float == ()
    with pytest.raises(
        rl.UnsupportedError, match=r"need opset \d+, but onnx2torch reads opsets up to 17; use w8a8 and a"
    ):
        rl.quantize_stream(step, sequences, bits=bits, target="onnx2torch")


FAILING = {
    "LayerNormalization": (
        "float[1, time, 4, 8] X",
        "h = MatMul (X, K[8, 8])  l = LayerNormalization <axis = 2> (h, S, S)  Y = MatMul (l, L[8, 8])",
    ),
    "ConvTranspose": (COLUMNS, "l = ConvTranspose <group = 4> (X, K[8, 3, 1], b[12])  Y = Conv (l, L[4, 12, 1])"),
    "Gemm": ("float[time, 8] X", "l = Gemm <transB = 1> (X, K[5, 8], [[0.5]])  Y = MatMul (l, L[5, 4])"),
    "Einsum": (ROWS, 'l = Einsum <equation = "btd,de->bte"> (X, K[8, 8])  Y = MatMul (l, L[8, 8])'),
    "RMSNormalization": (ROWS, "h = MatMul (X, K[8, 8])  l = RMSNormalization (h, ONES)  Y = MatMul (l, L[8, 8])"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("operator", FAILING)
def test_what_the_quantizer_cannot_do_stays_in_float_and_is_named(operator: str) -> None:
    model = over(
        *FAILING[operator], HELD | {"ONES": np.ones(8, np.float32)}, opset=23 if operator[0] == "R" else 18
    )
    step, sequences = rl.lower(model, stream="time=1"), signals(model)
    for bits in ("w8a8", "w8a16"):
        integers, made = rl.quantize_stream(step, sequences, bits=bits)
        assert made.in_float == (f"{operator} node '-> l'",)
        assert str(made).endswith(f"; in float: {operator} node '-> l'")
        assert made.snr == measured(step, integers, sequences)
        assert made.snr["Y"] > 30


def test_a_stream_that_stays_in_float_is_no_stream_in_integers() -> None:
    model = over(ROWS, "Y = Log (X)")
    with pytest.raises(rl.UnsupportedError, match="leaves all nodes of the stream in float"):
        rl.quantize_stream(rl.lower(model, stream="time=1"), [{"X": np.full((1, 5, 8), 2, np.float32)}])


def with_number(array: Array, number: float) -> Array:
    changed = array.copy()
    changed[0, 3, 1] = number
    return changed


TWO = over(*FILLS["two inputs"])
GOOD = signals(TWO)
NUMBERS: dict[str, tuple[onnx.ModelProto, list[Arrays], str]] = {
    "inf": (
        TWO,
        [GOOD[0], {**GOOD[1], "Z": with_number(GOOD[1]["Z"], np.inf)}],
        "input 'Z' .* sequence 2 of 2 .*not finite",
    ),
    "-inf": (
        TWO,
        [{**GOOD[0], "X": with_number(GOOD[0]["X"], -np.inf)}],
        "input 'X' .* sequence 1 of 1 .*not finite",
    ),
    "NaN": (
        TWO,
        [{**GOOD[0], "X": with_number(GOOD[0]["X"], np.nan)}],
        "input 'X' .* sequence 1 of 1 .*not finite",
    ),
    "zeros": (
        TWO,
        [{name: 0 * array for name, array in GOOD[0].items()}],
        "0 everywhere, so there is nothing to measure",
    ),
    "an output of zeros": (
        over(
            "float[1, time, 8] X => float[1, time, 8] Y, float[1, time, 8] Z",
            "Y = MatMul (X, K[8, 8])  Z = Mul (Y, 0.0)",
        ),
        [{"X": GOOD[0]["X"]}],
        "output 'Z' is 0 in all sequences, so there is nothing to measure",
    ),
    "an output that is not finite": (
        over(ROWS, "h = MatMul (X, K[8, 8])  Y = Log (h)"),
        [{"X": np.abs(GOOD[0]["X"])}, {"X": GOOD[0]["X"]}],
        "output 'Y' of the float stream is not finite in sequence 1 of 2",
    ),
    "no frame of an output": (
        over(COLUMNS, "c = Conv (X, K[8, 8, 5])  Y = Relu (c)"),
        [{"X": GOOD[0]["X"][:, :4].transpose(0, 2, 1)}],
        "the sequences end before a frame of output 'Y' comes",
    ),
}


@pytest.mark.parametrize("wrong", NUMBERS)
@pytest.mark.parametrize("bits", ["w8a8", "w8a16"])
def test_numbers_that_measure_nothing_are_refused(wrong: str, bits: str) -> None:
    model, sequences, message = NUMBERS[wrong]
    with pytest.raises(rl.OptionError, match=message):
        rl.quantize_stream(rl.lower(model, stream="time=1", delay=True), sequences, bits=bits, force=True)


def test_own_calls_of_the_quantizer_get_finite_numbers_only() -> None:
    model, sequences, message = NUMBERS["NaN"]
    with pytest.raises(rl.OptionError, match=message):
        rl.Calibration(rl.lower(model, stream="time=1"), sequences)


def test_an_input_of_zeros_is_named() -> None:
    with pytest.warns(
        rl.RnnLoweringWarning, match="input 'Z' is 0 in all sequences, so no range behind it is measured"
    ):
        rl.quantize_stream(rl.lower(TWO, stream="time=1"), [{**GOOD[0], "Z": 0 * GOOD[0]["Z"]}])


def test_integers_that_are_not_finite_are_never_made() -> None:
    """A small divisor is 0 in integers."""
    model = over(
        ROWS,
        "h = Abs (X)  d = Add (h, 1e-6)  m = MatMul (d, EYE)  Y = Div (1.0, m)",
        {"EYE": np.eye(8, dtype=np.float32)},
    )
    x = np.linspace(0, 100, 160, dtype=np.float32).reshape(1, 20, 8)
    with pytest.raises(rl.UnsupportedError, match=r"output 'Y' is not finite; .* or keep the stream in float$"):
        rl.quantize_stream(rl.lower(model, stream="time=1"), [{"X": x}], force=True)


def test_an_output_of_integers_says_nothing() -> None:
    model = over(f"{ROWS} => int64[1, time] Y", "h = MatMul (X, K[8, 8])  Y = ArgMax <axis = 2, keepdims = 0> (h)")
    step, sequences = rl.lower(model, stream="time=1"), [{"X": GOOD[0]["X"]}]
    with pytest.raises(rl.UnsupportedError, match="no output has floats, so nothing says how good the stream is"):
        rl.quantize_stream(step, sequences)
    with pytest.warns(rl.RnnLoweringWarning, match="no output has floats"):
        _, made = rl.quantize_stream(step, sequences, force=True)
    assert made.snr == {}


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", ["w8a8", "w8a16"])
@pytest.mark.parametrize("frames", [3, 4, 5, 30])
def test_late_frames_are_measured(frames: int, bits: str) -> None:
    """Also those of a sequence that ends before its first frame comes."""
    model = over(COLUMNS, "c = Conv <pads = [4, 4]> (X, K[8, 8, 9])  Y = Relu (c)")
    step, sequences = rl.lower(model, stream="time=1", delay=True), signals(model, (frames,))
    integers, made = rl.quantize_stream(step, sequences, bits=bits)
    assert made.snr == measured(step, integers, sequences)
    assert made.snr["Y"] > (40 if bits == "w8a16" else 30)


def test_the_last_states_of_a_model_are_measured() -> None:
    head = "float[time, 1, 3] X, float[1, 1, 4] h0 => float[time, 1, 1, 4] Y, float[1, 1, 4] hn"
    step = rl.lower(over(head, "Y, hn = GRU <hidden_size = 4> (X, W, R, B, , h0)"), stream="time=1")
    _, made = rl.quantize_stream(step, FEW)
    assert 20 < made.snr["hn"] < 60


COMPARED = ("--stream", "seq=1")
WRONG = {
    "no stream": (("--calibrate", "signals"), "only a stream can be calibrated"),
    "any number of frames": (("--stream", "seq", "--calibrate", "signals"), "a stream for any number of frames"),
    "no file": ((*COMPARED, "--calibrate", "absent.npy"), "cannot read 'absent.npy': No such file or directory\n"),
    "no sequences": ((*COMPARED, "--calibrate", "empty"), "folder 'empty' has no .npy or .npz file"),
    "no array": (
        (*COMPARED, "--calibrate", "signals/notes.txt"),
        "'signals/notes.txt' is no .npy or .npz file; save",
    ),
    "objects": ((*COMPARED, "--calibrate", "objects.npz"), "'objects.npz' holds Python objects, not numbers; save"),
    "another shape": (
        (*COMPARED, "--calibrate", "flat.npy"),
        "[1], expected [1, 1, 80], with the frames of the chunk on axis 0\n",
    ),
    "another shape in one of two": (
        (*COMPARED, "--calibrate", "two"),
        "input 'X' has shape [1, 1, 3], expected [1, 1, 80]",
    ),
    "no whole call": ((*COMPARED, "--calibrate", "none.npy"), "the sequences hold no whole call"),
    "another name": ((*COMPARED, "--calibrate", "other.npz"), "got the inputs Z, expected X"),
    "a data file": ((*COMPARED, "--calibrate", "signals", "--external-data", "always"), "a model with a data file"),
    "a number that is not finite": (
        (*COMPARED, "--calibrate", "infinite"),
        "input 'X' has numbers in 'infinite/b.npy' that are not finite (infinities or NaN); repair them",
    ),
    "zeros": ((*COMPARED, "--calibrate", "zeros.npy"), "the sequences are 0 everywhere"),
    "other bits": (
        (*COMPARED, "--calibrate", "signals", "--bits", "w4a8"),
        "bits 'w4a8' does not exist; known are w8a8, w8a16",
    ),
    "a target of older opsets": (
        (*COMPARED, "--calibrate", "signals", "--bits", "w8a16", "--target", "tidl"),
        "w8a16 needs opset 21, but tidl reads opsets up to 19",
    ),
}


def not_yet(*_: object, **__: object) -> rl.Verification:
    raise AssertionError("the models are compared first")


@pytest.mark.few(8)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_commands(wrong: str, model: Path, rnn_lower: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before anything is compared."""
    monkeypatch.setattr("rnn_lowering.file_lowering.compare_stream", not_yet)
    Path("empty").mkdir()
    Path("two").mkdir()
    np.save("flat.npy", np.zeros(5, np.float32))
    np.save("two/a.npy", sequence(1))
    np.save("two/b.npy", sequence(1)[:, :, :3])
    np.save("none.npy", sequence(1)[:0])
    np.save("zeros.npy", 0 * sequence(1))
    Path("infinite").mkdir()
    np.save("infinite/a.npy", sequence(1))
    np.save("infinite/b.npy", np.where(sequence(2) > 2, np.inf, sequence(2)))
    np.savez("other.npz", Z=sequence(1))
    np.savez("objects.npz", X=np.array([None]))
    options, message = WRONG[wrong]
    done = rnn_lower(model, "int8.onnx", *options)
    assert done.code in (1, 2)
    assert message in done.err
    assert not Path("int8.onnx").exists()
