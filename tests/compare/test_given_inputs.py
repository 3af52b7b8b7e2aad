"""Inputs, shapes and tolerances as callers give them: taken as they are meant, or one clear error."""

import re
from typing import Any

import numpy as np
import pytest
from cases import Case, model
from stream_models import net, random, recurrent, streamed

import rnn_lowering as rl

pytestmark = pytest.mark.usefixtures("workers_here")

MODEL = net(
    """g (float[time, n, 3] X) => (float[time, 1, n, 4] Y, float[1, n, 4] h) {
        Y, h = GRU <hidden_size = 4> (X, W, R, B) }""",
    recurrent("GRU", 3, 4),
)
X = random((5, 2, 3))


def compared(kind: str, **check: Any) -> rl.Verification:
    if kind == "stream":
        return rl.verify_stream(MODEL, streamed(MODEL, "time"), check=rl.Check(**check))
    return rl.verify(MODEL, rl.lower(MODEL), **check)


MEANT: dict[str, Any] = {
    "a tuple": ({"X": X},),
    "the other byte order": [{"X": X.astype(">f4")}],
    "a buffer": [{"X": memoryview(X.data)}],
    "a view": [{"X": X[:, ::-1]}],
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["whole", "stream"])
@pytest.mark.parametrize("name", MEANT)
def test_inputs_that_are_meant(name: str, kind: str) -> None:
    check = compared(kind, feeds=MEANT[name])
    assert check, check.reason
    assert {run.inputs[0].shape for run in check.each_run} == {(5, 2, 3)}


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a mapping": ({"feeds": {"X": X}}, "feeds cannot be"),
    "lists": ({"feeds": [{"X": X.tolist()}]}, "input 'X' has type float64, expected float32"),
    "a masked array": ({"feeds": [{"X": np.ma.masked_array(X, X > 0)}]}, "'X' of feeds[0] cannot be"),
    "an array alone": ({"feeds": X}, "feeds[0] cannot be"),
    "none": ({"feeds": [None]}, "feeds[0] cannot be None"),
    "a text": ({"feeds": "X"}, "feeds cannot be 'X'"),
    "pairs": ({"feeds": [[("X", X)]]}, "feeds[0] cannot be"),
    "keys that are no names": ({"feeds": [{1: X}]}, "feeds[0] cannot be"),
    "an unknown name": ({"feeds": [{"Z": X}]}, "no input 'Z'"),
    "ragged lists": ({"feeds": [{"X": [[1, 2], [3]]}]}, "'X' of feeds[0] is not an array"),
    "text": ({"feeds": [{"X": "a"}]}, "input 'X' has type <U1, expected float32"),
    "another type": ({"feeds": [{"X": X.astype(float)}]}, "input 'X' has type float64, expected float32"),
    "another size": ({"feeds": [{"X": X}, {"X": np.zeros((2, 3, 5), np.float32)}]}, "the given shape is [2, 3, 5]"),
    "an unknown name too": ({"feeds": [{"X": X, "Z": np.zeros(1)}]}, "no input 'Z'"),
    "another rank": ({"feeds": [{"X": np.float32(1)}]}, "the given shape is []"),
    "a number as tolerance": ({"tolerance": 1e-3}, "tolerance"),
    "a tuple as tolerance": ({"tolerance": (1e-3, 0)}, "tolerance"),
    "shapes as pairs": ({"shapes": [("X", [5, 2, 3])]}, "shapes"),
    "a negative size": ({"shapes": {"X": [-1, 2, 3]}}, "'X'"),
    "a size as text": ({"shapes": {"X": ["5", 2, 3]}}, "'X'"),
    "a shape for an unknown name": ({"shapes": {"Z": [1]}}, "no input 'Z'"),
    "a shape of another rank": ({"shapes": {"X": [2, 3]}}, "the given shape is [2, 3]"),
    "a shape of another size": ({"shapes": {"X": [2, 3, 5]}}, "the given shape is [2, 3, 5]"),
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
    "given", [{"feeds": [{"X": X[:0]}]}, {"feeds": [{"X": X[:, :0]}]}, {"shapes": {"X": [0, 2, 3]}}]
)
def test_a_sequence_without_frames(given: dict[str, Any]) -> None:
    with pytest.raises(rl.OptionError, match="input 'X' is empty"):
        compared("stream", **given)


def test_shapes_may_be_arrays() -> None:
    assert compared("whole", shapes={"X": np.array([5, 2, 3])})


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [-1, -(2**63)])
def test_a_negative_size_is_an_open_one(size: int) -> None:
    """Old exporters write -1 for an unknown size."""
    original = model(Case("negative", "LSTM", x="symbolic"), 17)
    for dim in original.graph.input[0].type.tensor_type.shape.dim:
        if dim.dim_param:
            dim.dim_value = size
    assert rl.verify(original, rl.lower(original), runs=2)
