"""Faults planted in lowered models, as a wrong lowering would write them, and models that compute almost the same:
the default verification catches each."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from cases import Array, Case, model
from impostors import IMPOSTORS, Impostor
from one_process import run_workers_here
from onnx import TensorProto, helper, numpy_helper
from running import scopes
from thinning import thinned

import rnn_lowering as rl

H = 4
Fault = Callable[[onnx.ModelProto], None]
STATES = ("B", "sequence_lens", "initial_h", "initial_c")
CASES = {
    case.name: case
    for case in (
        Case("LSTM", "LSTM", {"direction": "bidirectional"}, T=6, H=H, optional=STATES, x="symbolic"),
        Case("GRU", "GRU", {"direction": "bidirectional"}, T=6, H=H, optional=STATES, x="symbolic"),
        Case("GRU_lbr", "GRU", {"linear_before_reset": 1}, T=6, H=H, x="symbolic"),
        Case("RNN", "RNN", {"direction": "reverse", "clip": 0.5}, T=6, H=H, optional=STATES, x="batch"),
        Case("peepholes", "LSTM", T=6, H=H, optional=("B", "P"), x="symbolic"),
        Case("both_ways", "GRU", {"direction": "bidirectional"}, T=6, H=H, x="symbolic"),
        Case("backwards", "RNN", {"direction": "reverse"}, T=6, H=H, x="batch"),
        Case("plain", "LSTM", T=6, H=H, x="static"),
    )
}


def nodes(lowered: onnx.ModelProto, op_type: str) -> list[onnx.NodeProto]:
    return [node for graph in scopes(lowered.graph) for node in graph.node if node.op_type == op_type]


def tensor(name: str, edit: Callable[[Array], Array]) -> Fault:
    """Change the first initializer of that symbol."""

    def fault(lowered: onnx.ModelProto) -> None:
        held = [t for g in scopes(lowered.graph) for t in g.initializer if t.name.split("/")[-1] == name]
        changed = edit(numpy_helper.to_array(held[0]).copy())
        assert not np.array_equal(changed, numpy_helper.to_array(held[0]))
        held[0].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed), held[0].name))

    return fault


def swapped(a: int, b: int) -> Callable[[Array], Array]:
    """Exchange two gates along the last axis."""

    def edit(array: Array) -> Array:
        gates = np.split(array, array.shape[-1] // H, axis=-1)
        gates[a], gates[b] = gates[b], gates[a]
        return np.concatenate(gates, axis=-1)

    return edit


def inputs(op_type: str, order: tuple[int, ...], which: int = 0) -> Fault:
    """Give one node of a type its inputs in another order."""

    def fault(lowered: onnx.ModelProto) -> None:
        node = nodes(lowered, op_type)[which]
        node.input[:] = [node.input[n] for n in order]

    return fault


def outputs(op_type: str, order: tuple[int, ...], which: int = 0) -> Fault:
    def fault(lowered: onnx.ModelProto) -> None:
        node = nodes(lowered, op_type)[which]
        node.output[:] = [node.output[n] for n in order]

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


def scaled(factor: float) -> Callable[[Array], Array]:
    return lambda array: array * np.float32(factor)


def late(lowered: onnx.ModelProto) -> None:
    """Let a flip of six rows begin one row later."""
    (rows,) = [t for t in lowered.graph.initializer if t.dims == [6]]
    rows.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(rows), 1), rows.name))


FAULTS: list[tuple[str, str, str, Fault]] = [
    *[("LSTM", "scan", f"R gates {a}{b}", tensor("R", swapped(a, b))) for a in range(4) for b in range(a)],
    *[("LSTM", "loop", f"W gates {a}{b}", tensor("W", swapped(a, b))) for a in range(4) for b in range(a)],
    *[("GRU_lbr", "scan", f"R gates {a}{b}", tensor("R", swapped(a, b))) for a in range(3) for b in range(a)],
    ("LSTM", "scan", "B gates", tensor("B", swapped(0, 2))),
    ("LSTM", "scan", "B dropped", tensor("B", scaled(0.0))),
    ("LSTM", "scan", "B counted twice", tensor("B", scaled(2.0))),
    ("LSTM", "scan", "R a little off", tensor("R", scaled(1.001))),
    ("RNN", "scan", "R not transposed", tensor("R", lambda array: array.T)),
    ("RNN", "unroll", "W of the other order", tensor("W", lambda array: array[::-1])),
    ("GRU_lbr", "scan", "Rbh dropped", tensor("B", scaled(0.0))),
    *[("LSTM", form, f"padding {n} kept", picks("within", "row", n)) for n in (0, 1) for form in ("scan", "loop")],
    *[("LSTM", "scan", f"turn {n} left out", picks("reversed", "row", n)) for n in (0, 1)],
    ("RNN", "loop", "Y not turned back", picks("reversed", "row", 1)),
    ("LSTM", "scan", "wrong final state of short sequences", first_state_for_last),
    *[("both_ways", "scan", f"flip {n}", unflipped(n)) for n in range(3)],
    ("backwards", "scan", "flip off by one", late),
    ("LSTM", "scan", "length off by one", becomes("Less", "LessOrEqual", 1)),
    ("LSTM", "scan", "h and c exchanged", outputs("Scan", (1, 0, 2))),
    ("LSTM", "scan", "initial h and c exchanged", inputs("Scan", (1, 0, 2))),
    ("LSTM", "scan", "gate order of a Split", outputs("Split", (1, 0))),
    ("GRU", "scan", "z and r exchanged", outputs("Split", (1, 0), -1)),
    ("GRU", "scan", "h - n the other way", inputs("Sub", (1, 0))),
    ("LSTM", "scan", "directions exchanged", inputs("Concat", (1, 0), -1)),
    ("plain", "scan", "tanh of c left out", becomes("Tanh", "Identity", -1)),
    ("plain", "scan", "sigmoid for tanh", becomes("Tanh", "Sigmoid")),
    ("plain", "unroll", "one step's tanh left out", becomes("Tanh", "Identity", 7)),
    ("plain", "unroll", "steps in the wrong order", inputs("Concat", (1, 0, 2, 3, 4, 5))),
    ("RNN", "scan", "clip left out", becomes("Clip", "Identity")),
    ("peepholes", "scan", "peephole of o from the old c", tensor("P", scaled(0.0))),
    *[("plain", form, "through float16", through_float16("Sigmoid")) for form in ("scan", "loop", "unroll")],
]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run_workers_here(monkeypatch)


@pytest.fixture(scope="module")
def originals() -> dict[str, onnx.ModelProto]:
    return {name: model(case, 17) for name, case in CASES.items()}


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 30


@pytest.mark.parametrize("name", CASES)
def test_without_a_fault(name: str, originals: dict[str, onnx.ModelProto]) -> None:
    assert rl.verify(originals[name], rl.lower(originals[name]))


@pytest.mark.parametrize(
    ("name", "form", "fault"), thinned([pytest.param(c, f, x, id=f"{c}-{f}-{n}") for c, f, n, x in FAULTS], 8)
)
def test_is_caught(name: str, form: str, fault: Fault, originals: dict[str, onnx.ModelProto]) -> None:
    lowered = rl.lower(originals[name], form, input_shapes={"X": (6, 3, 2)} if form == "unroll" else None)
    fault(lowered)
    assert rl.verify(originals[name], lowered).status == "failed"


@pytest.mark.parametrize("impostor", thinned([pytest.param(i, id=name) for name, i in IMPOSTORS], 20))
def test_an_impostor_is_caught(impostor: Impostor) -> None:
    original, _, wrong = impostor.models()
    assert rl.verify(original, wrong, runs=1).status == "failed"


@pytest.mark.parametrize("impostor", thinned([pytest.param(i, id=name) for name, i in IMPOSTORS[::8]], 3))
def test_what_an_impostor_imitates_is_verified(impostor: Impostor) -> None:
    original, right, _ = impostor.models()
    assert rl.verify(original, right, runs=1)


def test_there_are_enough_impostors() -> None:
    assert len({name for name, _ in IMPOSTORS}) == len(IMPOSTORS) >= 209
