"""QNN's HTP, simulated, with no node on the CPU: streams in integers, and what its operators take."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attention import Attention
from cases import Array, Arrays
from onnxruntime.quantization import QuantType, quantize_static
from paths import EXAMPLES, MODELS
from running import session
from stream_models import chunked, random, whole

import rnn_lowering as rl
from clients.driving import assert_right, in_calls
from clients.ranks import outcomes

FRAMES = 24
NETS: dict[str, tuple[Path, str, tuple[int, ...]]] = {
    "LSTM and GRU": (EXAMPLES / "model.onnx", "X:0", (FRAMES, 1, 80)),
    "nsnet2": (MODELS / "exported" / "nets" / "nsnet2_op12.onnx", "logspec:1", (1, FRAMES, 161)),
    "rnnoise": (MODELS / "exported" / "nets" / "rnnoise_op15.onnx", "feat:1", (1, FRAMES, 42)),
}
WEIGHTS = {"unsigned weights": QuantType.QUInt8, "signed weights": QuantType.QInt8}


@pytest.mark.shared
@pytest.mark.environments("qnn")
@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore:onnxruntime on this processor")
def test_quantized_streams(name: str, tmp_path: Path) -> None:
    """With 16 bits of activations, the HTP is as exact as the model on the CPU."""
    path, axis, shape = NETS[name]
    if not path.exists():
        pytest.skip("the stored models are not there")
    model, entry = onnx.load(path), axis.partition(":")[0]
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    names = {size.dim_param for n, size in enumerate(sizes) if size.dim_param and n != int(axis[-1])}
    step = rl.lower(model, target="qnn", stream={axis: 1}, dims=dict.fromkeys(names, 1))
    given = {entry: random(shape, 9)}
    streams = quantized(step, [{entry: random(shape, seed)} for seed in (1, 2)], tmp_path)
    got = in_calls("qnn", {kind: (made, given) for kind, made in streams.items()}, tmp_path / "qnn")
    exact = whole(model, given)
    for kind, made in streams.items():
        found: Any = got[kind]
        assert not isinstance(found, str), found
        as_defined = session(made, optimize=False)  # without VNNI, its integer kernels saturate
        for output, cpu in chunked(made, given, [1], running=as_defined).items():
            least = 35 if kind == "w8a8" else 45
            assert decibels(cpu, found[output]) > least, kind
            assert decibels(exact[output], found[output]) > decibels(exact[output], cpu) - 3, kind


def quantized(step: onnx.ModelProto, sequences: list[Arrays], folder: Path) -> dict[str, onnx.ModelProto]:
    """The stream by our command in 8 and 16 bits, and by the quantizer itself with 16-bit activations."""
    found = {bits: rl.quantize_stream(step, sequences, bits=bits, target="qnn")[0] for bits in ("w8a8", "w8a16")}
    for kind, weights in WEIGHTS.items():
        calibration = rl.Calibration(step, sequences, state_bits=16)
        onnx.save(step, folder / "step.onnx")
        types = {"activation_type": QuantType.QUInt16, "weight_type": weights}
        options = {"extra_options": calibration.extra_options, **types}
        quantize_static(folder / "step.onnx", folder / f"{kind}.onnx", calibration, **options)
        found[kind] = onnx.load(folder / f"{kind}.onnx")
    return found


def decibels(exact: Array, other: Array) -> float:
    noise = np.square(exact.astype(np.float64) - other).sum()
    return float(10 * np.log10(np.square(exact).sum() / noise)) if noise else np.inf


@pytest.mark.environments("qnn")
def test_the_ranks_and_types_of_operators() -> None:
    """A sample of the table of docs/runtimes.md; what is wrong without an error is refused by the target."""
    wanted = {
        ("Tanh", "float32", 4): "right",
        ("Tanh", "float32", 5): "rejects",
        ("Mul", "float32", 5): "right",
        ("Mul", "float32", 6): "rejects",
        ("Mul", "int64", 4): "right",
        ("Pad", "int32", 2): "rejects",
        ("MatMul", "int32", 2): "rejects",
        ("MatMul", "float32", 5): "right",
        ("MatMul", "float16", 5): "wrong",
        ("Tanh", "w8a16", 4): "right",
        ("Softmax", "w8a8", 5): "right",
        ("Neg", "int32", 2): "rejects",
        ("Pad", "w8a8", 2): "right",
    }
    assert outcomes("qnn", list(wanted)) == wanted


CHUNKS = {
    "padded": Attention(T=17, opset=17),
    "several": Attention("delta", T=40, B=1, Hq=1, H=1, dk=8, dv=8, opset=17),
    "without a state": Attention(T=64, B=4, Hq=4, H=4, dk=8, one_beta=True, state=False, opset=17),
    "by key": Attention(by_key=True, opset=17),
}


@pytest.mark.parametrize("client", ["qnn"])
def test_chunks_of_linear_attention(client: str, tmp_path: Path) -> None:
    """It ended at some, joined those without a state wrongly, and split keys from their queries wrongly."""
    jobs = {name: (rl.lower(case.model(), target="qnn"), case.feed()) for name, case in CHUNKS.items()}
    assert_right(client, jobs, {name: case.expected(case.feed()) for name, case in CHUNKS.items()}, tmp_path)
