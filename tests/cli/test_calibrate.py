"""`--calibrate`, `calibrate=` and `quantize_stream`: a stream in integers, judged against the float one."""

import json
import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from cases import Array
from commands import Command
from paths import EXAMPLES
from running import nodes
from texts import parse

import rnn_lowering as rl

STEP = ("--stream", "seq=1", "--no-verify")
FRAMES = 20


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


@pytest.mark.filterwarnings("ignore:onnxruntime on this processor")
def test_the_given_stream_stays_as_it_is() -> None:
    """onnxruntime's quantizer takes large weights out of the model that it gets."""
    step = rl.lower(onnx.load(EXAMPLES / "model.onnx"), stream="seq=1")
    before = step.SerializeToString(deterministic=True)
    rl.quantize_stream(step, [{"X": sequence(1)}])
    assert step.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(("target", "integers"), [("qnn", "UINT8"), ("tract", "INT8")])
@pytest.mark.filterwarnings("ignore:onnxruntime on this processor")
def test_activations_for_qnn_are_unsigned(model: Path, target: str, integers: str, rnn_lower: Command) -> None:
    """QNN's Pad computes signed ones wrongly."""
    done = rnn_lower(model, "int8.onnx", *STEP, "--calibrate", "signals", "--target", target)
    assert done.code == 0
    made = onnx.load("int8.onnx")
    types = {each.name: onnx.TensorProto.DataType.Name(each.data_type) for each in made.graph.initializer}
    assert {types[node.input[2]] for node in made.graph.node if node.op_type == "QuantizeLinear"} == {integers}


@pytest.mark.parametrize(("bits", "least"), [("w8a8", 15), ("w8a16", 35)])
@pytest.mark.filterwarnings("ignore:onnxruntime on this processor")
def test_a_folder_of_sequences(model: Path, bits: str, least: float, rnn_lower: Command) -> None:
    assert rnn_lower(model, "float.onnx", "--stream", "seq=1", "--no-verify").code == 0
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
    verified = next(n for n, line in enumerate(lines) if line.startswith("verified (onnxruntime"))
    assert lines[verified + 1].startswith("quantized to w8a8")


@pytest.mark.filterwarnings("ignore:onnxruntime on this processor")
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


def test_a_poor_output_is_a_warning() -> None:
    with pytest.warns(rl.RnnLoweringWarning, match=r"output 'Z' is only .* or use w8a16"):
        _, made = rl.quantize_stream(beside(200.0), FEW)
    assert 0 < made.snr["Z"] < 10
    _, made = rl.quantize_stream(beside(200.0), FEW, bits="w8a16")
    assert made.snr["Z"] > 30


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
    np.savez("other.npz", Z=sequence(1))
    np.savez("objects.npz", X=np.array([None]))
    options, message = WRONG[wrong]
    done = rnn_lower(model, "int8.onnx", *options)
    assert done.code in (1, 2)
    assert message in done.err
    assert not Path("int8.onnx").exists()
