"""What docs/quantization.md promises: a lowered GRU is quantized by the ordinary tools, with its recipes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from paths import MODELS, ROOT
from running import nodes, run
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.cli.command import main

PATH = MODELS / "exported/nets/nsnet2_op12.onnx"
DOCUMENT = ROOT / "docs" / "quantization.md"
STEPS = 3

pytestmark = [
    pytest.mark.skipif(not PATH.exists(), reason=f"{MODELS.name} is not there"),
    pytest.mark.usefixtures("quiet"),
]


def frames() -> list[Arrays]:
    rng = np.random.default_rng(0)
    return [{"X": rng.standard_normal((1, STEPS, 161)).astype(np.float32)} for _ in range(4)]


def products(model: onnx.ModelProto) -> list[str]:
    return sorted({n.op_type for n in nodes(model)} & {"MatMul", "Gemm", "MatMulInteger", "GRU"})


def recipe(title: str) -> tuple[list[str], str]:
    """The arguments of `rnn-lower` and the Python of a section of the document."""
    (section,) = [s for s in DOCUMENT.read_text(encoding="utf-8").split("\n## ") if s.startswith(title)]
    (command,) = re.findall(r"^    rnn-lower (.*)$", section, re.MULTILINE)
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return command.split(), code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with the files that the recipes read."""
    monkeypatch.chdir(tmp_path)
    onnx.save(net(), "model.onnx")
    np.save("X.npy", np.concatenate([feed["X"][0, :, None] for feed in frames()]))
    return tmp_path


def net() -> onnx.ModelProto:
    """nsnet2 with the names that the recipes use."""
    model = onnx.load(PATH)
    (given,) = model.graph.input
    given.type.tensor_type.shape.dim[1].dim_param = "seq"
    for node in model.graph.node:
        node.input[:] = ["X" if name == given.name else name for name in node.input]
    given.name = "X"
    return model


def error(path: Path) -> float:
    original, quantized = net(), onnx.load(path)
    return max(float(np.abs(run(original, f)["gain"] - run(quantized, f)["gain"]).max()) for f in frames())


@pytest.mark.parametrize("form", thinned(["scan", "loop", "unroll"], 3))
def test_dynamic(form: str, folder: Path) -> None:
    arguments, code = recipe("Dynamic")
    arguments[arguments.index("scan")] = form
    assert main([*arguments, *(["--set-dim", f"seq={STEPS}", "--set-dim", "b=1"] if form == "unroll" else [])]) == 0
    exec(code, {})
    assert products(onnx.load("int8.onnx")) == ["MatMulInteger"]
    assert error(folder / "int8.onnx") < 1e-3
    float_size, size = ((folder / f"{name}.onnx").stat().st_size for name in ("float", "int8"))
    assert size < 0.3 * float_size


def float_products(model: onnx.ModelProto) -> list[str]:
    """Products of which an operand is not dequantized."""
    known = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    return [n.name for n in model.graph.node if n.op_type in ("MatMul", "Gemm") and not set(n.input) <= known]


class Sequences(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.left = iter(frames())

    def get_next(self) -> Arrays | None:
        return next(self.left, None)


def test_static_unrolled(tmp_path: Path) -> None:
    onnx.save(rl.lower(net(), "unroll", dims={"b": 1, "seq": STEPS}), tmp_path / "float.onnx")
    quantize_static(tmp_path / "float.onnx", tmp_path / "int8.onnx", Sequences())
    assert not float_products(onnx.load(tmp_path / "int8.onnx"))
    assert error(tmp_path / "int8.onnx") < 5e-3


def stored(model: onnx.ModelProto) -> Arrays:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def errors_of_calls(folder: Path) -> Iterator[float]:
    for feed in frames():
        stream = rl.Stream(str(folder / "int8_step.onnx"))
        gains = [stream({"X": feed["X"][:, t : t + 1]})["gain"] for t in range(STEPS)]
        yield float(np.abs(np.concatenate(gains, 1) - run(net(), feed)["gain"]).max())


def test_static_one_step_cell(folder: Path) -> None:
    """The past and the present of a state share one scale: else each step would convert one into the other."""
    arguments, code = recipe("Static")
    assert len(code.splitlines()) <= 8
    assert main([*arguments, "--set-dim", "b=1"]) == 0
    exec(code.replace('[{"X": np.load("X.npy")}]', "sequences"), {"sequences": frames()})
    new = onnx.load("int8_step.onnx")
    assert not float_products(new)
    held = stored(new)
    states = rl.Stream(str(folder / "int8_step.onnx")).plan.states
    assert len(states) == 2
    rounded = {node.output[0]: node.input[0] for node in new.graph.node}
    for state in states:
        (past,) = (node for node in new.graph.node if state.input in node.input)
        present = next(n for n in new.graph.node if n.output[0] == rounded[state.output])
        names = [node.input[1] for node in (past, present)]
        assert held[names[0]] == held[names[1]]
    assert max(errors_of_calls(folder)) < 5e-3


def test_ranges_of_states_hold_every_call(folder: Path) -> None:
    """Those of a calibration are the extremes over all calls, zero included; 16 bits are as right as 8."""
    assert main(["model.onnx", "float.onnx", "--stream", "seq=1", "--set-dim", "b=1"]) == 0
    calibration = rl.Calibration("float.onnx", frames(), state_bits=16)
    stream, seen = rl.Stream("float.onnx"), dict[str, list[float]]()
    for feed in frames():
        stream.reset()
        for t in range(STEPS):
            stream({"X": feed["X"][:, t : t + 1]})
            for name, array in stream.states.items():
                seen.setdefault(name, [0.0]).extend([float(array.min()), float(array.max())])
    overrides = calibration.extra_options["TensorQuantOverrides"]
    for name, numbers in seen.items():
        (given,) = overrides[name]
        assert (given["rmin"], given["rmax"]) == (min(numbers), max(numbers))
    assert sum(1 for _ in iter(calibration.get_next, None)) == 4 * STEPS
    calibration.rewind()
    quantize_static("float.onnx", "int8_step.onnx", calibration, extra_options=calibration.extra_options)
    assert np.dtype("uint16") in {array.dtype for array in stored(onnx.load("int8_step.onnx")).values()}
    assert max(errors_of_calls(folder)) < 5e-3


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "no whole call: no sequence is given"),
        ([{"X": np.zeros((1, 0, 161), np.float32)}], r"'X' has shape \[1, 0, 161\], and a call takes 1 on axis 1"),
        ([{"x": np.zeros((1, 3, 161), np.float32)}], "got the inputs x, expected X"),
        ([{"X": np.zeros(161, np.float32)}], "has shape"),
        ({"X": np.zeros((1, 3, 161), np.float32)}, "a list that has the inputs"),
        (5, "a list that has the inputs"),
    ],
)
def test_sequences_that_do_not_fit(sequences: Any, message: str, folder: Path) -> None:
    step = rl.lower(net(), stream={"seq": 1}, dims={"b": 1})
    with pytest.raises(rl.OptionError, match=message):
        rl.Calibration(step, sequences)
