"""Stored copies of published nets: those that can be streams are, at every length; traps are refused."""

import json
import math
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from gtcrn import gtcrn
from onnx import numpy_helper
from paths import MODELS
from stream_models import chunked, expected_of, int64_at_run_time, plan_of, random, streamed, whole
from thinning import thinned

import rnn_lowering as rl

FOLDER = MODELS / "streams"
MANIFEST = FOLDER / "manifest.jsonl"
NETS: dict[str, dict[str, Any]] = (
    {net["file"]: net for net in map(json.loads, MANIFEST.read_text(encoding="utf-8").splitlines())}
    if MANIFEST.exists()
    else {}
)
LENGTHS = (7, 19, 50, 210, 310, 1000)

pytestmark = [pytest.mark.shared, pytest.mark.skipif(not NETS, reason="the stored models are not there")]


def of_class(*kinds: str) -> list[str]:
    return [file for file, net in NETS.items() if net["class"] in kinds]


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


@pytest.mark.parametrize("file", thinned(STREAMS, 2))
def test_chunks_give_what_the_whole_gives(file: str) -> None:
    net, model = NETS[file], onnx.load(FOLDER / file)
    axis, unit = net["axis"], net["frames"][0]
    delay = net["delay"]
    anything = streamed(model, axis, delay=delay)
    fixed = {n: streamed(model, {axis: n}, delay=delay) for n in net["frames"] if n}
    assert max(plan_of(anything)["delay"].values(), default=0) == delay
    assert plan_of(anything)["unit"] == unit
    for n, length in enumerate(LENGTHS):
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


@pytest.mark.parametrize("file", thinned(STREAMS, 2))
def test_two_resets(file: str) -> None:
    net, model = NETS[file], onnx.load(FOLDER / file)
    stream = rl.Stream(streamed(model, net["axis"], "auto", net["delay"]).SerializeToString())
    unit = stream.plan.unit
    for seed in range(3):
        feed = given(model, net["axis"], 5 * unit, seed)
        expected = expected_of(stream.plan.to_dict(), model, feed)
        parts = []
        for start in range(0, 5 * unit, unit):
            axes = stream.plan.inputs.items()
            parts.append(
                stream({k: feed[k] if a is None else feed[k].take(range(start, start + unit), a) for k, a in axes})
            )
        parts += [flushed] if (flushed := stream.flush()) else []
        for name, a in stream.plan.outputs.items():
            array = parts[-1][name] if a is None else np.concatenate([part[name] for part in parts], a)
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=2e-5)
        stream.reset()


@pytest.mark.parametrize("file", STREAMS)
def test_the_comparison_verifies_it(file: str) -> None:
    net, model = NETS[file], onnx.load(FOLDER / file)
    for frames in (None, net["frames"][-2]):
        result = rl.verify_stream(
            model, streamed(model, {net["axis"]: frames}, delay=net["delay"]), check=rl.Check(runs=1)
        )
        assert result, result.reason


@pytest.mark.parametrize("file", STREAMS)
def test_a_chunk_that_does_not_fit_is_refused(file: str) -> None:
    net, model = NETS[file], onnx.load(FOLDER / file)
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


@pytest.mark.parametrize("file", of_class("trap", "never"))
def test_traps_are_refused(file: str) -> None:
    net, model = NETS[file], onnx.load(FOLDER / file)
    for frames in net["frames"]:
        with pytest.raises(rl.UnsupportedError):
            streamed(model, {net["axis"]: frames})


def test_a_step_has_fewer_nodes_than_one_that_was_made_by_hand() -> None:
    """GTCRN, whose published exports are steps: the same layers, from the net for whole sequences."""
    model, feed = gtcrn()
    step = streamed(model, {"time": 1})
    expected = whole(model, feed)["enh"]
    np.testing.assert_allclose(chunked(step, feed, [1])["enh"], expected, rtol=0, atol=1e-5)
    by_hand = onnx.load(MODELS / "github" / "Xiaobin-Rong__gtcrn" / "gtcrn_simple_v4.onnx")
    for op_type in ("Conv", "ConvTranspose", "GRU", "PRelu"):
        assert sum(n.op_type == op_type for n in step.graph.node) == sum(
            n.op_type == op_type for n in by_hand.graph.node
        )
    assert len(step.graph.node) < len(by_hand.graph.node)


@pytest.mark.parametrize("file", STREAMS)
def test_a_step_of_known_sizes_calculates_with_none(file: str) -> None:
    net = NETS[file]
    step = rl.lower(
        onnx.load(FOLDER / file),
        stream={net["axis"]: net["frames"][0]},
        dims={"batch": 1},
        target="tvm",
        delay=net["delay"],
    )
    assert {n.op_type for n in step.graph.node} & {
        "Shape",
        "Size",
        "Range",
        "ConstantOfShape",
        "Loop",
        "Scan",
    } == set()


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


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
@pytest.mark.parametrize(("left", "right"), [(2, 2), (0, 4)])
def test_a_deep_filter_looks_ahead(exporter: str, left: int, right: int) -> None:
    model = deep_filter(exporter, left, right)
    with pytest.raises(rl.UnsupportedError, match=f"Gather node .* looks {right} frames ahead, .*--delay {right}"):
        streamed(model, "time")
    anything = streamed(model, "time", "auto", delay=right)
    fixed = streamed(model, {"time": 1}, "auto", delay=True)
    for stepped, sizes in ((anything, [1]), (anything, [5, 1, 3]), (fixed, [1])):
        assert plan_of(stepped)["delay"] == {"out": right}
        for frames in (7, 50):
            feed = given(model, "time", frames, frames)
            got = chunked(stepped, feed, sizes)["out"]  # the padding is at the input: exact to the end
            np.testing.assert_allclose(got, whole(model, feed)["out"], rtol=0, atol=2e-5)


def test_webgpu_gets_no_int64_at_run_time() -> None:
    counting = 0
    for file in STREAMS:
        net, model = NETS[file], onnx.load(FOLDER / file)
        dims = [d.dim_param for value in model.graph.input for d in value.type.tensor_type.shape.dim if d.dim_param]
        lowering: Any = {"target": "onnxruntime-webgpu", "dims": dict.fromkeys({*dims} - {net["axis"]}, 1)}
        step = rl.lower(model, stream={net["axis"]: net["frames"][0]}, delay=True, **lowering)
        counting += any(state["state"] == "t" for state in plan_of(step)["states"])
        assert not int64_at_run_time(step), file
    assert counting == 3
