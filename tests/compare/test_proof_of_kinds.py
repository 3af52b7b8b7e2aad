"""Other kinds of nodes and converted Loops are proven; no wrong mutant is. onnxruntime judges mutants, beside what
they are mutants of, at sizes that no proof uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import attention
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import quantized_lstm
from cases import Arrays
from mutants import mutant
from running import session
from texts import parse
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.compare.node_pairs import node_pairs
from rnn_lowering.compare.proof.of_nodes import proofs_of
from rnn_lowering.compare.result import NodeProof
from rnn_lowering.files.reading import parse_file

FAR = 2e-5
ATTENTION = attention.Attention(open="BT", dk=3)
ODD = ((1, 1), (2, 5), (7, 3), (33, 2))
"""(T, N) of the runs that judge a mutant, where both are open."""


@dataclass(frozen=True)
class Proven:
    """A model that is proven once it is lowered: how, its status, and random inputs at a length and batch size."""

    model: Callable[[], onnx.ModelProto]
    feed: Callable[[int, int], Arrays]
    lowering: Mapping[str, Any]
    status: str = "proven"


def _attention(status: str = "proven", lowering: Mapping[str, Any] | None = None, **changed: Any) -> Proven:
    case = replace(ATTENTION, **changed)

    def feed(T: int, N: int) -> Arrays:
        return replace(case, B=N if "B" in case.open else case.B, T=T if "T" in case.open else case.T).feed(T)

    return Proven(case.model, feed, lowering or {"to": "scan"}, status)


def _quantized(lowering: Mapping[str, Any] | None = None, **changed: Any) -> Proven:
    case = quantized_lstm.Model(**changed)

    def feed(T: int, N: int) -> Arrays:
        rng = np.random.default_rng(T)
        made = {"X": rng.standard_normal((T, N, quantized_lstm.WIDTH))}
        if case.states:
            made |= {f"initial_{s}": rng.standard_normal((case.dirs, N, quantized_lstm.H)) for s in "hc"}
        return {name: array.astype(np.float32) for name, array in made.items()}

    return Proven(case.proto, feed, lowering or {"to": "loop"})


_SCAN = """
main (float[N,3] h0, float[T,N,4] X) => (float[N,3] h, float[T,N,3] Y)
<float[4,3] W = {}, float[3,3] R = {}, float[3] b = {}> {
    h, Y = Scan <num_scan_inputs=1, scan_input_directions=[1], scan_output_directions=[1],
        body = each (float[N,3] before, float[N,4] x) => (float[N,3] after, float[N,3] y) {
            of_x = MatMul (x, W)
            of_h = MatMul (before, R)
            both = Add (of_x, of_h)
            sum = Add (both, b)
            after = Tanh (sum)
            gate = Sigmoid (sum)
            y = Mul (gate, before)
        }> (h0, X)
}"""
_LOOP = """
main (float[N,3] h0, float[T,N,3] X) => (float[N,3] h, float[N,3] c, float[T,N,3] Y)
<bool yes = {1}, float[3] b = {}, int64 axis = {0}> {
    sizes = Shape (X)
    steps = Gather (sizes, axis)
    h, c, Y = Loop (steps, yes, h0, h0) <body = again (int64 i, bool go, float[N,3] before, float[N,3] held)
        => (bool still, float[N,3] after, float[N,3] kept, float[N,3] y) {
            still = Identity (go)
            row = Gather (X, i)
            x = Abs (row)
            decayed = Mul (before, b)
            after = Add (decayed, x)
            more = Relu (held)
            kept = Add (more, decayed)
            root = Sqrt (x)
            y = Mul (root, kept)
        }>
}"""
_OF_NUMBERS = """
main (float h0, float[T] X) => (float h, float[T] Y)
<bool yes = {1}, float b = {0.5}, int8[1] q = {3}, float scale = {0.25}, int64 axis = {0},
 int64[1] first = {0}> {
    sizes = Shape (X)
    steps = Gather (sizes, axis)
    h, Y = Loop (steps, yes, h0) <body = again (int64 i, bool go, float before)
        => (bool still, float after, float y) {
            still = Identity (go)
            x = Gather (X, i)
            last = DequantizeLinear (q, scale)
            one = Squeeze (last, first)
            decayed = Mul (before, b)
            more = Add (decayed, one)
            after = Add (more, x)
            y = Tanh (after)
        }>
}"""
_CAPTURED = """
main (float[N,4] h0, float[5,N,3] X) => (float[N,4] h, float[2,5,1,N,4] Ys)
<int64 two = {2}, bool yes = {1}, float[1,12,3] W = {}, float[1,12,4] R = {}, int64[1] first = {0}> {
    h, Ys = Loop (two, yes, h0) <body = again (int64 i, bool go, float[N,4] before)
        => (bool still, float[N,4] after, float[5,1,N,4] Y) {
            still = Identity (go)
            scaled = Mul (X, X)
            state = Unsqueeze (before, first)
            Y, end = GRU <hidden_size=4, linear_before_reset=1> (scaled, W, R, "", "", state)
            after = Squeeze (end, first)
        }>
}"""
_TWO_LAYERS = """
main (float[T,N,3] X, float[1,N,4] h0) => (float[T,1,N,4] Y, float[1,N,4] low)
<float[1,12,3] W0 = {}, float[1,12,4] R0 = {}, float[1,24] B0 = {}, int64[1] one = {1},
 float[1,12,4] W1 = {}, float[1,12,4] R1 = {}, float[1,24] B1 = {}> {
    Y0, low = GRU <hidden_size=4, linear_before_reset=1> (X, W0, R0, B0, "", h0)
    X1 = Squeeze (Y0, one)
    Y = GRU <hidden_size=4, linear_before_reset=1> (X1, W1, R1, B1)
}"""
_THREE_LAYERS = """
main (float[T,N,3] X) => (float[T,1,N,2] Y)
<float[1,6,3] W0 = {}, float[1,6,2] R0 = {}, float[1,6,2] W1 = {}, float[1,6,2] R1 = {}, int64[1] one = {1},
 float[1,6,2] W2 = {}, float[1,6,2] R2 = {}, float[1,12] B2 = {}> {
    Y0 = GRU <hidden_size=2> (X, W0, R0)
    X1 = Squeeze (Y0, one)
    Y1 = GRU <hidden_size=2> (X1, W1, R1)
    X2 = Squeeze (Y1, one)
    Y = GRU <hidden_size=2> (X2, W2, R2, B2)
}"""


def _text(text: str, status: str = "proven", **lowering: Any) -> Proven:
    model = partial(parse, text)

    def feed(T: int, N: int) -> Arrays:
        rng, sizes = np.random.default_rng(T), {"T": T, "N": N}
        return {
            value.name: rng.standard_normal(
                [sizes.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
            ).astype(np.float32)
            for value in model().graph.input
        }

    return Proven(model, feed, lowering, status)


PROVEN = {
    "scan_to_loop": _text(_SCAN, to="loop", lower_loops=True),
    "scan_unrolled": _text(_SCAN.replace("T,", "6,"), "proven at 6 steps", target="tvm"),
    "loop_to_scan": _text(_LOOP, to="scan"),
    "loop_to_loop": _text(_LOOP, to="loop", lower_loops=True),
    "captured": _text(_CAPTURED, "proven at 2 steps", to="scan"),
    "layers": _text(_THREE_LAYERS, to="scan"),
    "layers_back": _text(_THREE_LAYERS.replace("<hidden", '<direction="reverse", hidden'), to="loop"),
    "layers_of_states": _text(_TWO_LAYERS.replace("T,", "6,"), "proven at 6 steps", to="scan"),
    "gated_delta": _attention(),
    "linear": _attention(rule="linear", domain="", state=False, scale=0.3, lowering={"to": "loop"}),
    "by_key": _attention(rule="gated", by_key=True, Hq=4, H=2),
    "one_beta": _attention(rule="delta", one_beta=True, Hq=1, n=1, lowering={"to": "loop"}),
    "as_rows": _attention(dv=1),
    "unrolled": _attention("proven at 4 steps", {"to": "unroll"}, open="B", T=4),
    "one_token": _attention("proven at 1 step", {}, open="B", T=1),
    "rounded": _quantized(),
    "both_ways": _quantized({"to": "scan"}, dirs=2, per_column=True, peepholes=True, states=True, dtype="uint8"),
    "in_floats": _quantized({"to": "scan", "dequantize": True}, per_column=True),
}


NUMBERS = {"numbers": _text(_OF_NUMBERS, to="scan")}
"""No mutant is made of them: it would look for a second axis of X."""


@pytest.mark.parametrize("name", PROVEN | NUMBERS)
def test_proven(name: str, tmp_path: Path) -> None:
    case = (PROVEN | NUMBERS)[name]
    original = case.model()
    found = proofs(original, rl.lower(original, **case.lowering), tmp_path)
    assert {(proof.status, proof.reason) for proof in found} == {(case.status, "")}


def test_weights_that_follow_from_sizes(tmp_path: Path) -> None:
    """They are cut out of others, as PyTorch's exporter writes them: numbers, and no inputs of each run."""
    cut = parse("""
main (float[T,N,24] x) => (float[T,1,N,32] Y)
<float[1,128,24] V = {}, float[1,128,32] Q = {}, float zero = {0}, int64[3] shape = {1,1,32}, int64[1] axis = {1},
 int64[1] first = {0}, int64[1] three = {3}> {
    X = Relu (x) zeros = Expand (zero, shape) H = Shape <start = 2> (zeros) rows = Mul (H, three)
    W = Slice (V, first, rows, axis) R = Slice (Q, first, rows, axis)
    [gru] Y = GRU <hidden_size=32> (X, W, R)
}""")
    onnx.save(cut, tmp_path / "cut.onnx")
    report = rl.lower_file(tmp_path / "cut.onnx", tmp_path / "lowered.onnx", verify=1)
    assert [str(proof.status) for proof in report.verification.proofs] == ["proven"]


@pytest.mark.parametrize("first", thinned([*range(0, 900, 5)], 180))
def test_no_wrong_mutant_is_proven(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 5):
        rng = np.random.default_rng(seed)
        case = PROVEN[[*PROVEN][rng.integers(len(PROVEN))]]
        original = case.model()
        lowered = rl.lower(original, **case.lowering)
        wrong, what = mutant(lowered, rng)
        found = proofs(original, wrong, tmp_path)
        if found and all(found):
            assert distance(case, lowered, wrong) < FAR, f"{seed}: {what}"


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("lost", ["Y0", "low", "Y"])
def test_an_output_that_is_lost_is_not_proven(lost: str, form: Any, tmp_path: Path) -> None:
    """Something else reads another value in the lowered model, also of the lower of two layers in a loop."""
    read = "    low_read = Neg (low) Y0_read = Neg (Y0) Y_read = Neg (Y)\n}"
    outputs = "(float[1,N,4] low_read, float[T,1,N,4] Y0_read, float[T,1,N,4] Y_read)"
    original = parse(
        _TWO_LAYERS.replace("(float[T,1,N,4] Y, float[1,N,4] low)", outputs).replace("\n}", f"\n{read}")
    )
    lowered = rl.lower(original, form)
    assert all(proofs(original, lowered, tmp_path))
    place = next(n for n, node in enumerate(lowered.graph.node) if lost in node.output)
    for node in lowered.graph.node:
        node.output[:] = ["other" if name == lost else name for name in node.output]
        node.input[:] = ["wrong" if name == lost else name for name in node.input]
    lowered.graph.node.insert(place + 1, onnx.helper.make_node("Softsign", ["other"], ["wrong"]))
    del lowered.graph.value_info[:]
    assert not all(proofs(original, lowered, tmp_path))


def test_no_number_is_rounded_as_those_of_the_first_input(tmp_path: Path) -> None:
    """X is in 16 bits, the states are not."""
    original = parse("""
main (float[N,3] h0, float16[T,N,3] X) => (float[N,3] h, float[T,N,3] Y) <float[3,3] R = {}> {
    h, Y = Scan <num_scan_inputs = 1,
        body = each (float[N,3] state, float16[N,3] x) => (float[N,3] next, float[N,3] y) {
        wide = Cast <to = 1> (x) of_state = MatMul (state, R) sum = Add (of_state, wide) next = Tanh (sum)
        y = Mul (of_state, of_state) }> (h0, X)
}""")
    lowered = rl.lower(original, "loop", lower_loops=True)
    assert all(proofs(original, lowered, tmp_path))
    (body,) = (a.g for node in lowered.graph.node for a in node.attribute if a.HasField("g"))
    place, node = next((n, node) for n, node in enumerate(body.node) if node.op_type == "MatMul")
    for made in (
        onnx.helper.make_node("Cast", ["half"], ["whole"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Cast", [node.input[0]], ["half"], to=onnx.TensorProto.FLOAT16),
    ):
        body.node.insert(place, made)
    node.input[0] = "whole"
    assert not any(proofs(original, lowered, tmp_path))


def proofs(original: onnx.ModelProto, lowered: onnx.ModelProto, folder: Path) -> tuple[NodeProof, ...]:
    """What is proven of the nodes; of a model that cannot be read, one that is not."""
    for name, proto in (("original", original), ("lowered", lowered)):
        onnx.save(proto, folder / f"{name}.onnx")
    try:
        parsed = parse_file(folder / "original.onnx"), parse_file(folder / "lowered.onnx")
    except rl.RnnLoweringError:
        return (NodeProof("", "not proven"),)
    return proofs_of(node_pairs(parsed[0].model, parsed[1]), parsed[0].model, parsed[1].model)


def distance(case: Proven, lowered: onnx.ModelProto, wrong: onnx.ModelProto) -> float:
    """How far a model is from another; 0 if it is no valid one."""
    try:
        both = [session(model, relabel=True) for model in (lowered, wrong)]
    except (ort.capi.onnxruntime_pybind11_state.Fail, ort.capi.onnxruntime_pybind11_state.InvalidGraph):
        return 0.0
    far = 0.0
    for T, N in ODD:
        feed = case.feed(T, N)
        for right, got in zip(*(runs.run(None, feed) for runs in both), strict=True):
            same = right.shape == got.shape
            far = max(far, float(np.abs(got - right).max(initial=0)) if same else np.inf)
    return far
