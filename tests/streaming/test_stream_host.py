"""rl.Stream: onnxruntime and the metadata drive a model; what is wrong is said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from stream_models import KEY, net, random, recurrent, session, streamed, whole

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
    r"input 'X' has shape \[4, 2, 3\], expected is \[2, batch, 3\], with the frames of the chunk on axis 0": {
        "X": X[:4]
    },
    r"input 'X' has shape \[2, 3\], expected is \[2, batch, 3\]": {"X": X[:2, 0]},
    "given are the inputs none, expected X": {},
    "given are the inputs X, past_Y_h, expected X": {"X": X[:2], "past_Y_h": X},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_inputs_get_an_error_that_says_what_was_expected(message: str) -> None:
    stream = rl.Stream(streamed(FIXED, "time=2").SerializeToString())
    with pytest.raises(rl.OptionError, match=message):
        stream(WRONG[message])


def test_an_unknown_state_is_refused() -> None:
    stream = rl.Stream(streamed(FIXED, "time").SerializeToString())
    with pytest.raises(rl.OptionError, match="no state 'h'; its states: past_Y_h, past_Y_c"):
        stream.reset({"h": X})


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
