"""onnx's native code can neither end nor hold up the caller's process, and ordinary models do not pay for that."""

import copy
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import Case, model
from chains import Link, chain
from onnx import TensorProto, helper, numpy_helper
from paths import EXAMPLES
from stored_models import entries, load
from texts import parse, refusal
from thinning import thinned

import rnn_lowering as rl
from rnn_lowering.child import Child, Message
from rnn_lowering.model import onnx_checks
from rnn_lowering.model.onnx_checks import is_sound

pytestmark = pytest.mark.usefixtures("own_processes")
ORDINARY = {
    "symbolic": lambda: chain(Link("LSTM", "first"), Link("GRU", "second")),
    "unknown": lambda: model(Case("native_unranked", "LSTM", x="unranked"), 17),
    "branch": lambda: model(Case("native_if", "GRU", scope="if", weights="node"), 17),
    "function": lambda: model(Case("native_function", "GRU", scope="function"), 17),
    "example": lambda: onnx.load(EXAMPLES / "denoiser.onnx"),
}
REAL = [e for e in entries("runs") if e["bytes"] < 300_000][:20]


def behind(node: onnx.NodeProto, opset: int, **attributes: Any) -> onnx.ModelProto:
    """A model with a GRU whose X a node computes."""
    proto = chain(Link("GRU", "only", attributes), opset=opset, dims=(5, 2))
    nodes = [copy.deepcopy(n) for n in proto.graph.node]
    nodes[0].input[0] = node.output[0]
    del proto.graph.node[:]
    proto.graph.node.extend([node, *nodes])
    return proto


def with_attribute(op_type: str, inputs: list[str], name: str, value: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, ["x"], "odd", **{name: value})


CRASHES: dict[str, Callable[[], onnx.ModelProto]] = {
    "a number that is no axis": lambda: behind(
        with_attribute("LayerNormalization", ["X", "X"], "axis", 2**63 - 1), 23
    ),
    "an attribute of another type": lambda: behind(with_attribute("EyeLike", ["X"], "dtype", 1.5), 18),
    "an input too few": lambda: behind(helper.make_node("RegexFullMatch", [], ["x"], "odd"), 20),
}


@pytest.mark.parametrize("make", CRASHES.values(), ids=list(CRASHES))
def test_inference_that_may_crash_runs_elsewhere(
    make: Callable[[], onnx.ModelProto], started: list[subprocess.Popen[bytes]]
) -> None:
    assert onnx_checks.with_inferred_shapes(make()).graph.name == make().graph.name
    assert len(started) == 1
    rl.inspect(make())


@pytest.mark.parametrize("make", CRASHES.values(), ids=list(CRASHES))
def test_what_may_crash_is_not_folded(make: Callable[[], onnx.ModelProto]) -> None:
    assert not is_sound(ir.from_proto(make()))
    refusal(lambda: rl.lower(make(), "unroll", input_shapes={"X": [5, 2, 3]}))


@pytest.mark.parametrize(
    ("opset", "value"), thinned([(opset, value) for value in ("x", 1.5, [0.5], ["x"]) for opset in (5, 6)], 3)
)
def test_a_conversion_that_crashes_is_refused(opset: int, value: Any) -> None:
    odd = with_attribute("Unsqueeze", ["X"], "axes", value)
    proto = behind(odd, opset)
    assert f"opset {opset} cannot be converted to 13" in refusal(lambda: rl.lower(proto))


def test_what_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_checks, "CHECK_SECONDS", 0)
    assert "does not finish" in refusal(lambda: rl.lower(model(Case("native_old", "GRU"), 6)))


@pytest.mark.parametrize("make", ORDINARY.values(), ids=list(ORDINARY))
def test_an_ordinary_model_needs_no_other_process(
    make: Callable[[], onnx.ModelProto], started: list[subprocess.Popen[bytes]]
) -> None:
    rl.lower(make())
    assert started == []


@pytest.mark.parametrize("entry", REAL, ids=lambda entry: entry["file"])
def test_a_real_model_needs_no_other_process(entry: dict[str, Any], started: list[subprocess.Popen[bytes]]) -> None:
    rl.preview(load(entry))
    assert started == []


def unsound() -> onnx.ModelProto:
    """A Loop that carries a value, in a model with a huge number: it is inferred several times, elsewhere."""
    proto = parse(CARRIED)
    proto.graph.node.append(with_attribute("Neg", ["X"], "unknown", 2**40))
    return proto


CARRIED = """
main (float[T,N,4] X, int64 n) => (float[t,b,4] Z) <float[1,12,4] W = {}, float[1,12,4] R = {}, bool go = {1}> {
    Z = Loop (n, go, X) <body = step (int64 i, bool c, float[?,?,?] x) => (bool c1, float[?,?,?] y) {
        c1 = Identity (c)
        axes = Constant <value_ints = [1]> ()
        y4 = GRU <hidden_size = 4> (x, W, R)
        y = Squeeze (y4, axes)
    }>
}
"""


def test_one_child_serves_a_whole_call(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = Child.ask

    def counted(child: Child, job: Message, seconds: float | None) -> Iterator[Message]:
        asked.append(job["task"])
        return ask(child, job, seconds)

    monkeypatch.setattr(Child, "ask", counted)
    with suppress(rl.RnnLoweringError):
        rl.lower(unsound())
    assert len(asked) > 1
    assert len(started) == 1
    assert started[0].returncode is not None


def test_after_a_crash_nothing_more_is_inferred(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Child.ask

    def crash(child: Child, job: Message, seconds: float | None) -> Iterator[Message]:
        started[-1].kill()
        return ask(child, job, seconds)

    monkeypatch.setattr(Child, "ask", crash)
    with suppress(rl.RnnLoweringError):
        rl.lower(unsound())
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
    branches = []
    for name, size in (("then", 300), ("else", 200)):
        weights = numpy_helper.from_array(np.ones((400, size), np.float32), "W")
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, size])
        branches.append(
            helper.make_graph([helper.make_node("MatMul", ["X", "W"], [name])], name, [], [out], [weights])
        )
    node = helper.make_node("If", ["c"], ["Y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("X", TensorProto.FLOAT, ["seq", 400]),
    ]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", inputs, [output])
    assert is_sound(ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))
