"""Whole networks, of real exporters and like them, as streams: right at every length, and after a reset."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from gtcrn import gtcrn
from onnx import numpy_helper
from paths import MODELS, ROOT
from stream_models import (
    CHUNKINGS,
    chunked,
    expected_of,
    hosted,
    int64_at_run_time,
    plan_of,
    random,
    streamed,
    whole,
)
from stream_nets import enhancer, keras_batch_first, keyword_spotter, language_model
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.facts.operators import OF_MICROSOFT, OPERATORS

EXPORTED = MODELS / "exported"
FOLDER = MODELS / "streams"
MANIFEST = FOLDER / "manifest.jsonl"
stored = [
    pytest.mark.shared,
    pytest.mark.skipif(not MANIFEST.exists(), reason="the stored models are not there"),
]
Net = tuple[onnx.ModelProto, Arrays]


def exported(file: str, name: str, width: int) -> Callable[[], Net]:
    return lambda: (onnx.load(EXPORTED / file), {name: random((2, 23, width), 8)})


GTCRN = [f"GRU_{n}_h" for n in (41, 69, 97, 127, 130, 157, 160, 186, 215, 244)]
GTCRN += [f"Pad_{n}_x" for n in (34, 62, 90, 179, 208, 237)]
NETS: list[tuple[Callable[[], Net], Any, str]] = [
    (keyword_spotter, "time", "gru_h p_x"),
    (language_model, "time", "h0 c0"),
    (keras_batch_first, "time", "lstm_h lstm_c gru_h"),
    (lambda: keras_batch_first("23"), {"inputs:1": None}, "lstm_h lstm_c gru_h"),
    (enhancer, "time", "inter_h p_x q_x up_x"),
    (gtcrn, "time", " ".join(GTCRN)),
]
STORED: list[tuple[Callable[[], Net], Any, str]] = [
    (exported("nets/nsnet2_op12.onnx", "logspec", 161), "t", "g_GRU_h g_GRU_1_h"),
    (exported("nets/rnnoise_op15.onnx", "feat", 42), "t", "v_GRU_h n_GRU_h g_GRU_h"),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("make", "axis", "states"), [*NETS, *(pytest.param(*net, marks=stored) for net in STORED)])
def test_chunks_give_what_the_whole_gives(make: Callable[[], Net], axis: Any, states: str) -> None:
    """In each form, with any number of frames, and in a straight line for one."""
    model, feed = make()
    expected = whole(model, feed)
    one = dict.fromkeys(axis if isinstance(axis, dict) else [axis], 1)
    for to, frames in (("keep", axis), ("auto", axis), ("auto", one)):
        stepped = streamed(model, frames, to)
        assert " ".join(s["input"].removeprefix("past_") for s in plan_of(stepped)["states"]) == states
        stream = rl.Stream(stepped.SerializeToString())
        for sizes in CHUNKINGS if frames == axis else ([1],):
            for name, array in hosted(stream, feed, sizes).items():
                np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=f"{name} {sizes}")
    # The GRU over the frequencies of a frame stays a loop over these, whose number is known.
    loops = {n.op_type for n in stepped.graph.node} & {"Scan", "Loop", "If", "GRU", "LSTM"}
    assert loops <= ({"Scan"} if make in (enhancer, gtcrn) else set())


ROUNDED_LSTM = EXPORTED / "derived" / "dtln_stage1_op11_dynquant_i8.onnx"


@pytest.mark.skipif(not ROUNDED_LSTM.exists(), reason="the stored models are not there")
def test_a_rounded_lstm_is_refused_with_the_reason() -> None:
    with pytest.raises(rl.UnsupportedError, match="rounds all frames of a sequence with one scale"):
        streamed(onnx.load(ROUNDED_LSTM), "mag:1")


DOCUMENT = ROOT / "docs" / "streaming.md"
REFERENCE = DOCUMENT.with_name("streaming-reference.md")


def test_the_recipe_for_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feed = keras_batch_first()
    text = DOCUMENT.read_text(encoding="utf-8")
    code = text.split("<!-- onnxruntime -->\n```python\n")[1].split("```")[0]
    onnx.save(rl.lower(model, stream="time=1", dims={"batch": 2}), tmp_path / "onnxruntime_step.onnx")
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", feed["inputs"])
    held: dict[str, Any] = {}
    exec(code.replace('outputs["Y"]', 'outputs["outputs"]'), held)
    np.testing.assert_allclose(held["Y"], whole(model, feed)["outputs"], atol=1e-5)


def test_the_document_lists_the_operators_that_are_known() -> None:
    rows = [*OPERATORS.items(), *OF_MICROSOFT.items()]
    known = {name for name, row in rows if row.axes and not row.elementwise and not name.startswith("Reduce")}
    known |= {"Flatten", "Pad", *LAYOUT, *OF_MICROSOFT}
    words = set(
        re.findall(
            r"\b[A-Z]\w+\b",
            REFERENCE.read_text(encoding="utf-8").split("\nThese operators are known:")[1],
        )
    )
    assert words == known


LAYOUT = {"Cast", "Clip", "Dropout", "Expand", "Identity", "OneHot", "QuantizeLinear", "DequantizeLinear", "Resize"}
LAYOUT |= {"Tile", "Transpose", "Upsample", "Where", "BiasGelu", "FastGelu", "Gelu", "QuickGelu"}
"""Element-wise operators and the like that are not obvious."""


# Stored copies of published nets

STORED_NETS: dict[str, dict[str, Any]] = (
    {net["file"]: net for net in map(json.loads, MANIFEST.read_text(encoding="utf-8").splitlines())}
    if MANIFEST.exists()
    else {}
)


def of_class(*kinds: str) -> list[Any]:
    return [pytest.param(file, marks=stored) for file, net in STORED_NETS.items() if net["class"] in kinds]


STREAMS = of_class("must", "pool", "delay")


def given(model: onnx.ModelProto, axis: str, frames: int, seed: int) -> Arrays:
    """Random inputs; states and caches that the caller has start with zeros."""
    feed = {}
    for n, value in enumerate(model.graph.input):
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        shape = [frames if d == axis else 2 if isinstance(d, str) else d for d in dims]
        feed[value.name] = random(shape, seed + n) if axis in dims else np.zeros(shape, np.float32)
    return feed


def chunks(unit: int, frames: int) -> list[list[int]]:
    """Sizes of chunks: of one unit where that is quick, of several, ragged."""
    few = [[unit], [3 * unit, unit, 4 * unit]] if frames <= 50 * unit else [[16 * unit, 3 * unit, unit]]
    return [*few, [frames]]


@pytest.mark.few(1)
@pytest.mark.parametrize("file", thinned(STREAMS, 2))
def test_stored_nets_give_what_the_whole_gives_at_every_length(file: str) -> None:
    net, model = STORED_NETS[file], onnx.load(FOLDER / file)
    axis, unit, delay = net["axis"], net["frames"][0], net["delay"]
    anything = streamed(model, axis, delay=delay)
    fixed = {n: streamed(model, {axis: n}, delay=delay) for n in net["frames"] if n}
    assert max(plan_of(anything)["delay"].values(), default=0) == delay
    assert plan_of(anything)["unit"] == unit
    for n, length in enumerate((7, 19, 50, 210, 310, 1000)):
        frames = math.ceil(length / unit) * unit
        feed = given(model, axis, frames, n)
        expected = expected_of(plan_of(anything), model, feed)
        runs = [(anything, sizes) for sizes in chunks(unit, frames)]
        runs += [(stepped, [size]) for size, stepped in fixed.items() if frames % size == 0 and frames <= 210]
        for stepped, sizes in runs:
            plan = plan_of(stepped)
            got = chunked(stepped, feed, sizes)
            for name, array in got.items():
                np.testing.assert_allclose(array, expected[name], rtol=0, atol=2e-5, err_msg=f"{frames} {sizes}")
                rate = plan["rates"].get(name, "1")
                if plan["outputs"][name] is not None:
                    assert array.shape[plan["outputs"][name]] * eval(f"1/({rate})") == frames


@pytest.mark.few(2)
@pytest.mark.parametrize("file", thinned(STREAMS, 2))
def test_two_resets(file: str) -> None:
    net, model = STORED_NETS[file], onnx.load(FOLDER / file)
    stream = rl.Stream(streamed(model, net["axis"], "auto", net["delay"]).SerializeToString())
    unit = stream.plan.unit
    for seed in range(3):
        feed = given(model, net["axis"], 5 * unit, seed)
        expected = expected_of(stream.plan.to_dict(), model, feed)
        for name, array in hosted(stream, feed, [unit]).items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=2e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("file", thinned(STREAMS, 2))
def test_the_comparison_verifies_it(file: str) -> None:
    net, model = STORED_NETS[file], onnx.load(FOLDER / file)
    for frames in (None, net["frames"][-2]):
        result = rl.verify_stream(
            model, streamed(model, {net["axis"]: frames}, delay=net["delay"]), check=rl.Check(runs=1)
        )
        assert result, result.reason


@pytest.mark.few(4)
@pytest.mark.parametrize("file", STREAMS)
def test_a_chunk_that_does_not_fit_is_refused(file: str) -> None:
    net, model = STORED_NETS[file], onnx.load(FOLDER / file)
    unit = net["frames"][0]
    if unit == 1:
        return
    with pytest.raises(
        rl.UnsupportedError, match=f"the chunk size must be a multiple of {unit}; give {net['axis']}="
    ):
        streamed(model, {net["axis"]: unit + 1})
    stream = rl.Stream(streamed(model, net["axis"]).SerializeToString())
    with pytest.raises(rl.OptionError, match=f"has {unit + 1} frames on axis .; give a multiple of {unit}"):
        stream(given(model, net["axis"], unit + 1, 0))


@pytest.mark.few(2)
@pytest.mark.parametrize("file", of_class("trap", "never"))
def test_traps_are_refused(file: str) -> None:
    """One that pads to a multiple of 16 frames is a stream in calls of such a multiple, and in no others."""
    net, model = STORED_NETS[file], onnx.load(FOLDER / file)
    for frames in net["frames"]:
        if frames is None and file == "pad_to_16.dynamo.onnx":
            stepped = rl.lower(model, stream={net["axis"]: None})
            assert plan_of(stepped)["unit"] == 16
            assert rl.verify_stream(model, stepped, runs=1)
            continue
        with pytest.raises(rl.UnsupportedError):
            streamed(model, {net["axis"]: frames})


@pytest.mark.shared
def test_a_step_has_fewer_nodes_than_one_that_was_made_by_hand() -> None:
    """GTCRN, whose published exports are steps: the same layers, from the net for whole sequences."""
    model, feed = gtcrn()
    step = streamed(model, {"time": 1})
    expected = whole(model, feed)["enh"]
    np.testing.assert_allclose(chunked(step, feed, [1])["enh"], expected, rtol=0, atol=1e-5)
    path = MODELS / "github" / "Xiaobin-Rong__gtcrn" / "gtcrn_simple_v4.onnx"
    if not path.exists():
        pytest.skip("the stored models are not there")
    by_hand = onnx.load(path)
    for op_type in ("Conv", "ConvTranspose", "GRU", "PRelu"):
        assert sum(n.op_type == op_type for n in step.graph.node) == sum(
            n.op_type == op_type for n in by_hand.graph.node
        )
    assert len(step.graph.node) < len(by_hand.graph.node)


@pytest.mark.few(3)
@pytest.mark.parametrize("file", STREAMS)
def test_a_step_of_known_sizes_calculates_with_none(file: str) -> None:
    net = STORED_NETS[file]
    given: Any = {"stream": {net["axis"]: net["frames"][0]}, "delay": net["delay"], "dims": {"batch": 1}}
    step = rl.lower(onnx.load(FOLDER / file), target="tvm", **given)
    calculating = {"Shape", "Size", "Range", "ConstantOfShape", "Loop", "Scan"}
    assert not {n.op_type for n in step.graph.node} & calculating


def deep_filter(exporter: str, left: int, right: int) -> onnx.ModelProto:
    """The stored deep filter of five frames with other paddings over time."""
    model = onnx.load(FOLDER / f"deep_filter_unfold.{exporter}.onnx")
    if exporter == "legacy":
        (node,) = [n for n in model.graph.node if "/Constant_7_output_0" in n.output]
        held, numbers = node.attribute[0].t, [0, 0, left, right]
    else:
        (held,) = [i for i in model.graph.initializer if i.name == "val_78"]
        numbers = [0, 0, left, 0, 0, 0, right, 0]
    assert sum(numpy_helper.to_array(held)) == 4
    held.CopyFrom(numpy_helper.from_array(np.array(numbers), held.name))
    return model


@pytest.mark.few(1)
@pytest.mark.shared
@pytest.mark.skipif(not STORED_NETS, reason="the stored models are not there")
@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize(("left", "right"), [(2, 2), (0, 4)])
def test_a_deep_filter_looks_ahead(exporter: str, left: int, right: int) -> None:
    model = deep_filter(exporter, left, right)
    with pytest.raises(rl.UnsupportedError, match=f"Gather node .* looks {right} frames ahead, .*delay={right}"):
        streamed(model, "time")
    anything = streamed(model, "time", "auto", delay=right)
    fixed = streamed(model, {"time": 1}, "auto", delay=True)
    for stepped, sizes in ((anything, [1]), (anything, [5, 1, 3]), (fixed, [1])):
        assert plan_of(stepped)["delay"] == {"out": right}
        for frames in (7, 50):
            feed = given(model, "time", frames, frames)
            got = chunked(stepped, feed, sizes)["out"]  # the padding is at the input: exact to the end
            np.testing.assert_allclose(got, whole(model, feed)["out"], rtol=0, atol=2e-5)


@pytest.mark.exhaustive
@pytest.mark.shared
@pytest.mark.skipif(not STORED_NETS, reason="the stored models are not there")
def test_webgpu_gets_no_int64_at_run_time() -> None:
    counting = 0
    for (file,) in (parameter.values for parameter in STREAMS):
        net, model = STORED_NETS[file], onnx.load(FOLDER / file)
        dims = [d.dim_param for value in model.graph.input for d in value.type.tensor_type.shape.dim if d.dim_param]
        lowering: Any = {"target": "onnxruntime-webgpu", "dims": dict.fromkeys({*dims} - {net["axis"]}, 1)}
        step = rl.lower(model, stream={net["axis"]: net["frames"][0]}, delay=True, **lowering)
        counting += any(state["state"] == "t" for state in plan_of(step)["states"])
        assert not int64_at_run_time(step), file
    assert counting == 3
