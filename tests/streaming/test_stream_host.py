"""rl.Stream: onnxruntime and the metadata drive a model; what is wrong is said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from paths import MODELS
from running import session
from stream_models import KEY, net, plan_of, random, recurrent, streamed, whole

import rnn_lowering as rl

NET = net(
    """g (float[time, batch, 3] X) => (float[t, d, n, h] Y, float[d2, n2, h2] last) {
        Y, last = GRU <hidden_size = 4> (X, W, R, B, , start) }""",
    {**recurrent("GRU", 3, 4), "start": random((1, 1, 4), 2).repeat(2, 1)},
)
FIXED = net(
    """g (float[time, batch, 3] X) => (float[t, d, n, h] Y) { Y = LSTM <hidden_size = 4> (X, W, R, B) }""",
    recurrent("LSTM", 3, 4),
)
X = random((6, 2, 3))


def test_a_stream_gives_what_the_whole_gives_and_starts_anew_after_reset(tmp_path: Path) -> None:
    path = tmp_path / "chunk.onnx"
    onnx.save(streamed(NET, "time"), path)
    expected = whole(NET, {"X": X})
    stream = rl.Stream(path)
    for _ in range(2):
        first, second = stream({"X": X[:2]}), stream({"X": X[2:]})
        assert first.keys() == {"Y", "last"}
        np.testing.assert_allclose(np.concatenate([first["Y"], second["Y"]]), expected["Y"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(second["last"], expected["last"], rtol=0, atol=1e-6)
        stream.reset()


@pytest.mark.parametrize("kind", ["bytes", "session", "path"])
def test_a_stream_is_made_from(kind: str, tmp_path: Path) -> None:
    model = streamed(NET, "time")
    onnx.save(model, tmp_path / "chunk.onnx")
    given: Any = {
        "bytes": model.SerializeToString(),
        "session": session(model),
        "path": str(tmp_path / "chunk.onnx"),
    }
    assert rl.Stream(given[kind])({"X": X})["Y"].shape == (6, 1, 2, 4)


def test_a_stream_starts_from_given_states() -> None:
    stream = rl.Stream(streamed(FIXED, "time").SerializeToString())
    stream({"X": X[:3]})
    held = dict(stream.states)
    expected = stream({"X": X[3:]})["Y"]
    stream.reset(held)
    np.testing.assert_array_equal(stream({"X": X[3:]})["Y"], expected)
    stream.reset()
    assert stream.states == {}


def test_the_batch_size_may_change_after_reset() -> None:
    stream = rl.Stream(streamed(FIXED, "time").SerializeToString())
    stream({"X": X})
    with pytest.raises(rl.OptionError, match=r"has shape \[1, 2, 4\], but these inputs need \[1, 1, 4\]; reset"):
        stream({"X": X[:, :1]})
    stream.reset()
    assert stream({"X": X[:, :1]})["Y"].shape == (6, 1, 1, 4)


WRONG = {
    r"input 'X' has shape \[4, 2, 3\], expected \[2, batch, 3\], with the frames of the chunk on axis 0": {
        "X": X[:4]
    },
    r"input 'X' has shape \[2, 3\], expected \[2, batch, 3\]": {"X": X[:2, 0]},
    "got the inputs none, expected X": {},
    "got the inputs X, past_Y_h, expected X": {"X": X[:2], "past_Y_h": X},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_inputs_get_an_error_that_says_what_was_expected(message: str) -> None:
    stream = rl.Stream(streamed(FIXED, "time=2").SerializeToString())
    with pytest.raises(rl.OptionError, match=message):
        stream(WRONG[message])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (X.astype(np.float64), r"input 'X' has type float64, expected float32; use \.astype\(\"float32\"\)"),
        (X.astype(np.int64), "input 'X' has type int64, expected float32"),
        ([["a"]], "input 'X' has type <U1, expected float32"),
        ([[1.0], [2.0, 3.0]], "input 'X' is not an array of numbers"),
        (np.ma.masked_array(X, X > 0), "input 'X' has masked elements; fill them"),
    ],
)
def test_what_onnxruntime_does_not_take_as_it_is_meant_is_refused(given: Any, message: str) -> None:
    stream = rl.Stream(streamed(FIXED, "time").SerializeToString())
    with pytest.raises(rl.OptionError, match=message):
        stream({"X": given})


def test_arrays_count_by_their_numbers_whatever_their_byte_order() -> None:
    stream = rl.Stream(streamed(FIXED, "time").SerializeToString())
    expected = stream({"X": X[:3]})["Y"], stream({"X": X[3:]})["Y"]
    stream.reset()
    swapped = X.astype(">f4")
    np.testing.assert_array_equal(stream({"X": swapped[:3]})["Y"], expected[0])
    stream.reset({name: array.astype(">f4") for name, array in stream.states.items()})
    np.testing.assert_array_equal(stream({"X": swapped[3:]})["Y"], expected[1])


def test_lists_are_arrays_too() -> None:
    stream = rl.Stream(streamed(FIXED, "time").SerializeToString())
    first = stream({"X": X[:3].tolist()})["Y"]
    held = {name: array.tolist() for name, array in stream.states.items()}
    second = stream({"X": X[3:]})["Y"]
    np.testing.assert_allclose(np.concatenate([first, second]), whole(FIXED, {"X": X})["Y"], rtol=0, atol=1e-6)
    stream.reset(held)
    np.testing.assert_array_equal(stream({"X": X[3:]})["Y"], second)
    stream.reset({"past_Y_h": [0.5]})
    with pytest.raises(rl.OptionError, match=r"has shape \[1\], but these inputs need \[1, 2, 4\]"):
        stream({"X": X[3:]})
    with pytest.raises(rl.OptionError, match="a list is given; give arrays by state name"):
        stream.reset([0.5])  # type: ignore[arg-type]


def test_an_error_of_onnxruntime_leaves_the_states_as_they_are() -> None:
    words = net(
        """g (int64[time, batch] X) => (float[t, d, n, h] Y) {
            E = Gather (T, X)
            Y = GRU <hidden_size = 4> (E, W, R, B) }""",
        {**recurrent("GRU", 3, 4), "T": random((5, 3))},
    )
    stream = rl.Stream(streamed(words, "time").SerializeToString())
    stream({"X": np.array([[1], [2]])})
    held = dict(stream.states)
    with pytest.raises(rl.UnsupportedError, match=r"onnxruntime cannot run this chunk: .*out of"):
        stream({"X": np.array([[7]])})
    assert stream.states.keys() == held.keys()
    np.testing.assert_array_equal(stream.states["past_Y_h"], held["past_Y_h"])


GIVEN = {**recurrent("GRU", 3, 4), "h0": random((1, 2, 4), 3)}


@pytest.mark.parametrize("returned", [True, False])
def test_a_state_that_has_a_default_starts_from_it(returned: bool) -> None:
    output, result = (", float[1, 2, 4] last", ", last") if returned else ("", "")
    model = net(
        f"""g (float[time, 2, 3] X, float[1, 2, 4] h0) => (float[t, d, n, h] Y{output}) {{
            Y{result} = GRU <hidden_size = 4> (X, W, R, B, , h0) }}""",
        GIVEN,
    )
    stream = rl.Stream(streamed(model, "time").SerializeToString())
    assert stream.plan.states[0].output == ("last" if returned else "present_Y_h")
    for _ in range(2):
        got = np.concatenate([stream({"X": X[:2]})["Y"], stream({"X": X[2:]})["Y"]])
        np.testing.assert_allclose(got, whole(model, {"X": X})["Y"], rtol=0, atol=1e-6)
        stream.reset()


def test_an_input_that_is_a_state_and_a_final_state_that_lengths_change_are_one_state() -> None:
    model = net(
        """g (float[time, batch, 3] X, int32[batch] lens, float[1, n, 4] h0, float[1, n, 4] c0)
            => (float[t, d, n, h] Y, float[1, n, 4] hn, float[1, n, 4] cn) {
            Y, hn, cn = LSTM <hidden_size = 4> (X, W, R, B, lens, h0, c0) }""",
        recurrent("LSTM", 3, 4),
    )
    stream = rl.Stream(streamed(model, "time").SerializeToString())
    assert [(s.input, s.output) for s in stream.plan.states] == [("h0", "hn"), ("c0", "cn")]
    lengths, zeros = np.array([6, 2], np.int32), np.zeros((1, 2, 4), np.float32)
    expected = whole(model, {"X": X, "lens": lengths, "h0": zeros, "c0": zeros})
    parts = [
        stream({"X": X[n : n + 2], "lens": np.clip(lengths - n, 0, 2).astype(np.int32)})["Y"] for n in (0, 2, 4)
    ]
    np.testing.assert_allclose(np.concatenate(parts), expected["Y"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(stream.states["h0"], expected["hn"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(stream.states["c0"], expected["cn"], rtol=0, atol=1e-6)


@pytest.mark.shared
def test_of_a_stored_model_with_lengths_and_states() -> None:
    path = MODELS / "exported" / "authored" / "lstm_full_0_for.onnx"
    if not path.exists():
        pytest.skip(f"{MODELS.name} is not there")
    states = rl.Stream(streamed(onnx.load(path), "T").SerializeToString()).plan.states
    assert [(s.input, s.output) for s in states] == [("h0", "Yh"), ("c0", "Yc")]


def test_a_state_starts_from_infinity() -> None:
    """JSON has no infinite numbers: the metadata have texts for them."""
    start = np.array([[[np.inf, -np.inf, 0.25, 0]]], np.float32)
    model = net(
        """g (float[time, 1, 3] X) => (float[t, d, n, h] Y) {
            Y = GRU <hidden_size = 4> (X, W, R, B, , start) }""",
        {**recurrent("GRU", 3, 4), "start": start},
    )
    stepped = streamed(model, "time")
    assert plan_of(stepped)["states"][0]["initial"] == [[["Infinity", "-Infinity", 0.25, 0]]]
    expected = whole(model, {"X": X[:, :1]})["Y"]
    stream = rl.Stream(stepped.SerializeToString())
    got = np.concatenate([stream({"X": X[:3, :1]})["Y"], stream({"X": X[3:, :1]})["Y"]])
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
    assert rl.verify_stream(model, stepped)


@pytest.mark.parametrize("dtype", ["bool", "uint16", "uint32", "uint64"])
def test_past_frames_have_the_type_of_their_input(dtype: str) -> None:
    model = net(
        f"""g ({dtype}[1, 3, time] X) => (float[a, b, c] Y) {{
            longer = Concat <axis = 2> (start, X)
            numbers = Cast <to = 1> (longer)
            Y = Conv (numbers, K) }}""",
        {"start": np.ones((1, 3, 2), dtype), "K": random((3, 3, 3), 1)},
    )
    given = np.random.default_rng(0).integers(0, 2, (1, 3, 8)).astype(dtype)
    stream = rl.Stream(streamed(model, "time").SerializeToString())
    assert [(s.dtype, s.initial) for s in stream.plan.states] == [(dtype, np.ones((1, 3, 2), int).tolist())]
    got = np.concatenate([stream({"X": given[:, :, :3]})["Y"], stream({"X": given[:, :, 3:]})["Y"]], axis=2)
    np.testing.assert_allclose(got, whole(model, {"X": given})["Y"], rtol=0, atol=1e-6)


def test_an_unknown_state_is_refused() -> None:
    stream = rl.Stream(streamed(FIXED, "time").SerializeToString())
    with pytest.raises(rl.OptionError, match="no state 'h'; its states: past_Y_h, past_Y_c"):
        stream.reset({"h": X})


@pytest.mark.parametrize("given", [None, 3, NET, ["chunk.onnx"]], ids=["None", "a number", "a message", "a list"])
def test_what_is_no_model_is_refused(given: Any) -> None:
    with pytest.raises(rl.OptionError, match=r"model cannot be .*; give a path, the bytes of a model"):
        rl.Stream(given)


def test_a_model_that_is_no_stream_is_refused() -> None:
    with pytest.raises(rl.ModelFileError, match="; make one with --stream"):
        rl.Stream(NET.SerializeToString())
    with pytest.raises(rl.ModelFileError, match="onnxruntime cannot load"):
        rl.Stream(b"no model")


STATE = {"input": "past_Y_h", "output": "present_Y_h", "node": "n", "state": "h", "shape": [1, "b", 4]}
STATE |= {"dtype": "float32", "initial": "zeros"}


def damaged(*states: dict[str, Any], **fields: Any) -> str:
    held = {"version": 1, "frames": None, "inputs": {"X": 0}, "outputs": {}, "states": states}
    return json.dumps({**held, **fields})


DAMAGED = [
    *(
        "",
        "[]",
        "{}",
        damaged(version=2),
        damaged(frames="x"),
        damaged(frames=0),
        damaged(inputs={"X": -1}),
        damaged(inputs=["X"]),
    ),
    *(damaged(STATE, STATE), damaged({**STATE, "shape": [1, "b", -4]}), damaged({**STATE, "input": "other"})),
    *(damaged({**STATE, "more": 1}), damaged({**STATE, "input": 1})),
    *(damaged({**STATE, "initial": "ones"}), damaged({**STATE, "dtype": "text"})),
]


def test_initial_numbers_that_do_not_fit_are_refused() -> None:
    model = streamed(FIXED, "time")
    for entry in model.metadata_props:
        entry.value = entry.value.replace('"zeros"', "[[[1, 2, 3]]]")
    with pytest.raises(rl.ModelFileError, match="the initial value of state 'past_Y_h' does not fit"):
        rl.Stream(model.SerializeToString())({"X": X})


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_metadata_are_refused(text: str) -> None:
    model = streamed(FIXED, "time")
    for entry in model.metadata_props:
        entry.value = text if entry.key == KEY else entry.value
    with pytest.raises(rl.ModelFileError):
        rl.Stream(model.SerializeToString())


EDITED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an output that is not there": ({"outputs": {"Y": 0, "Z": 0}}, {}),
    "no output": ({"outputs": {}}, {}),
    "no input": ({"inputs": {}}, {}),
    "another axis of the input": ({"inputs": {"X": 1}}, {}),
    "an axis that the input does not have": ({"inputs": {"X": 7}}, {}),
    "an axis that the output does not have": ({"outputs": {"Y": 9}}, {}),
    "another number of frames": ({"frames": 3}, {}),
    "a huge state": ({}, {"shape": [1, 2, 10**12]}),
    "a state of another type": ({}, {"dtype": "int64"}),
    "a state of another rank": ({}, {"shape": [3]}),
    "a state of other names": ({}, {"input": "X"}),
    "a huge multiple": ({}, {"shape": [1, f"{10**9}*N", 3]}),
    "a negative delay": ({"delay": {"Y": -1}}, {}),
    "a huge delay": ({"delay": {"Y": 10**9}}, {}),
    "a delay of another": ({"delay": {"Z": 1}}, {}),
    "a delay that is text": ({"delay": {"Y": "1"}}, {}),
    "a delay that is true": ({"delay": {"Y": True}}, {}),
    "delays in a list": ({"delay": [1]}, {}),
    "fewer frames than none": ({"short": {"Y": -3}}, {}),
    "a unit of 0": ({"unit": 0}, {}),
    "a rate with an exponent": ({"rates": {"Y": "1e999999999"}}, {}),
    "a rate of 0": ({"rates": {"Y": "0"}}, {}),
    "a rate of many digits": ({"rates": {"Y": "9" * 5000}}, {}),
}


@pytest.mark.parametrize("label", EDITED)
def test_edited_metadata_are_one_clear_error(label: str) -> None:
    fields, state = EDITED[label]
    model = streamed(FIXED, "time")
    (entry,) = [p for p in model.metadata_props if p.key == KEY]
    plan = json.loads(entry.value)
    plan["states"] = [{**held, **state} for held in plan["states"]]
    entry.value = json.dumps({**plan, **fields})
    with pytest.raises(rl.ModelFileError, match=r"stream's metadata|state 'past_Y_h'"):
        rl.Stream(model.SerializeToString())({"X": X})
