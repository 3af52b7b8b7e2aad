"""What the metadata of a stream say is true, and enough for a host."""

import json

import numpy as np
import onnx
import pytest
from stream_models import KEY, chunked, hosted, over, plan_of, random, streamed, whole

import rnn_lowering as rl
from rnn_lowering.report.use import host_loop

ROWS = over(
    "float[time, batch, 3] X, int32[batch] lens, float[batch, 4] voice",
    "g = GRU <hidden_size = 4> (X, W, R, B, lens)  s = Squeeze (g, [1])  Y = Add (s, voice)",
)
"""Two inputs without frames: the lengths of rows, and what is the same in each call."""


def test_equal_first_frames_are_one_number() -> None:
    """A model of 400 bytes asks for a million frames of ones."""
    many = 1_000_000
    ones = f"o = ConstantOfShape <value = float[1] {{1.0}}> ([1, {many}, 1])  c = Concat <axis = 1> (o, X)"
    stepped = streamed(over("float[1, time, 1] X", f"{ones}  Y = Slice (c, [0], [-{many}], [1])"), "time")
    (state,) = plan_of(stepped)["states"]
    assert (state["shape"], state["initial"]) == ([1, many, 1], [[[1.0]]])
    assert stepped.ByteSize() < 5000


def test_first_frames_that_differ_along_one_axis_are_all_there() -> None:
    past = random((1, 2, 3), 3).repeat(2, 0)
    past[0, 1, 2] = np.nan
    past[1, 1, 2] = np.nan
    model = over(
        "float[2, time, 3] X", "c = Slice (X, [0], [-2], [1])  Y = Concat <axis = 1> (past, c)", {"past": past}
    )
    stepped, feed = streamed(model, "time"), {"X": random((2, 9, 3))}
    (state,) = plan_of(stepped)["states"]
    assert np.shape(state["initial"]) == (1, 2, 3)
    got = hosted(rl.Stream(stepped.SerializeToString()), feed, [4])["Y"]
    np.testing.assert_array_equal(got, whole(model, feed)["Y"])


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (
            "p = Pad (X, [0, 0, 0, 0, 0, 5000000])  Y = Slice (p, [5000000], far, [2])",
            "output 'Y' is 5000000 frames late",
        ),
        ("Y = Slice (X, [5000000], far, [2])", "output 'Y' is 5000000 frames late or short"),
        (
            "p = Pad (X, [0, 0, 300000000, 0, 0, 0])  Y = Slice (p, [0], [-300000000], [2])",
            "Pad node '-> p' in main graph: its state 'past_p_x' would have 300000000 numbers",
        ),
    ],
)
def test_what_no_host_can_keep_is_refused_before_it_is_written(nodes: str, said: str) -> None:
    with pytest.raises(rl.UnsupportedError) as caught:
        streamed(over("float[1, 1, time] X", nodes), "time", delay=True)
    assert said in str(caught.value)


def test_the_largest_delay_and_state_are_read_again() -> None:
    late = f"p = Pad (X, [0, 0, 0, 0, 0, {1 << 22}])  s = Slice (p, [{1 << 22}], far, [2])  Y = Add (X, s)"
    large = f"p = Pad (X, [0, 0, {1 << 28}, 0, 0, 0])  Y = Slice (p, [0], [-{1 << 28}], [2])"
    for nodes in (late, large):
        model = streamed(over("float[1, 1, time] X", nodes), "time", delay=True)
        assert rl.Stream(model.SerializeToString()).plan.inputs == {"X": 2}


def test_the_metadata_tell_lengths_from_what_is_the_same_in_each_call() -> None:
    plan = plan_of(streamed(ROWS, "time"))
    assert (plan["inputs"], plan["lengths"]) == ({"X": 0, "lens": None, "voice": None}, ["lens"])
    assert "lengths" not in plan_of(
        streamed(over("float[time, 2, 3] X", "Y = GRU <hidden_size = 4> (X, W, R)"), "time")
    )


def test_a_host_that_knows_only_the_metadata_runs_ragged_rows() -> None:
    lengths, x, voice = np.array([9, 4], np.int32), random((9, 2, 3)), random((2, 4), 1)
    expected = whole(ROWS, {"X": x, "lens": lengths, "voice": voice})["Y"]
    stream = rl.Stream(streamed(ROWS, "time").SerializeToString())
    plan, parts = stream.plan, []
    given = {"X": x, "lens": lengths, "voice": voice}
    for start in range(0, 9, 3):
        chunk = {
            name: np.clip(given[name] - start, 0, 3).astype(given[name].dtype)
            if name in plan.lengths
            else given[name]
            if axis is None
            else given[name].take(range(start, start + 3), axis)
            for name, axis in plan.inputs.items()
        }
        parts.append(stream(chunk)["Y"])
    np.testing.assert_allclose(np.concatenate(parts), expected, rtol=0, atol=1e-6)


def test_lengths_of_the_whole_sequence_are_refused_by_the_host() -> None:
    stream = rl.Stream(streamed(ROWS, "time").SerializeToString())
    given = {"X": random((3, 2, 3)), "lens": np.array([9, 4], np.int32), "voice": random((2, 4), 1)}
    with pytest.raises(rl.OptionError, match=r"'lens' has a length of 9 in a chunk of 3 frames; .* 0, 3\)"):
        stream(given)
    stream(given | {"lens": np.clip(given["lens"] - 0, 0, 3).astype(np.int32)})  # the hint


def test_the_calls_of_a_calibration_have_their_own_lengths() -> None:
    step = streamed(ROWS, "time=2", "auto")
    sequence = {"X": random((6, 2, 3)), "lens": np.array([6, 3], np.int32), "voice": random((2, 4), 1)}
    calibration = rl.Calibration(step, [sequence])
    calls = iter(calibration.get_next, None)
    assert [call["lens"].tolist() for call in calls] == [[2, 2], [2, 1], [2, 0]]


def test_the_printed_loop_says_which_inputs_are_lengths() -> None:
    text = host_loop(rl.Stream(streamed(ROWS, "time").SerializeToString()).plan, "onnxruntime")
    assert "    lens = the length of each row in this chunk" in text
    assert "the same in each call: voice" in text


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("head", "nodes", "shortest"),
    [
        ("float[1, time, 2] X", "c = Slice (X, [0], [-3], [1])  Y = Concat <axis = 1> (zeros, c)", 3),
        ("float[1, time, 2] X", "c = Slice (X, [0], [-1], [1])  Y = Pad (c, [0, 1, 0, 0, 0, 0])", 1),
        ("float[1, 2, time] X", "Y = Conv <pads = [2, 0]> (X, K[3, 2, 3])", 1),
        ("float[1, 2, time] X", "Y = Conv (X, K[3, 2, 3])", 3),
        ("float[1, 2, time] X", "a = Conv (X, K[3, 2, 3])  Y = Conv (a, L[3, 3, 4])", 6),
        (
            "float[1, 2, time] X",
            "c = Slice (X, [0], [-5], [2])  p = Pad (c, [0, 0, 5, 0, 0, 0])"
            "  Y = Conv <strides = [4]> (p, K[3, 2, 4])",
            8,
        ),
    ],
)
def test_the_shortest_sequence_is_that_of_the_original(head: str, nodes: str, shortest: int) -> None:
    """Of a shorter one the original returns another number of frames, or nothing."""
    model = over(head, nodes, {"zeros": np.zeros((1, 3, 2), np.float32)})
    stepped = streamed(model, "time", delay=True)
    plan = plan_of(stepped)
    assert plan.get("shortest", plan["unit"]) == shortest
    axis = plan["inputs"]["X"]
    for frames in range(shortest, shortest + 4 * plan["unit"], plan["unit"]):
        x = random((1, frames, 2) if axis == 1 else (1, 2, frames))
        expected, got = whole(model, {"X": x})["Y"], chunked(stepped, {"X": x}, [plan["unit"]])["Y"]
        np.testing.assert_allclose(got[..., : expected.shape[-1]], expected, rtol=0, atol=1e-6)
        assert got.shape == expected.shape
    assert rl.verify_stream(model, stepped)


def test_a_long_cut_is_verified_on_sequences_that_are_long_enough() -> None:
    zeros = {"zeros": np.zeros((1, 400, 2), np.float32)}
    nodes = "c = Slice (X, [0], [-400], [1])  Y = Concat <axis = 1> (zeros, c)"
    model = over("float[1, time, 2] X", nodes, zeros)
    for stream in ("time", "time=7"):
        check = rl.verify_stream(model, streamed(model, stream))
        assert check.status == "verified", str(check)
    text = host_loop(rl.Stream(streamed(model, "time").SerializeToString()).plan, "")
    assert "a sequence has 400 frames or more" in text


def test_metadata_with_other_lengths_are_damaged() -> None:
    model = streamed(ROWS, "time")
    for changed in ({"lengths": ["X"]}, {"lengths": ["none"]}, {"lengths": 3}, {"shortest": 0}, {"shortest": "2"}):
        (held,) = [entry for entry in model.metadata_props if entry.key == KEY]
        damaged = onnx.ModelProto()
        damaged.CopyFrom(model)
        (entry,) = [each for each in damaged.metadata_props if each.key == KEY]
        entry.value = json.dumps(json.loads(held.value) | changed)
        with pytest.raises(rl.ModelFileError, match="damaged"):
            rl.Stream(damaged.SerializeToString())
