"""The proof chunk by chunk catches what can be wrong in a stream, and names the first step and the node."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from one_process import run_workers_here
from onnx import helper
from stream_models import net, plan_of, random, recurrent, streamed

import rnn_lowering as rl
from rnn_lowering.verification.chunked import verify_stream

TWO = net(
    """g (float[time, batch, 4] X) => (float[t, d, batch, 4] Y, float[1, batch, 4] last) {
        shape = Shape (X)  n = Gather (shape, one)  sizes = Concat <axis = 0> (one, n, width)
        start = Expand (row, sizes)
        [one] y = GRU <hidden_size = 4> (X, W, R, B, , start)
        x = Squeeze (y, one)
        [two] Y, last = GRU <hidden_size = 4> (x, vW, vR, vB) }""",
    {
        **recurrent("GRU", 4, 4),
        **recurrent("GRU", 4, 4, "v", seed=1),
        **{"one": np.array([1]), "width": np.array([4]), "row": random((1, 1, 4), 3)},
    },
)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)


def verified(original: onnx.ModelProto, stepped: onnx.ModelProto, folder: Path, **check: Any) -> Any:
    onnx.save(original, folder / "original.onnx")
    onnx.save(stepped, folder / "stepped.onnx")
    return verify_stream(folder / "original.onnx", folder / "stepped.onnx", check=rl.Check(**check))


def with_plan(model: onnx.ModelProto, change: Callable[[dict[str, Any]], None]) -> onnx.ModelProto:
    plan = plan_of(model)
    change(plan)
    for entry in model.metadata_props:
        entry.value = json.dumps(plan)
    return model


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto = next(n for n in model.graph.node if n.name == name or name in n.output)
    return found


def swapped_states(model: onnx.ModelProto) -> onnx.ModelProto:
    def swap(plan: dict[str, Any]) -> None:
        a, b = plan["states"]
        a["output"], b["output"] = b["output"], a["output"]

    return with_plan(model, swap)


def not_fed_back(model: onnx.ModelProto) -> onnx.ModelProto:
    node(model, "present_two_h").input[0] = "past_two_h"
    return model


def wrong_initial_value(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_plan(model, lambda plan: plan["states"][0].update(initial="zeros"))


def state_of_the_wrong_layer(model: onnx.ModelProto) -> onnx.ModelProto:
    node(model, "two").input[5] = "past_one_h"
    return model


def mistaken_output_axis(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_plan(model, lambda plan: plan["outputs"].update(Y=2))


def mistaken_input_axis(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_plan(model, lambda plan: plan["inputs"].update(X=1))


def last_state_taken_for_frames(model: onnx.ModelProto) -> onnx.ModelProto:
    return with_plan(model, lambda plan: plan["outputs"].update(last=0))


DAMAGES: dict[Callable[[onnx.ModelProto], onnx.ModelProto], str] = {
    swapped_states: "from frame 1 on; the first node that differs: GRU node 'one'",
    not_fed_back: "from frame 1 on; the first node that differs: GRU node 'two'",
    wrong_initial_value: "from frame 0 on; the first node that differs: GRU node 'one'",
    state_of_the_wrong_layer: "the first node that differs: GRU node 'two'",
    mistaken_output_axis: "output 'Y'",
    mistaken_input_axis: "",
    last_state_taken_for_frames: "output 'last'",
}


@pytest.mark.parametrize("to", ["keep", "auto"])
def test_what_is_right_is_verified(tmp_path: Path, to: str) -> None:
    check = verified(TWO, streamed(TWO, "time", to), tmp_path)
    assert check
    assert check.runs == 9
    assert check.method == "onnxruntime, in chunks of 1, of 5 and of 3, 1, 4, 7, 2 frames"
    assert len({run.inputs[0].shape for run in check.each_run}) == 3  # also other batch sizes, in the same session


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_wrong_is_found(tmp_path: Path, damage: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    check = verified(TWO, damage(streamed(TWO, "time")), tmp_path)
    assert check.status == "failed"
    assert DAMAGES[damage] in check.reason


CONV = """g (float[batch, 3, time] X) => (float[t, d, n, h] Y) {
    [seen] c = Conv <pads = [1, 1]> (X, K)  x = Transpose <perm = [2, 0, 1]> (c)
    [state] Y = GRU <hidden_size = 4> (x, W, R, B) }"""


def test_a_convolution_that_looks_at_its_neighbours_is_found(tmp_path: Path) -> None:
    """As a tool makes it that brings out the recurrent states alone."""
    weights = {**recurrent("GRU", 3, 4), "K": random((3, 3, 3), 2)}
    framewise = net(CONV.replace("<pads = [1, 1]> (X, K)", "(X, K1)"), {**weights, "K1": random((3, 3, 1), 2)})
    naive = streamed(framewise, "time")
    seen = node(naive, "seen")
    seen.input[1] = "K"
    seen.attribute.append(helper.make_attribute("pads", [1, 1]))
    check = verified(net(CONV, weights), naive, tmp_path)
    assert check.status == "failed"
    assert "first in step 1 of chunks of 1, 1, 1, 1, 1, 1, ... frames, from frame 0 on" in check.reason
    assert "the first node that differs: Conv node 'seen'" in check.reason


def test_what_enters_a_node_is_finite(tmp_path: Path) -> None:
    """A native kernel hides NaN, a lowered node does not: a logarithm is given positive numbers."""
    model = net(
        """g (float[time, batch, 3] X) => (float[t, d, n, h] Y) {
            x = Log (X)  Y = LSTM <hidden_size = 4> (x, W, R, B) }""",
        recurrent("LSTM", 3, 4),
    )
    assert verified(model, streamed(model, "time=1", "auto"), tmp_path)


def test_fixed_frames_are_the_only_chunks(tmp_path: Path) -> None:
    check = verified(TWO, streamed(TWO, "time=4", "auto"), tmp_path, runs=2)
    assert check
    assert (check.runs, check.method) == (2, "onnxruntime, in chunks of 4 frames")


def test_a_fixed_length_is_opened_in_the_original(tmp_path: Path) -> None:
    model = net(
        "g (float[4, 2, 3] X) => (float[4, 1, 2, 4] Y) { Y = GRU <hidden_size = 4> (X, W, R, B) }",
        recurrent("GRU", 3, 4),
    )
    assert verified(model, streamed(model, "X:0=4", "auto"), tmp_path)


@pytest.mark.parametrize("attribute", ["layout = 1, ", ""])
def test_an_original_that_onnxruntime_cannot_run_is_lowered_for_it(tmp_path: Path, attribute: str) -> None:
    """onnxruntime has no layout 1 and no kernel for float64."""
    kind, weights = "float", recurrent("GRU", 3, 4)
    if not attribute:
        kind, weights = "double", {name: array.astype(np.float64) for name, array in weights.items()}
    model = net(
        f"""g ({kind}[batch, time, 3] X) => ({kind}[a, b, c, d] Y) {{
            [only] Y = GRU <{attribute}hidden_size = 4> (X, W, R, B) }}""",
        weights,
    )
    time = "time" if attribute else "batch"
    stepped = streamed(model, time, "auto")
    check = verified(model, stepped, tmp_path)
    assert check
    assert "it was lowered for whole sequences, each node compared with float64" in check.reason
    if attribute:
        return
    node(stepped, "present_only_h").input[0] = "past_only_h"
    assert verified(model, stepped, tmp_path).status == "failed"


def test_an_output_that_the_stream_lost_is_missed(tmp_path: Path) -> None:
    lost = with_plan(streamed(TWO, "time"), lambda plan: plan["outputs"].pop("last"))
    assert verified(TWO, lost, tmp_path)  # it is still given, and right
    del lost.graph.output[[value.name for value in lost.graph.output].index("last")]
    check = verified(TWO, lost, tmp_path)
    assert check.status == "failed"
    assert "output 'last': the stream does not give it" in check.reason


def test_given_feeds_are_whole_sequences(tmp_path: Path) -> None:
    check = verified(TWO, streamed(TWO, "time"), tmp_path, feeds=[{"X": random((9, 2, 4))}])
    assert check
    assert {run.inputs[0].shape for run in check.each_run} == {(9, 2, 4)}


def test_a_tolerance_counts(tmp_path: Path) -> None:
    exact = rl.Tolerance(rtol=0, atol=0)
    assert not verified(TWO, streamed(TWO, "time", "loop"), tmp_path, tolerance=exact)


def test_a_stream_without_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rl.ModelFileError, match="is no stream"):
        verified(TWO, TWO, tmp_path)
