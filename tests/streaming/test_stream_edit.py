"""What is left of the original in a stream: denotations of axes, and no node that the edit left without a use."""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import stream_nets
from stream_models import assert_streams, net, random, recurrent, streamed

import rnn_lowering as rl


def without_use(model: onnx.ModelProto) -> tuple[list[str], set[str]]:
    """The operators and the initializers of a model from which no output is computed."""
    used = {value.name for value in model.graph.output}
    dead = []
    for node in reversed(model.graph.node):
        if used & set(node.output):
            used |= set(read(node))
        else:
            dead.append(node.op_type)
    return dead, {tensor.name for tensor in model.graph.initializer} - used


def read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for body in (a.g for a in node.attribute):
        yield from (value.name for value in body.output)
        for inner in body.node:
            yield from read(inner)


@pytest.mark.parametrize("name", ["enhancer", "keras_batch_first", "keyword_spotter", "language_model"])
@pytest.mark.parametrize("stream", ["time", "time=1"])
def test_nothing_is_left_of_old_initial_states_and_paddings(name: str, stream: str) -> None:
    model, _ = getattr(stream_nets, name)()
    stepped = without_use(streamed(model, stream))
    assert stepped[0] == []
    assert stepped[1] <= without_use(model)[1]


def test_what_was_unused_before_stays_with_all_that_it_reads() -> None:
    model = net(
        """g (float[time, batch, 3] X) => (float[t, d, n, h] Y) {
            shape = Shape (X)
            batch = Gather (shape, one)
            start_shape = Concat <axis = 0> (one, batch, four)
            start = ConstantOfShape (start_shape)
            nothing = Neg (start_shape)
            Y = GRU <hidden_size = 4> (X, W, R, B, , start) }""",
        {**recurrent("GRU", 3, 4), "one": np.array([1]), "four": np.array([4]), "never": random((2,))},
    )
    stepped = assert_streams(model, "time", {"X": random((9, 2, 3))})
    assert [node.op_type for node in stepped.graph.node if node.op_type != "Identity"] == [
        *("Shape", "Gather", "Concat", "Neg", "GRU")
    ]
    assert without_use(stepped) == (["Neg", "Concat", "Gather", "Shape"], {"never", "one", "four"})


def test_a_node_that_only_a_branch_used_goes_with_its_use() -> None:
    model = net(
        """g (float[time, batch, 3] X) => (float[t, d, n, h] Y) {
            shape = Shape (X)
            batch = Gather (shape, one)
            go = Less (batch, four)
            start_shape = Concat <axis = 0> (one, batch, four)
            Y = If (go) <
                then_branch = a () => (float[t, d, n, h] P) {
                    start = ConstantOfShape (start_shape)
                    P = GRU <hidden_size = 4> (X, W, R, B, , start) },
                else_branch = b () => (float[t, d, n, h] Q) { Q = GRU <hidden_size = 4> (X, W, R, B) }> }""",
        {**recurrent("GRU", 3, 4), "one": np.array([1]), "four": np.array([4])},
    )
    stepped = assert_streams(model, "time", {"X": random((9, 2, 3))})
    kept = [node.op_type for node in stepped.graph.node if node.op_type != "Identity"]
    assert kept == ["Shape", "Gather", "Less", "If"]
    assert {tensor.name for tensor in stepped.graph.initializer} == {"W", "R", "B", "one", "four"}


@pytest.mark.parametrize("stream", ["time", "time=1"])
@pytest.mark.parametrize("to", ["keep", "scan"])
def test_denotations_of_axes_stay(stream: str, to: str) -> None:
    model = net(
        "g (float[time, batch, 3] X) => (float[time, 1, batch, 4] Y) { Y = GRU <hidden_size = 4> (X, W, R, B) }",
        recurrent("GRU", 3, 4),
    )
    meant = {"X": ["TIME", "DATA_BATCH", "DATA_FEATURE"], "Y": ["TIME", "DIRECTION", "", "DATA_FEATURE"]}
    for value in (*model.graph.input, *model.graph.output):
        for dim, text in zip(value.type.tensor_type.shape.dim, meant[value.name], strict=True):
            dim.denotation = text
    values = [*(made := streamed(model, stream, to).graph).input, *made.output]
    kept = {v.name: [dim.denotation for dim in v.type.tensor_type.shape.dim] for v in values}
    assert {name: kept[name] for name in meant} == meant


def test_an_axis_along_which_nothing_is_carried_is_warned_of() -> None:
    model = net(
        """g (float[time, batch, 3] X, float[1, batch, 4] start) => (float[t, d, n, h] Y) {
            [only] Y = GRU <hidden_size = 4> (X, W, R, B, , start) }""",
        recurrent("GRU", 3, 4),
    )
    said = (
        r"no state is carried from chunk to chunk along axis 1 of 'X' \(batch\) and axis 1 of 'start' \(batch\); "
        "GRU node 'only' in main graph runs along 'time'; 'start' is an initial state"
    )
    with pytest.warns(rl.RnnLoweringWarning, match=said):
        rl.lower(model, "keep", stream="batch")
