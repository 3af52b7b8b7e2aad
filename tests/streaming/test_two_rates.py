"""Streams with two inputs, of which one has several frames for each frame of the other: samples beside features."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import Command, saved
from stream_models import net, plan_of, random, whole

import rnn_lowering as rl

Arrays = dict[str, np.ndarray[Any, Any]]

HEAD = "g (float[1, 1, samples] mic, float[1, features, 4] feat) => (float[1, n, k] y)"
WEIGHTS = {
    "K": random([3, 1, 8], 1, 0.3),
    "C": random([3, 1, 12], 2, 0.3),
    "W": random([1, 20, 7], 3, 0.4),
    "R": random([1, 20, 5], 4, 0.4),
    "P": random([5, 8], 5, 0.3),
}
LAYER = """t = Transpose <perm = [0, 2, 1]> (c)  j = Concat <axis = 2> (t, feat)
    x = Transpose <perm = [1, 0, 2]> (j)  h = LSTM <hidden_size = 5> (x, W, R)
    s = Squeeze (h, [1])  y = Transpose <perm = [1, 0, 2]> (s)"""
CAUSAL = f"p = Pad (mic, [0, 0, 4, 0, 0, 0])  c = Conv <strides = [4]> (p, K)  {LAYER}"
AHEAD = f"p = Pad (mic, [0, 0, 4, 0, 0, 4])  c = Conv <strides = [4]> (p, C)  {LAYER}"
SAMPLES = f"""p = Pad (mic, [0, 0, 4, 0, 0, 0])  c = Conv <strides = [4]> (p, K)  {LAYER.replace(" y =", " z =")}
    w = MatMul (z, P)  v = Slice (w, [0], [4], [2])  y = Reshape (v, [1, -1, 1])"""
NETS = {"causal": CAUSAL, "one frame ahead": AHEAD, "samples again": SAMPLES}
"""A strided convolution of the samples meets the features, 4 samples for each."""


def model_of(name: str) -> onnx.ModelProto:
    return net(f"{HEAD} {{ {NETS[name]} }}", WEIGHTS)


def feed_of(frames: int) -> Arrays:
    return {"mic": random([1, 1, 4 * frames], frames), "feat": random([1, frames, 4], frames + 1)}


def called(model: onnx.ModelProto, feed: Arrays, frames: int) -> Arrays:
    """What a host gets that gives 4 samples with each row of features."""
    stream, parts = rl.Stream(model), []
    for start in range(0, feed["feat"].shape[1], frames):
        mic = feed["mic"][:, :, 4 * start : 4 * (start + frames)]
        parts.append(stream({"mic": mic, "feat": feed["feat"][:, start : start + frames]}))
    parts.append(stream.flush())
    return {"y": np.concatenate([part["y"] for part in parts if "y" in part], 1)}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("to", ["keep", "auto"])
def test_chunks_give_what_the_whole_gives(name: str, frames: int, to: Any) -> None:
    model = model_of(name)
    stream = rl.lower(
        model, to, stream={"samples": 4 * frames, "features": frames}, delay=name == "one frame ahead"
    )
    plan = plan_of(stream)
    assert (plan["frames"], plan["rates"]["mic"], plan["rates"].get("feat", "1")) == (frames, "4", "1")
    for count in (frames, 3 * frames, 7 * frames):
        feed = feed_of(count)
        np.testing.assert_allclose(called(stream, feed, frames)["y"], whole(model, feed)["y"], rtol=0, atol=1e-5)


INNER = f"e = Conv <pads = [1, 1]> (mic, E, bias)  c = Conv <strides = [4], pads = [4, 4]> (e, C)  {LAYER}"
"""A padding behind samples that have a bias: the end of a sequence is that of one with zeros behind it."""


@pytest.mark.few(1)
@pytest.mark.parametrize("nodes", [*NETS.values(), INNER])
def test_the_comparison_agrees(nodes: str) -> None:
    weights = {**WEIGHTS, "E": random([1, 1, 3], 6), "bias": np.ones(1, np.float32)}
    model = net(f"{HEAD} {{ {nodes} }}", weights)
    stream = rl.lower(model, stream={"samples": 8, "features": 2}, delay=True)
    assert rl.verify_stream(model, stream, runs=1).status == "verified"


@pytest.mark.few(1)
@pytest.mark.parametrize("options", ["--stream samples=8,features=2", "--stream mic:2=8 --stream feat:1=2"])
def test_the_command_verifies_it_and_says_how_it_is_called(
    options: str, rnn_lower: Command, tmp_path: Path
) -> None:
    source = saved(tmp_path / "net.onnx", model_of("causal"))
    outcome = rnn_lower(source, tmp_path / "out.onnx", *options.split(), "--require-verified")
    assert outcome.code == 0, outcome.err
    assert "for each chunk of 2 frames (axis 2 of mic, 8 long, axis 1 of feat)" in outcome.out
    assert "verified (onnxruntime, in chunks of 2 frames" in outcome.out


def test_exported_sizes_in_proportion() -> None:
    """The exporter fixed 40 samples and 10 rows."""
    model = model_of("causal")
    for value, axis, size in zip(model.graph.input, (2, 1), (40, 10), strict=True):
        value.type.tensor_type.shape.dim[axis].dim_value = size
    stream = rl.lower(model, stream={"mic:2": 4, "feat:1": 1})
    feed = feed_of(10)
    np.testing.assert_allclose(called(stream, feed, 1)["y"], whole(model, feed)["y"], rtol=0, atol=1e-5)


def test_a_number_of_samples_that_the_exporter_wrote_is_opened() -> None:
    """40 samples beside 10 rows; a Reshape has the 40."""
    model, long = (
        net(
            f"""g (float[1, 1, {4 * rows}] mic, float[1, {rows}, 4] feat) => (float[1, {4 * rows}] y,
                float[1, {rows}, 4] z)
            {{ r = Reshape (mic, [1, {4 * rows}])  y = CumSum (r, 1)  z = CumSum (feat, 1) }}"""
        )
        for rows in (10, 29)
    )
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(model, stream={"mic:2": 4, "feat:1": 1})
    opened = {"mic:2": "frames_times_4", "feat:1": "frames"}
    assert f'open_dims={json.dumps(opened)}, also="LONG.onnx"' in str(caught.value)
    stream = rl.lower(model, stream={"mic:2": 4, "feat:1": 1}, open_dims=opened, also=[long])
    assert rl.verify_stream(model, stream, runs=1).status == "verified"
    assert rl.verify_stream(long, stream, runs=1).status == "verified"


def test_a_frame_of_the_stream_is_the_greatest_common_divisor() -> None:
    """3 samples for 2 rows: they never meet."""
    model = net(
        """g (float[1, 1, samples] mic, float[1, rows, 4] feat) => (float[1, n, 5] y, float[1, 1, m] z)
        { x = Transpose <perm = [1, 0, 2]> (feat)  h = LSTM <hidden_size = 5> (x, W4, R)  s = Squeeze (h, [1])
          y = Transpose <perm = [1, 0, 2]> (s)  z = CumSum (mic, 2) }""",
        {**WEIGHTS, "W4": random([1, 20, 4], 6, 0.4)},
    )
    stream = rl.lower(model, stream={"samples": 6, "rows": 4})
    plan = rl.Stream(stream).plan
    assert (plan.frames, plan.rates["mic"], plan.rates["feat"]) == (2, "3", "2")
    feed = {"mic": random([1, 1, 18]), "feat": random([1, 12, 4])}
    calls, parts = rl.Stream(stream), []
    for n in range(3):
        parts.append(
            calls({"mic": feed["mic"][..., 6 * n : 6 * n + 6], "feat": feed["feat"][:, 4 * n : 4 * n + 4]})
        )
    expected = whole(model, feed)
    for name, axis in (("y", 1), ("z", 2)):
        got = np.concatenate([part[name] for part in parts], axis)
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=1e-5)


ATTENTION = """c = Conv <strides = [4]> (mic, L)  u = Transpose <perm = [0, 2, 1]> (c)
    q = Concat <axis = 2> (u, feat)  k = Transpose <perm = [0, 2, 1]> (q)  s = MatMul (q, k)
    d = Shape (feat)  n = Gather (d, 1)  r = Range (0, n, 1)  i = Unsqueeze (r, [1])  j = Unsqueeze (r, [0])
    o = LessOrEqual (j, i)  m = Where (o, s, -1e9)  w = Softmax (m)  y = MatMul (w, q)"""


def test_the_longest_sequence_is_counted_in_frames_of_the_stream() -> None:
    """7 calls of 8 samples and 2 rows end at 14 frames."""
    model = net(f"{HEAD} {{ {ATTENTION} }}", {"L": random([3, 1, 4], 7)})
    stream = rl.lower(model, stream={"samples": 8, "features": 2}, max_frames=14)
    feed = feed_of(14)
    np.testing.assert_allclose(called(stream, feed, 2)["y"], whole(model, feed)["y"], rtol=0, atol=1e-5)
    with pytest.raises(rl.OptionError, match="a maximum of 15 frames is no multiple of the 2 frames of a call"):
        rl.lower(model, stream={"samples": 8, "features": 2}, max_frames=15)


@pytest.mark.filterwarnings("ignore:onnxruntime on this processor")
def test_a_stream_of_two_rates_is_calibrated() -> None:
    model = net(
        """g (float[1, 1, m] left, float[1, 1, n] right) => (float[k, 1, 5] y)
        { a = Conv <strides = [3]> (left, A)  b = Conv <strides = [2]> (right, D)  c = Concat <axis = 1> (a, b)
          x = Transpose <perm = [2, 0, 1]> (c)  h = LSTM <hidden_size = 5> (x, W, R)  y = Squeeze (h, [1]) }""",
        {"A": random([4, 1, 3], 8), "D": random([3, 1, 2], 9), "W": WEIGHTS["W"], "R": WEIGHTS["R"]},
    )
    stream = rl.lower(model, stream={"m": 3, "n": 2})
    feed = {"left": random([1, 1, 90], 1), "right": random([1, 1, 60], 2)}
    _, made = rl.quantize_stream(stream, [feed])
    assert made.snr["y"] > 20


# Faults


def test_the_comparison_finds_a_past_sample_that_is_not_carried(tmp_path: Path) -> None:
    model = model_of("causal")
    stream = rl.lower(model, stream={"samples": 4, "features": 1})
    onnx.save(model, tmp_path / "net.onnx")
    onnx.save(stream, tmp_path / "stream.onnx")
    assert rl.verify_stream(tmp_path / "net.onnx", tmp_path / "stream.onnx").status == "verified"
    join = next(node for node in stream.graph.node if "past_p_x" in node.input)
    join.input[list(join.input).index("past_p_x")] = "nothing"
    nothing = np.zeros([1, 1, 4], np.float32)
    stream.graph.initializer.append(onnx.numpy_helper.from_array(nothing, "nothing"))
    onnx.save(stream, tmp_path / "wrong.onnx")
    assert rl.verify_stream(tmp_path / "net.onnx", tmp_path / "wrong.onnx").status == "failed"


REFUSED: dict[str, Any] = {
    "joins values whose frames are not aligned": {"samples": 8, "features": 1},
    "different numbers of frames; give all the same number, or a number for each": {"samples": 4, "features": None},
    "input 'mic' has 4 and 8 frames in a call": {"samples": 4, "mic:2": 8, "features": 1},
}


@pytest.mark.parametrize("message", REFUSED)
def test_other_numbers_are_refused(message: str) -> None:
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(model_of("causal"), stream=REFUSED[message])
    assert message in str(caught.value)


POOLED = """a = AveragePool <kernel_shape = [3], strides = [3]> (left)
    b = AveragePool <kernel_shape = [2], strides = [2]> (right)  c = Add (a, b)  y = CumSum (c, 2)"""
SPLIT = "a = Slice (left, [0], far, [2], [4])  b = Add (a, right)  y = Add (b, left)"
FITTING = {
    "one for one": (POOLED, (1, 1), {"left:2": 3, "right:2": 2}),
    "of another proportion": (POOLED, (8, 6), {"left:2": 3, "right:2": 2}),
    "none fits": (SPLIT, (4, 1), None),
}


@pytest.mark.parametrize("name", FITTING)
def test_the_error_names_the_numbers_that_fit(name: str) -> None:
    nodes, (left, right), fitting = FITTING[name]
    far = {"far": np.array([2**63 - 1])} if "far" in nodes else {}
    model = net(f"g (float[1, 3, m] left, float[1, 3, n] right) => (float[1, 3, k] y) {{ {nodes} }}", far)
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(model, stream={"m": left, "n": right})
    if fitting is None:
        assert "give stream" not in str(caught.value)
    else:
        assert f"give stream={json.dumps(fitting)}" in str(caught.value)
        rl.lower(model, stream=fitting)


def test_an_input_without_a_number_is_named() -> None:
    with pytest.raises(rl.UnsupportedError) as caught:
        rl.lower(model_of("causal"), stream={"samples": 4})
    assert "'feat' has size features and meets the frames" in str(caught.value)
    assert "name it in stream too: 'feat:1'" in str(caught.value)


def test_a_call_of_too_few_frames_names_the_numbers_of_both() -> None:
    model = net(
        """g (float[1, 1, samples] mic, float[1, 3, features] feat) => (float[1, 3, n] y)
        { q = Pad (mic, [0, 0, 4, 0, 0, 0])  c = Conv <strides = [8]> (q, C)
           r = AveragePool <kernel_shape = [2], strides = [2]> (feat)  y = Add (c, r) }""",
        WEIGHTS,
    )
    with pytest.raises(rl.UnsupportedError, match=r"a multiple of 8 and 2; give samples=8 and features=2"):
        rl.lower(model, stream={"samples": 4, "features": 1})
    rl.lower(model, stream={"samples": 8, "features": 2})


def test_a_layer_behind_a_look_ahead_names_the_numbers_of_a_call_of_one_frame() -> None:
    with pytest.raises(rl.UnsupportedError, match=r'frame of that layer: stream=\{"samples": 4, "features": 1\}'):
        rl.lower(model_of("one frame ahead"), stream={"samples": 8, "features": 2}, delay=True, target="ncnn")


def test_sizes_and_inputs_out_of_proportion_are_refused(tmp_path: Path) -> None:
    model = model_of("causal")
    feed = {"mic": random([1, 1, 40]), "feat": random([1, 12, 4])}
    with pytest.raises(
        rl.OptionError, match=r"unlike numbers of frames: 'mic' 40 and 'feat' 12; give 4 and 1 for each"
    ):
        rl.lower_file(
            saved(tmp_path / "net.onnx", model),
            tmp_path / "out.onnx",
            stream={"samples": 4, "features": 1},
            feeds=[feed],
        )
    for value, axis, size in zip(model.graph.input, (2, 1), (40, 9), strict=True):
        value.type.tensor_type.shape.dim[axis].dim_value = size
    with pytest.raises(rl.UnsupportedError, match="40 and 9 frames, but must have them as 4 and 1"):
        rl.lower(model, stream={"mic:2": 4, "feat:1": 1})


@pytest.mark.parametrize("change", [{"frames": None}, {"rates": {"mic": "1/4"}}, {"rates": {"mic": "5"}}])
def test_damaged_metadata_are_refused(change: dict[str, Any]) -> None:
    stream = rl.lower(model_of("causal"), stream={"samples": 4, "features": 1})
    (entry,) = [each for each in stream.metadata_props if each.key == "rnn_lowering.stream"]
    entry.value = json.dumps(json.loads(entry.value) | change)
    with pytest.raises(rl.ModelFileError):
        rl.Stream(stream)


def test_metadata_without_the_frames_of_a_call_are_refused() -> None:
    stream = rl.lower(model_of("causal"), stream={"samples": 4, "features": 1})
    (entry,) = [each for each in stream.metadata_props if each.key == "rnn_lowering.stream"]
    with pytest.raises(rl.ModelFileError, match="unlike numbers of frames, but calls may have any"):
        rl.StreamPlan.from_json(json.dumps(json.loads(entry.value) | {"frames": None}))
