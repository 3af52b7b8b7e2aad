"""Hints lead somewhere: whoever pastes the options of a hint into the command gets a lowered model, or in the end a
message whose hint has no option, and never the same message twice."""

from collections.abc import Sequence
from typing import Any

import pytest
from case_list import BY_NAME
from cases import Case, model
from hints import alternatives, follow
from running import recurrent_left
from stored_models import Entry, load, parameters
from thinning import exhaustive

import rnn_lowering as rl

pytestmark = pytest.mark.filterwarnings("ignore::rnn_lowering.RnnLoweringWarning")

SMALL = 200_000


FEW = ("tvm", "ncnn", "iree", "tidl")
"""Targets that refuse most: they need sizes, constant lengths or one row."""


def picks() -> list[Any]:
    """The stored models with two targets that refuse much and a few others, by turns, and large ones with a single
    target; in the default run every 20th small one."""
    found = []
    others = [target for target in rl.TARGETS if target not in FEW]
    for n, p in enumerate([*parameters("runs"), *parameters("refused")]):
        (entry,) = p.values
        small = entry.get("bytes", 0) <= SMALL
        targets = [FEW[n % 4], FEW[(n + 1) % 4], *others[n % 8 :: 8]] if small else [FEW[n % 4]]
        each = pytest.param(entry, targets, id=p.id, marks=p.marks)
        found.append(each if small and n % 20 == 0 else exhaustive(each))
    return found


@pytest.mark.parametrize(("entry", "targets"), picks())
def test_of_stored_models(entry: Entry, targets: Sequence[str]) -> None:
    original = load(entry)
    assert [text for target in targets for text in follow(original, target).nowhere] == []


SIZED = ("LSTM_x_symbolic", "GRU_x_unknown", "RNN_x_unranked", "LSTM_lengths_forward_x_unranked")
LENGTHS = ("GRU_lengths_cast", "LSTM_lengths_N_1", "LSTM_lengths_bidirectional_x_symbolic")


@pytest.mark.parametrize("name", [*SIZED, *LENGTHS])
def test_of_small_models(name: str) -> None:
    """They have open sizes, or lengths that are known at run time only."""
    original = model(BY_NAME[name], 17)
    found = {target: follow(original, target) for target in ("ncnn", "tvm", "iree", "mnn", "tidl", "tensorrt")}
    assert [text for each in found.values() for text in each.nowhere] == []
    assert found["ncnn"].followed
    assert found["tidl"].followed


def test_sizes_that_the_numbers_of_an_input_decide() -> None:
    """X is X_flat in the shape X_shape: the shapes of these two do not tell its length."""
    original = model(BY_NAME["RNN_x_unranked"], 17)
    with pytest.raises(rl.UnsupportedError, match=r"input_shapes=.X_flat.*set_inputs=.X_shape.*FILE.npy"):
        rl.lower(original, target="tvm")
    options: Any = {"input_shapes": {"X_flat": [30]}, "set_inputs": {"X_shape": [5, 3, 2]}}
    assert recurrent_left(rl.lower(original, target="tvm", **options)) == []


@pytest.mark.parametrize("to", ["scan", "loop", "unroll"])
@pytest.mark.parametrize("target", ["tract", "mnn", "portable", "tinygrad"])
def test_of_forms(to: str, target: str) -> None:
    for case, opset in ((Case("long", "RNN", T=600), 17), (Case("old", "GRU", x="symbolic"), 8)):
        assert follow(model(case, opset), target, ("--to", to)).nowhere == []


def test_options_of_a_hint() -> None:
    text = (
        "fix the sizes of the inputs, with a number for each ?: --input-shape 'an input:'1,? --set-dim seq=?, "
        "or use --to scan or --to loop"
    )
    assert list(alternatives(text)) == [
        ["--input-shape", "an input:1,?", "--set-dim", "seq=?"],
        ["--to", "scan"],
        ["--to", "loop"],
    ]
    assert list(alternatives("convert the weights to floats (--dequantize)")) == [["--dequantize"]]
    assert list(alternatives("raise the limit (--max-unroll 600)")) == [["--max-unroll", "600"]]
    assert list(alternatives("check it with onnx.checker")) == []
    assert list(alternatives("export the model without it, or drop --target")) == []


def test_a_circle_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hints._refusal", lambda model, given: ("no", "use --to scan"))
    assert follow(model(Case("any", "RNN"), 17), "tvm").nowhere


@pytest.mark.parametrize(
    ("direction", "T", "told"), [("forward", 33, True), ("forward", 32, False), ("reverse", 33, False)]
)
def test_a_stream_instead_of_many_steps(direction: str, T: int, told: bool) -> None:
    original = model(Case("long", "GRU", {"direction": direction}, T=T, outputs=("Y",)), 17)
    new, report = rl.lower(original, target="tvm", full=True)
    note = f'{T} steps are unrolled, which compilers load slowly; a stream has only one step: stream="AXIS=1"'
    assert (note in report.notes) == told
    if told:
        stream, followed = rl.lower(original, target="tvm", stream={"X:0": 1}, full=True)
        assert followed.notes == []
        assert len(stream.graph.node) * 10 < len(new.graph.node)
    assert rl.lower(original, "scan", full=True)[1].notes == []
