"""rl.Stream: onnxruntime and the metadata drive a model; what is wrong is said."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Array
from paths import MODELS
from running import session
from stream_models import KEY, expected_of, hosted, over, plan_of, random, streamed, whole

import rnn_lowering as rl

HEAD = "float[time, batch, 3] X"
START = {"start": random((1, 1, 4), 2).repeat(2, 1)}
GRU = "Y, last = GRU <hidden_size = 4> (X, W, R, B, , start)"
NET = over(f"{HEAD} => float[] Y, float[] last", GRU, START)
LSTM = over(HEAD, "Y = LSTM <hidden_size = 4> (X, W[1, 16, 3], R[1, 16, 4])")
X = random((6, 2, 3))


def stream_of(model: onnx.ModelProto, axis: str = "time") -> rl.Stream:
    return rl.Stream(streamed(model, axis).SerializeToString())


def assert_right(model: onnx.ModelProto, x: Array = X) -> rl.Stream:
    """Compare two calls with the whole, twice; return the stream."""
    stream, expected = stream_of(model), whole(model, {"X": x})
    axis = stream.plan.inputs["X"]
    assert axis is not None
    for _ in range(2):
        got = hosted(stream, {"X": x}, [2, x.shape[axis]])
        assert got.keys() == {*stream.plan.outputs}
        for name, array in got.items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6)
    return stream


def test_a_stream_gives_what_the_whole_gives_and_starts_anew_after_reset() -> None:
    assert assert_right(NET).plan.outputs == {"Y": 0, "last": None}


def test_a_stream_is_made_from_bytes_a_session_or_a_path(tmp_path: Path) -> None:
    model = streamed(NET, "time")
    onnx.save(model, tmp_path / "chunk.onnx")
    path = tmp_path / "chunk.onnx"
    for given in (model.SerializeToString(), session(model), path, str(path)):
        assert rl.Stream(given)({"X": X})["Y"].shape == (6, 1, 2, 4)


def test_arrays_count_by_their_numbers_and_states_may_be_given() -> None:
    """Lists and arrays of another byte order are arrays too."""
    stream = stream_of(LSTM)
    for convert in (np.asarray, np.ndarray.tolist, lambda a: a.astype(">f4")):
        stream.reset()
        first = stream({"X": convert(X[:3])})["Y"]
        held = {name: convert(array) for name, array in stream.states.items()}
        second = stream({"X": convert(X[3:])})["Y"]
        np.testing.assert_allclose(np.concatenate([first, second]), whole(LSTM, {"X": X})["Y"], rtol=0, atol=1e-6)
        stream.reset(held)
        np.testing.assert_array_equal(stream({"X": X[3:]})["Y"], second)
    stream.reset()
    assert stream.states == {}


def test_the_batch_size_may_change_after_reset() -> None:
    stream = stream_of(LSTM)
    stream({"X": X})
    with pytest.raises(rl.OptionError, match=r"has shape \[1, 2, 4\], but these inputs need \[1, 1, 4\]; reset"):
        stream({"X": X[:, :1]})
    stream.reset()
    assert stream({"X": X[:, :1]})["Y"].shape == (6, 1, 1, 4)


def test_wrong_states_are_refused() -> None:
    stream = stream_of(LSTM)
    with pytest.raises(rl.OptionError, match="no state 'h'; its states: past_Y_h, past_Y_c"):
        stream.reset({"h": X})
    with pytest.raises(rl.OptionError, match="the states cannot be list; give arrays by state name"):
        stream.reset([0.5])  # type: ignore[arg-type]
    stream({"X": X})
    stream.reset({"past_Y_h": [0.5]})
    with pytest.raises(rl.OptionError, match=r"has shape \[1\], but these inputs need \[1, 2, 4\]$"):
        stream({"X": X})


LATE_NETS = {
    "a convolution": "Y = Conv <pads = [2, 2]> (X, K[3, 3, 5])",
    "without padding": "c = Conv (X, K[3, 3, 5])  r = Relu (c)  Y = Conv <pads = [3, 3]> (r, L[3, 3, 3])",
    "a stride": "c = Conv <pads = [2, 2], strides = [2]> (X, K[3, 3, 5])  Y = Relu (c)",
    "more frames": "c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  Y = ConvTranspose <strides = [2]> (c, U[3, 3, 2])",
    "a mean, too": """c = Conv (X, K[3, 3, 3])  Y = Conv <pads = [2, 2]> (c, L[3, 3, 3])
        m = ReduceMean (c, [2])""",
    "a GRU behind it": """c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  t = Transpose <perm = [2, 0, 1]> (c)
        y = GRU <hidden_size = 4> (t, W, R, B)  q = Squeeze (y, [1])  Y = Transpose <perm = [1, 2, 0]> (q)""",
    "a first frame": """c = Conv <pads = [1, 1]> (X, K[3, 3, 3])
        p = Pad <mode = "edge"> (c, [0, 0, 2, 0, 0, 0])  Y = Conv (p, L[3, 3, 3])""",
}
"""Nets whose output is late."""


@pytest.mark.few(3)
@pytest.mark.parametrize("stop", [2, 20])
@pytest.mark.parametrize("frames", [None, 2])
@pytest.mark.parametrize("name", LATE_NETS)
def test_a_late_sequence_goes_on_from_saved_states(name: str, frames: int | None, stop: int) -> None:
    """The first frames are dropped once; all 40 frames come."""
    outputs = " => float[] Y, float[] m" * ("too" in name)
    model = over(f"float[2, 3, time] X{outputs}", LATE_NETS[name])
    proto = streamed(model, {"time": frames}, "auto", delay=True)
    stepped, feed = proto.SerializeToString(), {"X": random((2, 3, 40), 1)}
    parts = [feed["X"][:, :, start : start + 2] for start in range(0, 40, 2)]
    one, other = rl.Stream(stepped), rl.Stream(stepped)
    got = [one({"X": part})["Y"] for part in parts[: stop // 2]]
    other({"X": parts[0]})
    other.reset(one.states, frames=stop)
    got += [other({"X": part})["Y"] for part in parts[stop // 2 :]]
    got.append(other.flush()["Y"])
    expected = expected_of(plan_of(proto), model, feed)["Y"]
    np.testing.assert_allclose(np.concatenate(got, 2), expected, rtol=0, atol=1e-5)
    counts = any(state.state == "t" for state in one.plan.states)
    if counts:  # the number of frames is among the states
        other.reset(one.states)
        with pytest.raises(rl.OptionError, match=f"is that after {stop} frames, not after 6; leave out frames, or"):
            other.reset(one.states, frames=6)
        with pytest.raises(rl.OptionError, match="is that after 0 frames, not after 6"):
            other.reset({}, frames=6)
    else:
        with pytest.raises(rl.OptionError, match=r"a sequence that goes on.*frames=N, or frames=0 for a new"):
            other.reset(one.states)
        other.reset(one.states, frames=0)  # as the past of a new sequence
        assert other({"X": parts[0]})["Y"].shape[2] < got[-2].shape[2] or stop == 2
    other.reset()
    first = [other({"X": part})["Y"] for part in parts]
    np.testing.assert_allclose(np.concatenate([*first, other.flush()["Y"]], 2), expected, rtol=0, atol=1e-5)


def test_the_number_of_frames_is_one_that_the_stream_can_have() -> None:
    stream = rl.Stream(streamed(over("float[2, 3, time] X", LATE_NETS["a stride"]), "time", delay=True))
    stream({"X": X.transpose(1, 2, 0)})
    with pytest.raises(rl.OptionError, match="no call ends after 3 frames; give a multiple of 2"):
        stream.reset(stream.states, frames=3)
    for wrong in (-2, 2.0, True, "2"):
        with pytest.raises(rl.OptionError, match="frames cannot be"):
            stream.reset(stream.states, frames=wrong)  # type: ignore[arg-type]
    before = dict(stream.states)
    assert before.keys() == stream.states.keys()
    assert stream({"X": X.transpose(1, 2, 0)})["Y"].shape[2] == 3


def test_the_frames_of_a_sequence_that_goes_on_count_for_its_end() -> None:
    """A table of 8 rows, one for each frame."""
    table = {"table": random((8, 3), 2)}
    model = over(
        "float[2, time, 3] X",
        "h = Shape (X)  n = Gather (h, 1)  i = Range (0, n, 1)  r = Gather (table, i)  Y = Add (X, r)",
        table,
    )
    stepped = streamed(model, "time").SerializeToString()
    one, other = rl.Stream(stepped), rl.Stream(stepped)
    feed = {"X": random((2, 8, 3), 1)}
    first = one({"X": feed["X"][:, :5]})["Y"]
    other.reset(one.states)
    with pytest.raises(rl.OptionError, match=r"at most 8 frames .*, but this chunk of 4 frames comes after 5"):
        other({"X": feed["X"][:, :4]})
    got = np.concatenate([first, other({"X": feed["X"][:, 5:]})["Y"]], 1)
    np.testing.assert_allclose(got, whole(model, feed)["Y"], rtol=0, atol=1e-6)


SHAPED = r"expected \[2, batch, 3\]"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"X": X[:4]}, rf"input 'X' has shape \[4, 2, 3\], {SHAPED}, with the frames of the chunk on axis 0"),
        ({"X": X[:2, 0]}, rf"input 'X' has shape \[2, 3\], {SHAPED}, with the frames of the chunk on axis 0$"),
        (
            {"X": X[:2, :, 1:]},
            r"input 'X' has shape \[2, 2, 2\], expected \[2, batch=2, 3\], with the frames of the chunk on axis 0$",
        ),
        ({}, "got the inputs none, expected X"),
        ({"X": X[:2], "past_Y_h": X}, "got the inputs X, past_Y_h, expected X"),
        (
            {"X": X[:2].astype(np.float64)},
            r"input 'X' has type float64, expected float32; use \.astype\(\"float32\"\)",
        ),
        ({"X": X[:2].astype(np.int64)}, "input 'X' has type int64, expected float32"),
        ({"X": [["a"]]}, "input 'X' has type <U1, expected float32"),
        ({"X": [[1.0], [2.0, 3.0]]}, "input 'X' is not an array of numbers"),
        ({"X": np.ma.masked_array(X[:2], X[:2] > 0)}, "input 'X' has masked elements; fill them"),
    ],
)
def test_wrong_inputs_get_an_error_that_says_what_was_expected(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(rl.OptionError, match=message):
        stream_of(LSTM, "time=2")(given)


def test_a_chunk_without_frames_is_refused() -> None:
    """onnxruntime's GRU ends the process there, and a mean would be none from then on."""
    stream = stream_of(over("float[time, 2, 3] X", "Y = ReduceMean (X, [0])"))
    stream({"X": X[:2]})
    with pytest.raises(rl.OptionError, match="a chunk of input 'X' has 0 frames on axis 0; give 1 frame or more"):
        stream({"X": X[:0]})
    np.testing.assert_allclose(stream({"X": X[2:]})["Y"], X.mean(0, keepdims=True), rtol=0, atol=1e-6)


def test_an_error_of_onnxruntime_leaves_the_states_as_they_are() -> None:
    words = over("int64[time, batch] X", "E = Gather (T[5, 3], X)  Y = GRU <hidden_size = 4> (E, W, R, B)")
    stream = stream_of(words)
    stream({"X": np.array([[1], [2]])})
    held = dict(stream.states)
    with pytest.raises(rl.UnsupportedError, match=r"onnxruntime cannot run this chunk: .*out of"):
        stream({"X": np.array([[7]])})
    assert stream.states.keys() == held.keys()
    np.testing.assert_array_equal(stream.states["past_Y_h"], held["past_Y_h"])


@pytest.mark.parametrize("returned", ["last", ""])
def test_a_state_that_has_a_default_starts_from_it(returned: str) -> None:
    head = "float[time, 2, 3] X, float[1, 2, 4] start" + (" => float[] Y, float[] last" if returned else "")
    stream = assert_right(over(head, GRU if returned else GRU.replace(", last", ""), START))
    assert stream.plan.states[0].output == (returned or "present_Y_h")


def test_an_input_that_is_a_state_and_a_final_state_that_lengths_change_are_one_state() -> None:
    model = over(
        f"{HEAD}, int32[batch] lens, float[1, n, 4] h0, float[1, n, 4] c0 => float[] Y, float[] hn, float[] cn",
        "Y, hn, cn = LSTM <hidden_size = 4> (X, W[1, 16, 3], R[1, 16, 4], , lens, h0, c0)",
    )
    stream = stream_of(model)
    assert [(s.input, s.output) for s in stream.plan.states] == [("h0", "hn"), ("c0", "cn")]
    lengths, zeros = np.array([6, 2], np.int32), np.zeros((1, 2, 4), np.float32)
    expected = whole(model, {"X": X, "lens": lengths, "h0": zeros, "c0": zeros})
    parts = [
        stream({"X": X[n : n + 2], "lens": np.clip(lengths - n, 0, 2).astype(np.int32)})["Y"] for n in (0, 2, 4)
    ]
    np.testing.assert_allclose(np.concatenate(parts), expected["Y"], rtol=0, atol=1e-6)
    for given, returned in (("h0", "hn"), ("c0", "cn")):
        np.testing.assert_allclose(stream.states[given], expected[returned], rtol=0, atol=1e-6)


@pytest.mark.shared
def test_of_a_stored_model_with_lengths_and_states() -> None:
    path = MODELS / "exported" / "authored" / "lstm_full_0_for.onnx"
    if not path.exists():
        pytest.skip(f"{MODELS.name} is not there")
    states = stream_of(onnx.load(path), "T").plan.states
    assert [(s.input, s.output) for s in states] == [("h0", "Yh"), ("c0", "Yc")]


def test_a_state_starts_from_infinity() -> None:
    """JSON has no infinite numbers: the metadata have texts for them."""
    start = {"start": np.array([[[np.inf, -np.inf, 0.25, 0]]], np.float32)}
    model = over("float[time, 1, 3] X", GRU.replace(", last", ""), start)
    stepped = streamed(model, "time")
    assert plan_of(stepped)["states"][0]["initial"] == [[["Infinity", "-Infinity", 0.25, 0]]]
    assert_right(model, X[:, :1])
    assert rl.verify_stream(model, stepped)


@pytest.mark.parametrize("dtype", ["bool", "uint16", "uint32", "uint64"])
def test_past_frames_have_the_type_of_their_input(dtype: str) -> None:
    nodes = "longer = Concat <axis = 2> (ones, X)  x = Cast <to = 1> (longer)  Y = Conv (x, K[3, 3, 3])"
    model = over(f"{dtype}[1, 3, time] X", nodes, {"ones": np.ones((1, 3, 2), dtype)})
    stream = assert_right(model, np.random.default_rng(0).integers(0, 2, (1, 3, 8)).astype(dtype))
    assert [(s.dtype, s.initial) for s in stream.plan.states] == [(dtype, [[[1]]])]


@pytest.mark.parametrize("given", [None, 3, ["chunk.onnx"]], ids=["None", "a number", "a list"])
def test_what_is_no_model_is_refused(given: Any) -> None:
    with pytest.raises(rl.OptionError, match=r"model cannot be .*; give .* a path, the bytes of a model"):
        rl.Stream(given)


def test_a_model_that_is_no_stream_is_refused() -> None:
    with pytest.raises(rl.ModelFileError, match="; make one with stream"):
        rl.Stream(NET.SerializeToString())
    with pytest.raises(rl.ModelFileError, match="onnxruntime cannot load"):
        rl.Stream(b"no model")


def test_initial_numbers_that_do_not_fit_are_refused() -> None:
    edited = with_metadata({}, {"initial": [[[1, 2, 3]]]})
    with pytest.raises(rl.ModelFileError, match="the initial value of state 'past_Y_h' does not fit"):
        rl.Stream(edited)({"X": X})


def with_metadata(fields: dict[str, Any] | str, state: dict[str, Any] | None = None) -> bytes:
    """The stream with other metadata, or other fields in them and in each state."""
    model = streamed(LSTM, "time")
    (entry,) = [p for p in model.metadata_props if p.key == KEY]
    if isinstance(fields, dict):
        plan = json.loads(entry.value)
        plan["states"] = [{**held, **(state or {})} for held in plan["states"]]
        fields = json.dumps({**plan, **fields})
    entry.value = fields
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_what_are_no_metadata_is_refused(text: str) -> None:
    with pytest.raises(rl.ModelFileError):
        rl.Stream(with_metadata(text))


FIELDS: list[dict[str, Any]] = [
    {"version": 2},
    *({"frames": frames} for frames in ("x", 0, 3)),
    *({"inputs": inputs} for inputs in ({"X": -1}, ["X"], {}, {"X": 1}, {"X": 7})),
    *({"outputs": outputs} for outputs in ({"Y": 0, "Z": 0}, {}, {"Y": 9})),
    *({"delay": delay} for delay in ({"Y": -1}, {"Y": 10**9}, {"Z": 1}, {"Y": "1"}, {"Y": True}, [1])),
    *({"short": {"Y": -3}}, {"unit": 0}),
    *({"rates": {"Y": rate}} for rate in ("1e999999999", "0", "9" * 5000)),
]
STATES: list[dict[str, Any]] = [
    *({"shape": shape} for shape in ([1, 2, 10**12], [3], [1, f"{10**9}*N", 3], [1, "b", -4])),
    *({"input": name} for name in ("X", "other", "past_Y_h", 1)),
    *({"dtype": "int64"}, {"dtype": "text"}, {"more": 1}, {"initial": "ones"}),
]


@pytest.mark.parametrize(("fields", "state"), [*((f, {}) for f in FIELDS), *(({}, s) for s in STATES)])
def test_edited_metadata_are_one_clear_error(fields: dict[str, Any], state: dict[str, Any]) -> None:
    with pytest.raises(rl.ModelFileError, match=r"stream's metadata|state 'past_Y_h'"):
        rl.Stream(with_metadata(fields, state))({"X": X})


class FailsOnce:
    """A session whose next run fails."""

    def __init__(self, session: Any) -> None:
        self._session, self.fails = session, False

    def run(self, *args: Any) -> Any:
        if self.fails:
            self.fails = False
            raise RuntimeError("out of memory")
        return self._session.run(*args)


LATE = over(
    "float[1, 3, time] X => float[] Y",
    "c = Conv <pads = [1, 1]> (X, K[3, 3, 3])  x = Transpose <perm = [2, 0, 1]> (c)  "
    "Y = GRU <hidden_size = 4> (x, W, R)",
)


def test_a_run_that_fails_changes_no_state() -> None:
    """A first chunk of another batch size may follow, and `flush` can be called again."""
    stream = stream_of(NET)
    stream.session = failing = FailsOnce(stream.session)
    failing.fails = True
    with pytest.raises(rl.UnsupportedError, match="out of memory"):
        stream({"X": X})
    assert stream.states == {}
    stream({"X": X[:, :1]})
    late = rl.Stream(rl.lower(LATE, stream="time", delay=True).SerializeToString())
    frames, expected = random((1, 3, 5)), None
    for fails in (False, True):
        late.reset()
        late({"X": frames})
        late.session = failing = FailsOnce(late.session)
        failing.fails = fails
        if fails:
            with pytest.raises(rl.UnsupportedError, match="out of memory"):
                late.flush()
        last = late.flush()["Y"]
        assert last.shape[0] == 1
        expected = last if expected is None else expected
        np.testing.assert_array_equal(last, expected)
