"""Models of real exporters, lowered and compared with the originals in onnxruntime."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Arrays
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from oracle import GATES
from paths import MODELS
from running import assert_close, operators, recurrent_left, run
from stored_models import Entry, entries, load, optimized, parameters, variants
from thinning import thinned

import rnn_lowering as rl

FORMS = ("auto", "scan", "loop", "unroll")
LONGEST_UNROLLED = 512

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")


def forms() -> list[Any]:
    """The models that onnxruntime runs, each in all forms that its opset has; a ninth of it in the default run."""
    absent = pytest.param({}, "", marks=pytest.mark.skip(reason=f"{MODELS.name} is not there"))
    found = [
        pytest.param(entry, form, id=f"{entry['file']}-{form}", marks=pytest.mark.shared)
        for entry in entries("runs")
        for form in FORMS
        if form != "scan" or entry["opsets"]["ai.onnx"] >= 9
    ]
    return thinned(found, 9) or [absent]


@lru_cache(maxsize=2)
def original_results(file: str, optimize: bool) -> list[Arrays]:
    original = onnx.load(MODELS / file)
    return [run(original, feed, optimize=optimize) for _, feed in variants(file)]


def surely_unrolls(entry: Entry) -> bool:
    """Whether every T is known and short, by the shapes of X in the manifest; else the package may find out."""
    for node in entry["nodes"]:
        if node["op"] in (*GATES, "DynamicQuantizeLSTM"):
            sizes = re.search(r"\[(.*)\]", node["inputs"]["X"])
            T = sizes[1].split(", ")[node["attrs"].get("layout", 0)] if sizes else ""
            if not (T.isdecimal() and int(T) <= LONGEST_UNROLLED):
                return False
    return True


@pytest.mark.few(6)
@pytest.mark.parametrize(("entry", "form"), forms())
def test_computes_what_the_original_computes(entry: Entry, form: Any) -> None:
    original = load(entry)
    try:
        lowered = rl.lower(original, form)
    except rl.UnsupportedError:
        if form == "unroll" and not surely_unrolls(entry):
            return
        raise
    assert recurrent_left(lowered) == []
    check_as_the_original(lowered, original)
    expected = original_results(entry["file"], optimized(entry))
    for (label, feed), results in zip(variants(entry["file"]), expected, strict=True):
        assert_close(run(lowered, feed, optimize=optimized(entry)), results, label=label)


def check_as_the_original(lowered: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Check a model as thoroughly as the original passes."""
    for full in (False, True):
        try:
            onnx.checker.check_model(original, full_check=full)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            return
        onnx.checker.check_model(lowered, full_check=full)


@pytest.mark.parametrize("entry", parameters("plain"))
@pytest.mark.parametrize("form", FORMS)
def test_without_recurrent_nodes_comes_back_equal(entry: Entry, form: Any) -> None:
    """Loops and Scans that an exporter wrote have tests of their own."""
    original = load(entry)

    def kept(node: ir.Node) -> bool:
        return node.op_type in ("Loop", "Scan")

    assert rl.lower(original, form, except_=kept) == original == load(entry)


@pytest.mark.parametrize("entry", parameters("refused"))
@pytest.mark.parametrize("form", FORMS)
def test_what_onnxruntime_does_not_run(entry: Entry, form: Any) -> None:
    """It runs the lowered models, but for bfloat16 and an experimental operator of old exporters."""
    original = load(entry)
    try:
        lowered = rl.lower(original, form)
    except rl.RnnLoweringError:
        return
    assert recurrent_left(lowered) == []
    check_as_the_original(lowered, original)
    bfloat16 = "BFLOAT16" in entry["dtypes"]
    if form == "unroll" if bfloat16 else "ConstantFill" not in operators(original):
        compare_with_stored(entry, lowered, bfloat16)


def compare_with_stored(entry: Entry, lowered: onnx.ModelProto, bfloat16: bool) -> None:
    """Compare with the outputs of the exporting framework that lie beside the model."""
    names = [output.name for output in lowered.graph.output]
    stored = {label: (feed, stored_outputs(entry, label)) for label, feed in variants(entry["file"])}
    assert any(expected for _, expected in stored.values())
    for label, (feed, expected) in stored.items():
        if expected:
            found = ReferenceEvaluator(lowered).run(None, feed) if bfloat16 else run(lowered, feed).values()
            actual, wanted = (dict(zip(names, arrays, strict=True)) for arrays in (found, expected))
            assert_close(actual, wanted, "bfloat16" if bfloat16 else None, label)


def stored_outputs(entry: Entry, label: str) -> list[Any]:
    model = MODELS / entry["file"]
    if label == "stored":
        tensors = sorted((model.parent / "test_data_set_0").glob("output_*.pb"))
        return [numpy_helper.to_array(onnx.load_tensor(path)) for path in tensors]
    beside = model.with_suffix(".expected.npz")
    if not beside.exists():
        return []
    with np.load(beside) as held:
        count = sum(name.startswith(f"{label}|") for name in held)
        return [held[f"{label}|{n}"] for n in range(count)]


def test_every_model_is_there() -> None:
    if not MODELS.exists():
        pytest.skip(f"{MODELS.name} is not there")
    assert all(Path(MODELS / e["file"]).exists() for kind in ("plain", "runs", "refused") for e in entries(kind))


NETS = {
    "crdnn_vad_gru_op17": {"b": 2, "t": 40},
    "crnn_ocr_op11": {"batch": 1, "width": 64},
    "deepspeech2_gru_op14": {"batch": 1, "time": 60},
    "dtln_stage1_op11": {},
    "han_gru_op17": {"b": 2, "sents": 3, "words": 5},
    "nsnet2_op12": {"b": 1, "t": 20},
    "rnnoise_op15": {"b": 1, "t": 20},
    "rnnt_predictor_joiner_op14": {"b": 1, "u": 6, "t": 9},
    "video_cnn_lstm_op17": {"b": 1, "t": 5},
    "wakeword_gru_stream_op13": {"b": 1, "t": 17},
}


@pytest.mark.few(1)
@pytest.mark.skipif(not MODELS.exists(), reason=f"{MODELS.name} is not there")
@pytest.mark.parametrize("net", thinned(sorted(NETS, reverse=True), 3))
def test_nets_with_fixed_dimensions_are_straight_line(net: str) -> None:
    original = onnx.load(MODELS / "exported" / "nets" / f"{net}.onnx")
    lowered = rl.lower(original, "unroll", dims=NETS[net])
    assert not {"Scan", "Loop", "If", "ReverseSequence", *GATES} & set(operators(lowered))
    assert rl.verify(original, lowered, runs=1)
