"""onnx's native code can neither end nor hold up the caller's process, and ordinary models do not pay for that."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from cases import Case, model
from chains import Link, chain
from onnx import helper
from paths import EXAMPLES
from stored_models import entries, load
from texts import parse, refusal
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.child import Child, Message
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.onnx_checks import is_sound

pytestmark = pytest.mark.usefixtures("own_processes")
ORDINARY: dict[str, Callable[[], onnx.ModelProto]] = {
    "symbolic": lambda: chain(Link("LSTM", "first"), Link("GRU", "second")),
    "unknown": lambda: model(Case("native_unranked", "LSTM", x="unranked"), 17),
    "branch": lambda: model(Case("native_if", "GRU", scope="if", weights="node"), 17),
    "function": lambda: model(Case("native_function", "GRU", scope="function"), 17),
    "example": lambda: onnx.load(EXAMPLES / "denoiser.onnx"),
}
REAL = [e for e in entries("runs") if e["bytes"] < 300_000][:20]


def behind(opset: int, op_type: str, inputs: list[str], **attributes: Any) -> onnx.ModelProto:
    """A model with a GRU whose X a node computes."""
    proto = chain(Link("GRU", "only"), opset=opset, dims=(5, 2))
    proto.graph.node[0].input[0] = "x"
    proto.graph.node.insert(0, helper.make_node(op_type, inputs, ["x"], "odd", **attributes))
    return proto


CRASHES: dict[str, onnx.ModelProto] = {
    "a number that is no axis": behind(23, "LayerNormalization", ["X", "X"], axis=2**63 - 1),
    "an attribute of another type": behind(18, "EyeLike", ["X"], dtype=1.5),
    "an input too few": behind(20, "RegexFullMatch", []),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CRASHES)
def test_inference_that_may_crash_runs_elsewhere(name: str, started: list[subprocess.Popen[bytes]]) -> None:
    original = CRASHES[name]
    assert onnx_checks.with_inferred_shapes(original).graph.name == original.graph.name
    assert len(started) == 1


@pytest.mark.parametrize("name", thinned(list(CRASHES), len(CRASHES)))
def test_a_model_that_crashes_inference_is_refused(name: str) -> None:
    """And nothing is folded."""
    original = CRASHES[name]
    assert not is_sound(ir.from_proto(original))
    rl.inspect(original)
    refusal(lambda: rl.lower(original, "unroll", input_shapes={"X": [5, 2, 3]}))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("opset", "axes"), thinned([(opset, axes) for axes in ("x", 1.5, [0.5], ["x"]) for opset in (5, 6)], 3)
)
def test_a_conversion_that_crashes_is_refused(opset: int, axes: Any) -> None:
    original = behind(opset, "Unsqueeze", ["X"], axes=axes)
    assert f"opset {opset} cannot be converted to 13" in refusal(lambda: rl.lower(original))


def test_what_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_checks, "CHECK_SECONDS", 0)
    assert "does not finish" in refusal(lambda: rl.lower(model(Case("native_old", "GRU"), 6)))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name)
        for name, make in (ORDINARY | {e["file"]: partial(load, e) for e in REAL}).items()
    ],
)
def test_an_ordinary_model_needs_no_other_process(
    make: Callable[[], onnx.ModelProto], started: list[subprocess.Popen[bytes]]
) -> None:
    (rl.lower if make in ORDINARY.values() else rl.preview)(make())
    assert started == []


CARRIED = """
main (float[T,N,4] X, int64 n) => (float[t,b,4] Z) <float[1,12,4] W = {}, float[1,12,4] R = {}, bool go = {1}> {
    Z = Loop (n, go, X) <body = step (int64 i, bool c, float[?,?,?] x) => (bool c1, float[?,?,?] y) {
        c1 = Identity (c)
        axes = Constant <value_ints = [1]> ()
        y4 = GRU <hidden_size = 4> (x, W, R)
        y = Squeeze (y4, axes)
    }>
    odd = Neg <unknown = 1099511627776> (X)
}
"""
"""A Loop that carries a value, in a model with a huge number: it is inferred several times, elsewhere."""


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["works", "crashes", "takes long"])
def test_one_child_serves_a_whole_call(
    how: str, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash nothing more is inferred, nor when its time is up."""
    asked: list[str] = []
    ask = Child.ask
    monkeypatch.setattr(onnx_checks, "MOST_SECONDS", 0 if how == "takes long" else 1e9)

    def counted(child: Child, job: Message, seconds: float | None) -> Iterator[Message]:
        asked.append(job["task"])
        if how == "crashes":
            started[-1].kill()
        return ask(child, job, seconds)

    monkeypatch.setattr(Child, "ask", counted)
    with suppress(rl.RnnLoweringError):
        rl.lower(parse(CARRIED))
    assert (len(asked) > 1) == (how == "works")
    assert len(started) == 1
    assert started[0].returncode is not None


def test_a_refused_conversion_leaves_the_child_as_it_was(started: list[subprocess.Popen[bytes]]) -> None:
    proto = model(Case("native_converted", "GRU"), 17)
    with onnx_checks.one_child():
        with pytest.raises(onnx_checks.NativeError, match="version"):
            onnx_checks.convert(proto, 10**6)
        assert onnx_checks.convert(proto, 18).opset_import[0].version == 18
    assert len(started) == 1


def test_large_weights_of_bodies_are_known_to_the_checker() -> None:
    """They are not in the message that is checked; two bodies may use one name for different ones."""
    text = """g (bool c, float[seq,400] X) => (float[?,?] Y) {
        Y = If (c) <
            then_branch = yes () => (float[?,300] a) <float[400,300] W = {}> { a = MatMul (X, W) },
            else_branch = no () => (float[?,200] b) <float[400,200] W = {}> { b = MatMul (X, W) }
        >
    }"""
    assert is_sound(ir.from_proto(parse(text)))
