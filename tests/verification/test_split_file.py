"""Large tensors inside a model file go to a data file; the model means the same, and what is no model stays."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from chains import Link, chain
from onnx import numpy_helper

import rnn_lowering as rl
from rnn_lowering.verification import model_files
from rnn_lowering.verification import split_file as splitting
from rnn_lowering.verification.split_file import split_file

MODEL = chain(Link("LSTM", "first", hidden=96), Link("GRU", "second", hidden=96))


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "LARGE", 1)
    monkeypatch.setattr(model_files, "LARGE", 1)


def test_the_model_means_the_same(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(MODEL, source)
    path = split_file(source, tmp_path / "small.onnx")
    assert path == tmp_path / "small.onnx"
    assert path.stat().st_size < 20_000 < source.stat().st_size
    read = onnx.load(path)
    for tensor, before in zip(read.graph.initializer, MODEL.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(before))
    for model in (read, expected := onnx.load(source)):
        del model.graph.initializer[:]
    assert read == expected
    offsets = [
        int(entry.value)
        for tensor in onnx.load(path, load_external_data=False).graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert len(offsets) == 3
    assert all(offset % 64 == 0 for offset in offsets)


SERIALIZED = MODEL.SerializeToString()
DAMAGED = {
    "cut off": SERIALIZED[: len(SERIALIZED) // 2],
    "no model": b"\xff" * 1000,
    "a long number": b"\x08" + b"\x80" * 200_000,
    "two graphs": SERIALIZED + SERIALIZED,
    "no graph": onnx.ModelProto(ir_version=8, producer_name="x" * 100).SerializeToString(),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_model_is_left_to_its_reader(name: str, tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(DAMAGED[name])
    assert split_file(source, tmp_path / "small.onnx") == source


def test_external_data_stays_where_it_is(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)  # which saving changes
    onnx.save(model, source, save_as_external_data=True, location="data", size_threshold=1000)
    assert split_file(source, tmp_path / "small.onnx") == source


def test_models_in_memory_and_in_files_are_verified(tmp_path: Path) -> None:
    onnx.save(MODEL, tmp_path / "model.onnx")
    before = MODEL.SerializeToString()
    assert rl.verify(tmp_path / "model.onnx", rl.lower(MODEL), runs=1)
    assert MODEL.SerializeToString() == before
