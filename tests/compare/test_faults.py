"""Faults planted in lowered models, as a wrong lowering would write them, and models that compute almost the same:
the default verification catches each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import Case, model
from impostors import IMPOSTORS, Impostor
from onnx import TensorProto, helper, numpy_helper
from running import scopes
from texts import parse
from thinning import thinned

import rnn_lowering as rl

pytestmark = pytest.mark.usefixtures("workers_here")

H = 4
Fault = Callable[[onnx.ModelProto], None]
STATES = ("B", "sequence_lens", "initial_h", "initial_c")
CASES = {
    case.name: case
    for case in (
        Case("LSTM", "LSTM", {"direction": "bidirectional"}, T=6, H=H, optional=STATES, x="symbolic"),
        Case("GRU", "GRU", {"direction": "bidirectional"}, T=6, H=H, optional=STATES, x="symbolic"),
        Case("RNN", "RNN", {"direction": "reverse", "clip": 0.5}, T=6, H=H, optional=STATES, x="batch"),
        Case("both_ways", "GRU", {"direction": "bidirectional"}, T=6, H=H, x="symbolic"),
        Case("backwards", "RNN", {"direction": "reverse"}, T=6, H=H, x="batch"),
        Case("plain", "LSTM", T=6, H=H, x="static"),
    )
}


def nodes(lowered: onnx.ModelProto, op_type: str) -> list[onnx.NodeProto]:
    return [node for graph in scopes(lowered.graph) for node in graph.node if node.op_type == op_type]


def inputs(op_type: str, order: tuple[int, ...], which: int = 0) -> Fault:
    """Give one node of a type its inputs in another order."""

    def fault(lowered: onnx.ModelProto) -> None:
        node = nodes(lowered, op_type)[which]
        node.input[:] = [node.input[n] for n in order]

    return fault


def becomes(op_type: str, other: str, which: int = 0, **attributes: int) -> Fault:
    """Make one node of a type another operator, with the inputs of that one."""

    def fault(lowered: onnx.ModelProto) -> None:
        node = nodes(lowered, op_type)[which]
        node.op_type = other
        del node.input[onnx.defs.get_schema(other, 13, "").max_input :]
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())

    return fault


def picks(symbol: str, other: str, which: int = 0) -> Fault:
    """Let a Gather take the rows of another index."""

    def fault(lowered: onnx.ModelProto) -> None:
        found = [n for n in nodes(lowered, "Gather") if n.input[1].endswith(f"/{symbol}")]
        found[which].input[1] = f"{found[which].input[1].removesuffix(symbol)}{other}"

    return fault


def first_state_for_last(lowered: onnx.ModelProto) -> None:
    """Let the final states be those of the first step."""
    pick = next(n for n in nodes(lowered, "Gather") if n.input[1].endswith("/last"))
    at = list(lowered.graph.node).index(pick)
    lowered.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    lowered.graph.node.insert(
        at, helper.make_node("Gather", [pick.input[1].replace("last", "row"), "first"], ["row0"])
    )
    lowered.graph.node[at + 1].input[1] = "row0"


def unflipped(which: int) -> Fault:
    def fault(lowered: onnx.ModelProto) -> None:
        node = nodes(lowered, "Slice")[which]
        node.op_type = "Identity"
        del node.input[1:]

    return fault


def through_float16(op_type: str) -> Fault:
    """Round what nodes of a type compute to float16."""

    def fault(lowered: onnx.ModelProto) -> None:
        for graph in scopes(lowered.graph):
            for index, node in reversed(list(enumerate(graph.node))):
                if node.op_type == op_type:
                    name = node.output[0]
                    node.output[0] = f"{name}/wide"
                    half = helper.make_node("Cast", [f"{name}/wide"], [f"{name}/half"], to=TensorProto.FLOAT16)
                    back = helper.make_node("Cast", [f"{name}/half"], [name], to=TensorProto.FLOAT)
                    graph.node.insert(index + 1, back)
                    graph.node.insert(index + 1, half)

    return fault


def late(lowered: onnx.ModelProto) -> None:
    """Let a flip of six rows begin one row later."""
    (rows,) = [t for t in lowered.graph.initializer if t.dims == [6]]
    rows.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(rows), 1), rows.name))


FAULTS: list[tuple[str, str, str, Fault]] = [
    *[("LSTM", form, "padding kept", picks("within", "row")) for form in ("scan", "loop")],
    *[("LSTM", "scan", f"turn {n} left out", picks("reversed", "row", n)) for n in (0, 1)],
    ("RNN", "loop", "Y not turned back", picks("reversed", "row", 1)),
    ("LSTM", "scan", "wrong final state of short sequences", first_state_for_last),
    *[("both_ways", "scan", f"flip {n}", unflipped(n)) for n in range(3)],
    ("backwards", "scan", "flip off by one", late),
    ("LSTM", "scan", "length off by one", becomes("Less", "LessOrEqual", 1)),
    ("GRU", "scan", "h - n the other way", inputs("Sub", (1, 0))),
    ("LSTM", "scan", "directions exchanged", inputs("Concat", (1, 0), -1)),
    ("plain", "scan", "tanh of c left out", becomes("Tanh", "Identity", -1)),
    ("plain", "unroll", "one step's tanh left out", becomes("Tanh", "Identity", 7)),
    ("plain", "unroll", "steps in the wrong order", inputs("Concat", (1, 0, 2, 3, 4, 5))),
    ("RNN", "scan", "clip left out", becomes("Clip", "Identity")),
    *[("plain", form, "through float16", through_float16("Sigmoid")) for form in ("scan", "loop", "unroll")],
]
"""What no other node or weights give: these are among the impostors."""


@pytest.fixture(scope="module")
def originals() -> dict[str, onnx.ModelProto]:
    return {name: model(case, 17) for name, case in CASES.items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*CASES][::-1])
def test_without_a_fault(name: str, originals: dict[str, onnx.ModelProto]) -> None:
    assert rl.verify(originals[name], rl.lower(originals[name]))


@pytest.mark.parametrize(
    ("name", "form", "fault"), thinned([pytest.param(c, f, x, id=f"{c}-{f}-{n}") for c, f, n, x in FAULTS], 4)
)
def test_is_caught(name: str, form: Any, fault: Fault, originals: dict[str, onnx.ModelProto]) -> None:
    lowered = rl.lower(originals[name], form, input_shapes={"X": (6, 3, 2)} if form == "unroll" else None)
    fault(lowered)
    assert rl.verify(originals[name], lowered).status == "failed"


@pytest.mark.few(4)
@pytest.mark.parametrize("impostor", thinned([pytest.param(i, id=name) for name, i in IMPOSTORS], 20))
def test_an_impostor_is_caught(impostor: Impostor) -> None:
    original, _, wrong = impostor.models()
    assert rl.verify(original, wrong, runs=1).status == "failed"


@pytest.mark.few(1)
@pytest.mark.parametrize("impostor", thinned([pytest.param(i, id=name) for name, i in IMPOSTORS[::8]], 3))
def test_what_an_impostor_imitates_is_verified(impostor: Impostor) -> None:
    original, right, _ = impostor.models()
    assert rl.verify(original, right, runs=1)


def test_there_are_enough_impostors() -> None:
    assert len({name for name, _ in IMPOSTORS}) == len(IMPOSTORS) >= 209


def test_a_bound_that_only_the_largest_inputs_reach() -> None:
    """The longest run has the largest numbers, so many that some are far out."""
    bounded = (
        parse(
            f"""main (float[T,1,3] X) => (float[a,b,c,d] Y, float[T,1,3] Z)
            <float[1,2,3] W = {{}}, float[1,2,2] R = {{}}, float low = {{-{bound}}}, float high = {{{bound}}}> {{
            Y = RNN <hidden_size = 2> (X, W, R)  Z = Clip (X, low, high) }}"""
        )
        for bound in ("100.0", "4.5")
    )
    original, wrong = bounded
    assert rl.verify(original, rl.lower(original))
    assert not rl.verify(original, rl.lower(wrong))


@pytest.mark.usefixtures("own_processes")
def test_a_model_that_kills_the_optimizer_is_wrong_where_the_original_does_not() -> None:
    """onnxruntime's crashes on a float16 Transpose before a MatMul."""
    behind = "z = MatMul (X, M)  x = Transpose <perm = [1, 0, 2]> (z)"
    text = """g (float16[3, 5, 3] X) => (float16[5, 1, 3, 4] Y)
        <float16[1, 12, 3] W = {{}}, float16[1, 12, 4] R = {{}}, float16[1, 24] B = {{}},
        float16[3, 3] M = {{}}> {{ {} Y = GRU <hidden_size = 4> (x, W, R, B) }}"""
    original = parse(text.format(behind))
    deadly = parse(text.format("z = Transpose <perm = [1, 0, 2]> (X)  x = MatMul (z, M)"))
    assert rl.verify(original, rl.lower(original, "unroll"), runs=1)
    check = rl.verify(original, rl.lower(deadly, "unroll"), runs=1)
    assert check.status == "failed"
    assert "onnxruntime cannot run the lowered model: its process died" in check.reason
    check = rl.verify(deadly, rl.lower(deadly, "unroll"), runs=1)
    assert check, check.reason
    assert "runs only with onnxruntime's optimizations disabled" in check.reason


@pytest.mark.few(1)
@pytest.mark.usefixtures("own_processes")
@pytest.mark.parametrize("operator", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("form", ["unroll", "scan", "loop"])
def test_no_steps_are_right_or_refused(operator: str, form: Any, tmp_path: Path) -> None:
    """onnxruntime's GRU dies where there are none."""
    case = Case("empty", operator, T=3, H=H, x="symbolic", optional=("initial_h",))
    onnx.save(original := model(case, 17), tmp_path / "in.onnx")
    sizes = {original.graph.input[0].type.tensor_type.shape.dim[0].dim_param: 0}
    if operator != "GRU":
        report = rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", form, dims=sizes)
        assert report.verification
        assert "died" not in report.verification.reason
        return
    with pytest.raises(rl.UnsupportedError, match="cannot run with size 0 of axis 0 of input 'X'") as caught:
        rl.lower_file(tmp_path / "in.onnx", tmp_path / "out.onnx", form, dims=sizes)
    assert caught.value.hint == "give a size of 1 or more"
    assert not (tmp_path / "out.onnx").exists()
