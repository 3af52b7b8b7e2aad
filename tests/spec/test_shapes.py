"""The sizes on which the shapes of a node's inputs agree, and the input to blame where they do not."""

import pytest

from rnn_lowering.spec.connections import agree, describe, specified_shapes

LSTM = specified_shapes(gates=4, dirs=2, hidden=5, layout=0)
BATCH_FIRST = specified_shapes(gates=1, dirs=1, hidden=5, layout=1)
SIZES = {"seq_length": 7, "batch_size": 3, "input_size": 4}


def test_specified_shapes() -> None:
    assert LSTM == {
        "W": (2, 20, "input_size"),
        "R": (2, 20, 5),
        "B": (2, 40),
        "P": (2, 15),
        "sequence_lens": ("batch_size",),
        "initial_h": (2, "batch_size", 5),
        "initial_c": (2, "batch_size", 5),
        "X": ("seq_length", "batch_size", "input_size"),
    }


def test_specified_shapes_of_layout_1() -> None:
    assert BATCH_FIRST["X"] == ("batch_size", "seq_length", "input_size")
    assert BATCH_FIRST["initial_h"] == ("batch_size", 1, 5)


def test_sizes_come_from_any_input() -> None:
    shapes = {"W": (2, 20, 4), "X": (7, None, None), "initial_c": (2, 3, 5)}
    assert agree(shapes, LSTM) == (SIZES, None)


def test_unknown_sizes_stay_unknown() -> None:
    assert agree({"X": (None, None, 4), "W": (2, None, None)}, LSTM) == ({"input_size": 4}, None)


@pytest.mark.parametrize(
    ("shapes", "wrong"),
    [
        pytest.param({"R": (2, 20, 6)}, "R", id="a number of the specification"),
        pytest.param({"B": (2, 40, 1)}, "B", id="rank"),
        pytest.param({"W": (2, 20, 4), "X": (7, 3, 9)}, "X", id="X against W"),
        pytest.param({"initial_h": (2, 3, 5), "initial_c": (2, 4, 5)}, "initial_c", id="two states"),
        pytest.param({"sequence_lens": (8,), "X": (7, 3, 4)}, "sequence_lens", id="sequence_lens against X"),
        pytest.param({"sequence_lens": (3,), "initial_h": (2, 3, 5), "X": (7, 9, 4)}, "X", id="X against two"),
    ],
)
def test_the_input_to_blame(shapes: dict[str, tuple[int, ...]], wrong: str) -> None:
    assert agree(shapes, LSTM)[1] == wrong


def test_the_sizes_before_the_input_to_blame() -> None:
    assert agree({"W": (2, 20, 4), "X": (7, 3, 9)}, LSTM)[0] == {"input_size": 4}


def test_the_sizes_without_sequence_lens_to_blame() -> None:
    assert agree({"sequence_lens": (8,), "X": (7, 3, 4)}, LSTM)[0] == SIZES


def test_describe() -> None:
    assert describe(LSTM["X"], {"batch_size": 3}) == "[seq_length, batch_size=3, input_size]"
    assert describe(LSTM["B"], {}) == "[2, 40]"
