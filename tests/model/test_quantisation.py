"""What docs/quantization.md promises: a lowered GRU is quantised by onnxruntime's ordinary tools."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cases import Arrays
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.calibrate import create_calibrator
from paths import MODELS
from running import nodes, run

import rnn_lowering as rl

PATH = MODELS / "exported/nets/nsnet2_op12.onnx"
STEPS = 8
SIZES = {"b": 1, "t": STEPS}

pytestmark = pytest.mark.skipif(not PATH.exists(), reason=f"{MODELS.name} is not there")


def frames() -> list[Arrays]:
    rng = np.random.default_rng(0)
    return [{"logspec": rng.standard_normal((1, STEPS, 161)).astype(np.float32)} for _ in range(4)]


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: list[Arrays]) -> None:
        self.feeds: Iterator[Arrays] = iter(feeds)

    def get_next(self) -> Arrays | None:
        return next(self.feeds, None)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)  # the quantiser advises to run its own preprocessing
    yield
    logging.disable(logging.NOTSET)


def products(model: onnx.ModelProto) -> list[str]:
    return sorted({n.op_type for n in nodes(model)} & {"MatMul", "Gemm", "MatMulInteger", "GRU"})


def lowered(form: str) -> onnx.ModelProto:
    return rl.lower(onnx.load(PATH), form, dims=SIZES)


def error(path: Path) -> float:
    original, quantised = onnx.load(PATH), onnx.load(path)
    return max(float(np.abs(run(original, f)["gain"] - run(quantised, f)["gain"]).max()) for f in frames())


@pytest.mark.parametrize("form", ["scan", "loop", "unroll"])
def test_dynamic(form: str, tmp_path: Path) -> None:
    onnx.save(lowered(form), tmp_path / "float.onnx")
    quantize_dynamic(
        tmp_path / "float.onnx",
        tmp_path / "int8.onnx",
        weight_type=QuantType.QInt8,
        extra_options={"EnableSubgraph": True},
    )
    assert products(onnx.load(tmp_path / "int8.onnx")) == ["MatMulInteger"]
    assert error(tmp_path / "int8.onnx") < 1e-3
    float_size, size = ((tmp_path / f"{name}.onnx").stat().st_size for name in ("float", "int8"))
    assert size < 0.3 * float_size


def static(source: Path, to: Path, feeds: list[Arrays], overrides: Mapping[str, Any]) -> onnx.ModelProto:
    quantize_static(
        source,
        to,
        Calibration(feeds),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"TensorQuantOverrides": dict(overrides)},
    )
    return onnx.load(to)


def float_products(model: onnx.ModelProto) -> list[str]:
    """Products of which an operand is not dequantized."""
    known = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    return [n.name for n in model.graph.node if n.op_type in ("MatMul", "Gemm") and not set(n.input) <= known]


def test_static_unrolled(tmp_path: Path) -> None:
    onnx.save(lowered("unroll"), tmp_path / "float.onnx")
    new = static(tmp_path / "float.onnx", tmp_path / "int8.onnx", frames(), {})
    assert not float_products(new)
    assert error(tmp_path / "int8.onnx") < 5e-3


def step_by_step(model: onnx.ModelProto, feed: Arrays, pairs: Mapping[str, str]) -> tuple[list[Arrays], Any]:
    """Run a one-step cell over all frames; return the inputs of each step, states included, and the outputs."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [v.name for v in session.get_outputs()]
    shapes = {v.name: [d if isinstance(d, int) else 1 for d in v.shape] for v in session.get_inputs()}
    states: Arrays = {name: np.zeros(shapes[name], np.float32) for name in pairs}
    given, gains = [], []
    for t in range(STEPS):
        given.append({"logspec": feed["logspec"][:, t : t + 1], **states})
        results = dict(zip(names, session.run(None, given[-1]), strict=True))
        states = {name: results[pairs[name]] for name in pairs}
        gains.append(results["gain"])
    return given, np.concatenate(gains, 1)


def before_identity(model: onnx.ModelProto, name: str) -> str:
    """The tensor that the quantiser rounds, where an output is only its Identity."""
    producer = next(n for n in model.graph.node if name in n.output)
    return str(producer.input[0]) if producer.op_type == "Identity" else name


def test_static_one_step_cell(tmp_path: Path) -> None:
    """The past and the present of a state share one scale: else each step would convert one into the other."""
    cell, report = rl.lower(onnx.load(PATH), stream={"t": 1}, dims={"b": 1}, full=True)
    assert report.stream is not None
    pairs = {state.input: state.output for state in report.stream.states}
    assert len(pairs) == 2
    source = tmp_path / "float.onnx"
    onnx.save(cell, source)
    feeds = [given for feed in frames() for given in step_by_step(cell, feed, pairs)[0]]
    calibrator = create_calibrator(source, augmented_model_path=str(tmp_path / "augmented.onnx"))
    calibrator.collect_data(Calibration(feeds))
    ranges = calibrator.compute_data()
    overrides: dict[str, Any] = {}
    tensors = {past: before_identity(cell, present) for past, present in pairs.items()}
    for past, present in tensors.items():
        low, high = zip(*(ranges[name].range_value for name in (past, present)), strict=True)
        shared = {"rmin": np.float32(np.min(low)), "rmax": np.float32(np.max(high))}
        overrides |= {past: [shared], present: [shared]}
    new = static(source, tmp_path / "int8.onnx", feeds, overrides)
    assert not float_products(new)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in new.graph.initializer}
    for past, present in tensors.items():
        assert held[f"{past}_scale"] == held[f"{present}_scale"]
        assert held[f"{past}_zero_point"] == held[f"{present}_zero_point"]
    for feed in frames():
        gains = step_by_step(new, feed, pairs)[1]
        assert np.abs(gains - run(onnx.load(PATH), feed)["gain"]).max() < 5e-3
