"""Inputs, shapes and tolerances as callers give them: taken as they are meant, or one clear error."""

import re
from typing import Any

import numpy as np
import pytest
from one_process import run_workers_here
from stream_models import net, random, recurrent, streamed

import rnn_lowering as rl

MODEL = net(
    """g (float[time, n, 3] X) => (float[time, 1, n, 4] Y, float[1, n, 4] h) {
        Y, h = GRU <hidden_size = 4> (X, W, R, B) }""",
    recurrent("GRU", 3, 4),
)
X = random((5, 2, 3))


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)


def compared(kind: str, **check: Any) -> rl.Verification:
    if kind == "stream":
        return rl.verify_stream(MODEL, streamed(MODEL, "time"), check=rl.Check(**check))
    return rl.verify(MODEL, rl.lower(MODEL), **check)


MEANT: dict[str, Any] = {
    "a mapping": {"X": X},
    "a tuple": ({"X": X},),
    "lists": [{"X": X.tolist()}],
    "masked, without a mask": [{"X": np.ma.masked_array(X, np.zeros(X.shape, bool))}],
    "the other byte order": [{"X": X.astype(">f4")}],
    "a buffer": [{"X": memoryview(X.data)}],
    "a view": [{"X": X[:, ::-1]}],
}


@pytest.mark.parametrize("kind", ["whole", "stream"])
@pytest.mark.parametrize("name", MEANT)
def test_inputs_that_are_meant(name: str, kind: str) -> None:
    check = compared(kind, feeds=MEANT[name])
    assert check, check.reason
    assert {run.inputs[0].shape for run in check.each_run} == {(5, 2, 3)}


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a masked array": ({"feeds": [{"X": np.ma.masked_array(X, X > 0)}]}, "input 'X' has masked elements"),
    "an array alone": ({"feeds": X}, "feeds holds no inputs"),
    "none": ({"feeds": [None]}, "a feed is a NoneType"),
    "nothing": ({"feeds": []}, "feeds holds no inputs"),
    "a text": ({"feeds": "X"}, "feeds holds no inputs"),
    "pairs": ({"feeds": [[("X", X)]]}, "a feed is a list"),
    "keys that are no names": ({"feeds": [{1: X}]}, "a feed is a dict"),
    "an unknown name": ({"feeds": [{"Z": X}]}, "no input 'Z'"),
    "ragged lists": ({"feeds": [{"X": [[1, 2], [3]]}]}, "input 'X'"),
    "text": ({"feeds": [{"X": "a"}]}, "input 'X' has type <U1, expected is float32"),
    "another type": ({"feeds": [{"X": X.astype(float)}]}, "input 'X' has type float64, expected is float32"),
    "another rank": ({"feeds": [{"X": 1.0}]}, "the given shape is []"),
    "a number as tolerance": ({"tolerance": 1e-3}, "tolerance"),
    "a tuple as tolerance": ({"tolerance": (1e-3, 0)}, "tolerance"),
    "shapes as pairs": ({"shapes": [("X", [5, 2, 3])]}, "shapes"),
    "a negative size": ({"shapes": {"X": [-1, 2, 3]}}, "'X'"),
    "a size as text": ({"shapes": {"X": ["5", 2, 3]}}, "'X'"),
    "no shape": ({"shapes": {"X": None}}, "'X'"),
    "one size": ({"shapes": {"X": 5}}, "'X'"),
}


@pytest.mark.parametrize("kind", ["whole", "stream"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, kind: str) -> None:
    given, told = MISTAKES[name]
    with pytest.raises(rl.OptionError, match=re.escape(told)) as raised:
        compared(kind, **given)
    assert raised.value.hint


@pytest.mark.parametrize(
    "given", [{"feeds": [{"X": X[:0]}]}, {"feeds": {"X": X[:, :0]}}, {"shapes": {"X": [0, 2, 3]}}]
)
def test_a_sequence_without_frames(given: dict[str, Any]) -> None:
    with pytest.raises(rl.OptionError, match="input 'X' is empty"):
        compared("stream", **given)


def test_shapes_may_be_arrays() -> None:
    assert compared("whole", shapes={"X": np.array([5, 2, 3])})
