"""Large tensors inside a model file are not held in memory, and files are the same to the byte."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from chains import Link, chain
from onnx import TensorProto, helper, numpy_helper
from running import recurrent_left
from scope_models import LOCAL, SCOPES
from texts import FORMS, parse

import rnn_lowering as rl
from rnn_lowering.compare import verify
from rnn_lowering.compare.runs.runner import Runner
from rnn_lowering.compare.runs.sessions import Session
from rnn_lowering.files import one_file

MODEL = chain(Link("LSTM", "first", hidden=96), Link("GRU", "second", hidden=96))


def everything_is_large(monkeypatch: pytest.MonkeyPatch, tensor: int = 1) -> None:
    monkeypatch.setattr(one_file, "LARGE", 1)
    monkeypatch.setattr(one_file, "TENSOR_BYTES", tensor)
    monkeypatch.setattr(one_file, "SHARE", 0)
    monkeypatch.setattr(verify, "LARGE", 1)


def described(model: onnx.ModelProto) -> onnx.ModelProto:
    """Tensors with all that a tensor can have beside its numbers."""
    for tensor in model.graph.initializer:
        tensor.doc_string = f"what {tensor.name} is"
        tensor.metadata_props.add(key="from", value="a test")
    return model


def with_others(model: onnx.ModelProto) -> onnx.ModelProto:
    """Tensors that are not bytes, or of types without a size in whole bytes; an empty one; one with two names."""
    model.graph.initializer.append(numpy_helper.from_array(np.array(["a", "b" * 300], object), "words"))
    model.graph.initializer.append(helper.make_tensor("numbers", TensorProto.FLOAT, [300], np.arange(300)))
    model.graph.initializer.append(helper.make_tensor("nibbles", TensorProto.INT4, [301], [1] * 301))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((0, 4), np.float32), "none"))
    model.opset_import[0].version = 21
    model.ir_version = 10
    return model


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "chain": lambda: chain(Link("LSTM", "first"), Link("GRU", "second", {"direction": "bidirectional"})),
    "described": lambda: described(chain(Link("RNN", "first"))),
    "others": lambda: with_others(chain(Link("RNN", "first"))),
    "opset 6": lambda: chain(Link("RNN", "first"), opset=6, dims=(5, 2)),
    **{name: partial(parse, text, domains=LOCAL) for name, text in SCOPES.items()},
}


def lowered(source: Path, out: Path, **options: Any) -> bytes | str:
    """The bytes of the result, or the error."""
    try:
        rl.lower_file(source, out, verify=0, overwrite=True, **options)
    except rl.RnnLoweringError as error:
        return str(error)
    return out.read_bytes()


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "form"), [*(("chain", form) for form in FORMS), *((n, "auto") for n in MODELS)])
def test_the_file_is_the_same(name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(MODELS[name](), source)
    whole = lowered(source, tmp_path / "out.onnx", lowering=form)
    everything_is_large(monkeypatch)
    assert one_file.parse(source) is not None
    assert lowered(source, tmp_path / "out.onnx", lowering=form) == whole


@pytest.mark.parametrize("policy", ["auto", "always"])
def test_where_tensors_go(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own file is no data file."""
    everything_is_large(monkeypatch)
    onnx.save(MODEL, tmp_path / "in.onnx")
    rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=0, external_data=policy)
    data = {"out.onnx.data"} if policy == "always" else set()
    assert {path.name for path in tmp_path.iterdir()} == {"in.onnx", "out.onnx", *data}


def test_nothing_large_is_parsed_or_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By any process: what models run from are small files, and data files that onnxruntime maps."""
    everything_is_large(monkeypatch, 1000)
    sizes: list[int] = []
    parse, load, run = one_file.parse, onnx.load, Runner.run

    def parsing(path: Path) -> Any:
        parsed = parse(path)
        sizes.append(0 if parsed is None else parsed[0].ByteSize())
        return parsed

    def loading(path: Path, *args: Any, **options: Any) -> onnx.ModelProto:
        sizes.append(Path(path).stat().st_size)
        return load(path, *args, **options)

    def running(runner: Runner, session: Session, *args: Any, **options: Any) -> Any:
        sizes.append(session.model.stat().st_size)
        return run(runner, session, *args, **options)

    onnx.save(MODEL, source := tmp_path / "in.onnx")
    monkeypatch.setattr(onnx, "load", loading)
    monkeypatch.setattr(Runner, "run", running)
    monkeypatch.setattr(one_file, "parse", parsing)
    assert rl.lower_file(source, tmp_path / "out.onnx", verify=1).verification
    assert len(sizes) >= 5
    assert max(sizes) < source.stat().st_size / 4
    assert recurrent_left(load(tmp_path / "out.onnx")) == []


def test_the_model_to_run_means_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything_is_large(monkeypatch, 1000)
    source, path = tmp_path / "model.onnx", tmp_path / "small.onnx"
    onnx.save(MODEL, source)
    parsed = one_file.parse(source)
    assert parsed is not None
    one_file.move_out(parsed[0], source, path)
    read = onnx.load(path)
    for tensor, before in zip(read.graph.initializer, MODEL.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), numpy_helper.to_array(before))
    for model in (read, expected := onnx.load(source)):
        del model.graph.initializer[:]
    assert read == expected
    entries = [e for t in parsed[0].graph.initializer for e in t.external_data]
    offsets = [int(entry.value) for entry in entries if entry.key == "offset"]
    assert len(offsets) > 3
    assert all(offset % 64 == 0 for offset in offsets)


SERIALIZED = MODEL.SerializeToString()


def tensor_with(**fields: Any) -> bytes:
    """The model with a tensor that is not what its bytes are."""
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    tensor = next(t for t in model.graph.initializer if t.name == "R0")
    for name, value in fields.items():
        getattr(tensor, name).extend(value) if isinstance(value, list) else setattr(tensor, name, value)
    data: bytes = model.SerializeToString()
    return data


DAMAGED = {
    "cut off": SERIALIZED[: len(SERIALIZED) // 2],
    "no model": b"\xff" * 1000,
    "a long number": b"\x08" + b"\x80" * 200_000,
    "no graph": onnx.ModelProto(ir_version=8, producer_name="x" * 100).SerializeToString(),
    "too few bytes": tensor_with(raw_data=b"\0" * 4000),
    "negative sizes": tensor_with(dims=[-1, -1]),
    "huge sizes": tensor_with(dims=[2**62, 2**62]),
    "no type": tensor_with(data_type=0),
    "an unknown type": tensor_with(data_type=99),
    "text": tensor_with(data_type=8),
    "numbers twice": tensor_with(float_data=[1.0]),
    "a location": tensor_with(data_location=1),
    "an entry": tensor_with(external_data=[onnx.StringStringEntryProto(key="location", value="x")]),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("name", DAMAGED)
def test_damage_has_the_same_outcome(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the file is parsed whole."""
    source = tmp_path / "model.onnx"
    source.write_bytes(DAMAGED[name])
    whole = lowered(source, tmp_path / "out.onnx")
    everything_is_large(monkeypatch, 1000)
    assert lowered(source, tmp_path / "out.onnx") == whole


def test_fields_that_come_twice_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As protobuf merges them: this file has each node twice."""
    source = tmp_path / "model.onnx"
    source.write_bytes(SERIALIZED + SERIALIZED)
    everything_is_large(monkeypatch, 1000)
    parsed = one_file.parse(source)
    assert parsed is not None
    assert [len(field) for field in (parsed[0].graph.node, parsed[0].graph.initializer)] == [
        2 * len(field) for field in (MODEL.graph.node, MODEL.graph.initializer)
    ]


def test_a_model_that_onnx_loaded_with_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx declares that its tensors are inside."""
    model = onnx.ModelProto.FromString(SERIALIZED)
    for tensor in model.graph.initializer:
        tensor.data_location = TensorProto.DEFAULT
    onnx.save(model, tmp_path / "model.onnx")
    everything_is_large(monkeypatch, 1000)
    parsed = one_file.parse(tmp_path / "model.onnx")
    assert parsed is not None
    assert parsed[0].ByteSize() < 20_000


def test_a_file_that_is_not_mostly_tensors_is_parsed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(MODEL, source)
    monkeypatch.setattr(one_file, "LARGE", 1)
    monkeypatch.setattr(one_file, "TENSOR_BYTES", 120_000)
    assert one_file.parse(source) is None


def test_external_data_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything_is_large(monkeypatch, 1000)
    source = tmp_path / "model.onnx"
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)  # which saving changes
    onnx.save(model, source, save_as_external_data=True, location="data", size_threshold=1000)
    assert one_file.parse(source) is None


def test_a_file_cannot_refer_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what parses it does: a location that a file has is none that stands for it."""
    everything_is_large(monkeypatch, 1000)
    model = onnx.ModelProto.FromString(SERIALIZED)
    second = model.graph.initializer[1]
    second.ClearField("raw_data")
    second.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "", "offset": 0, "length": 4}.items():
        second.external_data.add(key=key, value=str(value))
    onnx.save(model, tmp_path / "in.onnx")
    with pytest.raises(rl.ModelFileError):
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx")


def test_models_in_memory_and_in_files_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything_is_large(monkeypatch, 1000)
    onnx.save(MODEL, tmp_path / "model.onnx")
    before = MODEL.SerializeToString()
    assert rl.verify(tmp_path / "model.onnx", rl.lower(MODEL), runs=1)
    assert MODEL.SerializeToString() == before


def test_sizes_of_a_large_model_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the comparison, its tensors move to a data file; sizes stay in the model."""
    everything_is_large(monkeypatch)
    names = ", ".join(f"v{n}" for n in range(40))
    onnx.save(
        parse(
            f"""g (float[40, 1, 4] X) => (float[1, 1, 4] v3) <float[1, 16, 4] W = {{}}, float[1, 16, 4] R = {{}},
            int64[1] axis = {{1}}, int64[40] sizes = {{{", ".join(["1"] * 40)}}}> {{
            Y = LSTM <hidden_size = 4> (X, W, R)  y = Squeeze (Y, axis)  {names} = Split (y, sizes) }}"""
        ),
        tmp_path / "in.onnx",
    )
    report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", verify=1)
    assert report.verification is not None
    assert report.verification.whole, report.verification.reason
    assert rl.verify(tmp_path / "in.onnx", tmp_path / "out.onnx", runs=1).whole
