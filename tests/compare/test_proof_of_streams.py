"""The nodes of streams are proven, one call from any states; no wrong mutant of a stream is."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import attention
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from mutants import mutant
from running import session
from texts import parse
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.compare.result import NodeProof
from rnn_lowering.compare.streams.proofs import stream_proofs
from rnn_lowering.files.reading import parse_file
from rnn_lowering.streaming.metadata import KEY, StreamPlan

TWO = """
main (float[T,1,4] X, float[1,1,3] h0) => (float[T,1,1,3] Y, float[T,1,1,3] Z)
<float[1,12,4] W = {}, float[1,12,3] R = {}, float[1,9,3] W2 = {}, float[1,9,3] R2 = {}, float[1,1,3] g0 = {},
 int64[1] axis = {1}> {
    [lstm] Y = LSTM <hidden_size=3> (X, W, R, "", "", h0)
    rows = Squeeze (Y, axis)
    [gru] Z = GRU <hidden_size=3> (rows, W2, R2, "", "", g0)
}"""


COMPUTED = """
main (float[T,N,4] X) => (float[T,1,N,3] Y)
<float[1,9,4] W = {}, float[1,9,3] R = {}, int64[1] one = {1}, int64[1] three = {3}> {
    all = Shape (X) N = Gather (all, one) shape = Concat <axis = 0> (one, N, three)
    filled = ConstantOfShape <value = float[1] {FIRST}> (shape) h0 = Identity (filled)
    [gru] Y = GRU <hidden_size=3> (X, W, R, "", "", h0)
}"""


def one() -> onnx.ModelProto:
    """The first node alone: a mutant has no node before or behind it that no proof is about."""
    made = two()
    del made.graph.node[1:]
    del made.graph.output[1]
    return made


def two() -> onnx.ModelProto:
    """An LSTM whose first h the host gives, and a GRU whose first h is a constant."""
    return parse(TWO)


def of_attention() -> onnx.ModelProto:
    return attention.Attention(open="T", dk=3, B=1, state=False).model()


STREAMS = {
    "two nodes": (two, "T=1"),
    "one frame": (one, "T=1"),
    "any": (one, "T"),
    "three": (one, "T=3"),
    "tokens": (of_attention, "T=1"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_proven(name: str, tmp_path: Path) -> None:
    make, stream = STREAMS[name]
    found = proofs(make(), rl.lower(make(), stream=stream), tmp_path)
    assert {(proof.status, proof.reason) for proof in found} == {("proven", "")}


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_first_states_of_a_computed_shape(first: float, tmp_path: Path) -> None:
    original = parse(COMPUTED.replace("FIRST", str(first)))
    stream = rl.lower(original, stream="T=1")
    assert all(proofs(original, stream, tmp_path))
    other = replace(plan_of(stream).states[0], initial=[0.25])
    (found,) = proofs(original, stream, tmp_path, states=(other,))
    assert found.reason == "its first state 'h' is not that of the stream"


def test_the_line_says_it() -> None:
    found = rl.verify_stream(two(), rl.lower(two(), stream="T=1"), check=rl.Check(runs=1))
    assert str(found).startswith("2 of 2 nodes proven for every length and input, up to rounding; verified (")


def test_states_that_begin_otherwise_or_are_swapped(tmp_path: Path) -> None:
    stream = rl.lower(two(), stream="T=1")
    plan = plan_of(stream)
    h, c, g = plan.states
    for states, reason in (
        ((h, c, replace(g, initial="zeros")), "its first state 'h' is not that of the stream"),
        ((h, replace(c, initial=0.5), g), "its first state 'c' is not that of the stream"),
        ((replace(h, output=c.output), replace(c, output=h.output), g), "polynomials differ at T = 1, N = 1"),
        ((h, g), "the stream has no state 'c' of it"),
    ):
        found = proofs(two(), stream, tmp_path, states=states)
        assert [proof.reason for proof in found if not proof] == [reason]


@pytest.mark.parametrize("first", thinned([*range(0, 600, 10)], 30))
def test_no_wrong_mutant_is_proven(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        rng = np.random.default_rng(seed)
        make, form = STREAMS[[*STREAMS][rng.integers(1, len(STREAMS))]]
        stream = rl.lower(make(), stream=form)
        wrong, what = mutant(stream, rng)
        found = proofs(make(), wrong, tmp_path)
        if found and all(found):
            assert distance(stream, wrong, rng) < 2e-5, f"{seed}: {what}"


def plan_of(stream: onnx.ModelProto) -> StreamPlan:
    return StreamPlan.from_json(next(entry.value for entry in stream.metadata_props if entry.key == KEY))


def proofs(
    original: onnx.ModelProto, stream: onnx.ModelProto, folder: Path, **changed: Any
) -> tuple[NodeProof, ...]:
    """What is proven of the nodes; of a stream that cannot be read, one that is not."""
    for name, proto in (("original", original), ("stream", stream)):
        onnx.save(proto, folder / f"{name}.onnx")
    try:
        parsed = parse_file(folder / "original.onnx"), parse_file(folder / "stream.onnx")
    except rl.RnnLoweringError:
        return (NodeProof("", "not proven"),)
    return stream_proofs(*parsed, replace(plan_of(stream), **changed))


def distance(stream: onnx.ModelProto, wrong: onnx.ModelProto, rng: np.random.Generator) -> float:
    """How far calls of a stream are from those of another, from any states; 0 if it is no valid one."""
    try:
        both = [session(model, relabel=True) for model in (stream, wrong)]
    except (ort.capi.onnxruntime_pybind11_state.Fail, ort.capi.onnxruntime_pybind11_state.InvalidGraph):
        return 0.0
    far = 0.0
    for frames in (1, 2, 7, 33):
        given: Mapping[str, Any] = {
            v.name: rng.standard_normal(
                [frames if d.dim_param else d.dim_value for d in v.type.tensor_type.shape.dim]
            ).astype(np.float32)
            for v in stream.graph.input
        }
        for right, got in zip(*(runs.run(None, given) for runs in both), strict=True):
            far = max(far, float(np.abs(got - right).max()) if right.shape == got.shape else np.inf)
    return far
