"""Whole networks, of real exporters and like them, as streams: chunks of 1, of 5 and ragged, and after a reset."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Arrays
from gtcrn import gtcrn
from paths import MODELS, ROOT
from stream_models import CHUNKINGS, plan_of, random, streamed, whole
from stream_nets import enhancer, keras_batch_first, keyword_spotter, language_model

import rnn_lowering as rl
from rnn_lowering.streaming.operators import frame_by_frame

EXPORTED = MODELS / "exported"
Net = tuple[onnx.ModelProto, Arrays]


def stored(file: str, name: str, width: int) -> Callable[[], Net]:
    return lambda: (onnx.load(EXPORTED / file), {name: random((2, 23, width), 8)})


NETS: dict[str, tuple[Callable[[], Net], Any, list[str]]] = {
    "keyword spotter": (keyword_spotter, "time", ["past_gru_h", "past_p_x"]),
    "language model": (language_model, "time", ["h0", "c0"]),
    "keras, batch first": (keras_batch_first, "time", ["past_lstm_h", "past_lstm_c", "past_gru_h"]),
    "keras, static length": (
        lambda: keras_batch_first("23"),
        {"inputs:1": None},
        ["past_lstm_h", "past_lstm_c", "past_gru_h"],
    ),
    "speech enhancement": (enhancer, "time", ["past_inter_h", "past_p_x", "past_q_x", "past_up_x"]),
    "gtcrn": (
        gtcrn,
        "time",
        [
            *(f"past_GRU_{n}_h" for n in (41, 69, 97, 127, 130, 157, 160, 186, 215, 244)),
            *(f"past_Pad_{n}_x" for n in (34, 62, 90, 179, 208, 237)),
        ],
    ),
    "nsnet2": (stored("nets/nsnet2_op12.onnx", "logspec", 161), "t", ["past_g_GRU_h", "past_g_GRU_1_h"]),
    "rnnoise": (
        stored("nets/rnnoise_op15.onnx", "feat", 42),
        "t",
        ["past_v_GRU_h", "past_n_GRU_h", "past_g_GRU_h"],
    ),
}


def given(label: str) -> tuple[onnx.ModelProto, Arrays, Any, list[str]]:
    make, stream, states = NETS[label]
    if label in ("nsnet2", "rnnoise") and not EXPORTED.exists():
        pytest.skip("the stored models are not there")
    return *make(), stream, states


def run(stream: rl.Stream, feed: Arrays, sizes: list[int]) -> Arrays:
    """Feed chunks of these sizes in turn."""
    axes, parts, start, turn = stream.plan.inputs, [], 0, 0
    frames = next(feed[name].shape[axis] for name, axis in axes.items() if axis is not None)
    while start < frames:
        count = min(sizes[turn % len(sizes)], frames - start)
        parts.append(
            stream(
                {n: feed[n] if a is None else feed[n].take(range(start, start + count), a) for n, a in axes.items()}
            )
        )
        start, turn = start + count, turn + 1
    joined = stream.plan.outputs.items()
    return {n: parts[-1][n] if a is None else np.concatenate([p[n] for p in parts], a) for n, a in joined}


@pytest.mark.parametrize("to", ["keep", "auto"])
@pytest.mark.parametrize("label", NETS)
def test_chunks_give_what_the_whole_gives(label: str, to: str) -> None:
    model, feed, axis, states = given(label)
    stepped = streamed(model, axis, to)
    assert [s["input"] for s in plan_of(stepped)["states"]] == states
    expected = whole(model, feed)
    stream = rl.Stream(stepped.SerializeToString())
    for sizes in CHUNKINGS:
        stream.reset()
        for name, array in run(stream, feed, sizes).items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=f"{name} {sizes}")


@pytest.mark.parametrize("label", NETS)
def test_one_frame_is_straight_line(label: str) -> None:
    model, feed, axis, _ = given(label)
    frames = dict.fromkeys(axis if isinstance(axis, dict) else [axis], 1)
    stepped = streamed(model, frames, "auto")
    bodies = {n.op_type for n in stepped.graph.node} & {"Scan", "Loop", "If", "GRU", "LSTM"}
    expected = whole(model, feed)
    got = run(rl.Stream(stepped.SerializeToString()), feed, [1])
    for name, array in got.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-5, err_msg=name)
    # The GRU over the frequencies of a frame stays a loop over these, whose number is known.
    assert bodies <= ({"Scan"} if label in ("speech enhancement", "gtcrn") else set())


def test_a_rounded_lstm_is_refused_with_the_reason() -> None:
    path = EXPORTED / "derived" / "dtln_stage1_op11_dynquant_i8.onnx"
    if not path.exists():
        pytest.skip("the stored models are not there")
    with pytest.raises(rl.UnsupportedError, match="rounds all frames of a sequence with one scale"):
        streamed(onnx.load(path), "mag:1")


DOCUMENT = ROOT / "docs" / "streaming.md"


def test_the_recipe_for_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feed = keras_batch_first()
    text = DOCUMENT.read_text(encoding="utf-8")
    code = text.split("<!-- onnxruntime -->\n```python\n")[1].split("```")[0]
    onnx.save(rl.lower(model, stream="time=1", dims={"batch": 2}), tmp_path / "step.onnx")
    monkeypatch.chdir(tmp_path)
    held: dict[str, Any] = {"sequence": feed["inputs"]}
    exec(code, held)
    np.testing.assert_allclose(held["outputs"]["outputs"][:, 0], whole(model, feed)["outputs"][:, -1], atol=1e-5)


def test_the_document_lists_the_operators_that_are_known() -> None:
    known = {*frame_by_frame.AXIS_RULES, *frame_by_frame.REARRANGING, "Pad", "Slice", *LAYOUT}
    words = set(
        re.findall(
            r"\b[A-Z]\w+\b",
            DOCUMENT.read_text(encoding="utf-8").split("\nThese operators are known:")[1].split("##")[0],
        )
    )
    assert words == known


LAYOUT = {"Cast", "Clip", "Dropout", "Expand", "Identity", "OneHot", "QuantizeLinear", "DequantizeLinear", "Resize"}
LAYOUT |= {"Tile", "Transpose", "Upsample", "Where"}
"""Element-wise operators and the like that are not obvious."""
