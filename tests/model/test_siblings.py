"""Nodes that do not depend on each other become one loop where the target runs that faster: what joins, what does
not, that the result is right, and that a comparison of single nodes sees what goes wrong in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from commands import Command
from onnx import TensorProto, helper, numpy_helper
from oracle import GATES
from planting import Planting
from running import assert_close, run

import rnn_lowering as rl
from rnn_lowering.compare.nodes.one_by_one import NodeComparison
from rnn_lowering.compare.result import Verification
from rnn_lowering.compare.runner.process import Runner
from rnn_lowering.files.reading import ModelSource
from rnn_lowering.recurrence import weights

SEQ, BATCH, WIDTH = 6, 2, 5


@dataclass(frozen=True)
class Member:
    """A node beside others: its operator, attributes, hidden size, and connected inputs and outputs."""

    op: str = "GRU"
    hidden: int = 4
    attributes: Mapping[str, Any] = field(default_factory=dict)
    X: str = "X"
    inputs: Sequence[str] = ("B",)
    outputs: Sequence[str] = ("Y", "Y_h")
    lengths: str = ""

    @property
    def dirs(self) -> int:
        return 2 if self.attributes.get("direction") == "bidirectional" else 1


@dataclass(frozen=True)
class Net:
    """A model of nodes side by side, its inputs, and what it computes by the pages of the operators."""

    model: onnx.ModelProto
    feed: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


def net(
    *members: Member,
    around: str = "",
    sizes: tuple[int | str, int | str] = ("seq", "batch"),
    T: int = SEQ,
    values: Mapping[str, np.ndarray] | None = None,
) -> Net:
    """Return a net; `around` are nodes in ONNX's text that compute the values that members read from X."""
    rng = np.random.default_rng(len(members))
    X = rng.standard_normal((T, BATCH, WIDTH)).astype(np.float32)
    lengths = np.array([T, 1 + T // 2], np.int32)
    feed = {"X": X} | ({"lengths": lengths} if any(m.lengths == "lengths" for m in members) else {})
    known = {"X": X, "lengths": lengths, "more": lengths[::-1].copy()} | dict(values or {})
    nodes, tensors, outputs = [], [], []
    expected: dict[str, np.ndarray] = {}
    for n, member in enumerate(members):
        H, rows, dirs = member.hidden, GATES[member.op] * member.hidden, member.dirs
        data = known[member.X]  # of layout 1 with a batch of T sequences
        state = (dirs, BATCH, H)
        shapes = {"W": (dirs, rows, data.shape[2]), "R": (dirs, rows, H), "B": (dirs, 2 * rows), "P": (dirs, 3 * H)}
        shapes |= {"initial_h": state, "initial_c": state}
        given = {s: rng.uniform(-1, 1, shapes[s]).astype(np.float32) for s in ("W", "R", *member.inputs)}
        names = {s: f"{s}{n}" for s in given} | ({"sequence_lens": member.lengths} if member.lengths else {})
        order = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
        inputs = [member.X, *(names.get(s, "") for s in order[1 : 8 if member.op == "LSTM" else 6])]
        symbols = ("Y", "Y_h", "Y_c")[: 3 if member.op == "LSTM" else 2]
        wanted = [f"{s}{n}" if s in member.outputs else "" for s in symbols]
        attributes = {"hidden_size": H, **member.attributes}
        nodes.append(helper.make_node(member.op, inputs, wanted, f"node{n}", **attributes))
        states = {s for s in given if s.startswith("initial")}
        tensors += [numpy_helper.from_array(a, f"{s}{n}") for s, a in given.items() if s not in states]
        feed |= {f"{s}{n}": given[s] for s in states}
        page = {**given, "X": data} | ({"sequence_lens": known[member.lengths]} if member.lengths else {})
        found = oracle.evaluate(member.op, attributes, page)
        expected |= {f"{s}{n}": found[s] for s in symbols if s in member.outputs}
        outputs += [helper.make_tensor_value_info(w, TensorProto.FLOAT, None) for w in wanted if w]
    if any(member.lengths == "more" for member in members):
        feed["more"] = known["more"]
    parsed = onnx.parser.parse_graph(f"g (float[a,b,c] X) => (float[a,b,c] X) {{ {around} }}") if around else None
    infos = [
        helper.make_tensor_value_info(
            name,
            TensorProto.INT32 if array.dtype == np.int32 else TensorProto.FLOAT,
            [*sizes, WIDTH] if name == "X" else [1, sizes[1], array.shape[2]] if array.ndim == 3 else [sizes[1]],
        )
        for name, array in feed.items()
    ]
    graph = helper.make_graph([*(parsed.node if parsed else ()), *nodes], "net", infos, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Net(model, feed, expected)


def loops(model: onnx.ModelProto) -> int:
    return sum(node.op_type in ("Scan", "Loop") for node in model.graph.node)


def lowered(given: Net, to: str = "auto", **options: Any) -> onnx.ModelProto:
    """Return the lowered model, which gives what the original does in onnxruntime, and by the pages."""
    new: onnx.ModelProto = rl.lower(given.model, to, target="onnxruntime", **options)
    actual = run(new, given.feed)
    if not any(a.i for node in given.model.graph.node for a in node.attribute if a.name == "layout"):
        assert_close(actual, run(given.model, given.feed))
    assert_close(actual, given.expected)
    return new


HALVES = "sizes = Constant <value = int64[2] {2, 3}> () A, C = Split <axis = 2> (X, sizes)"


def of_halves(*members: Member, **more: Any) -> Net:
    X = np.random.default_rng(len(members)).standard_normal((SEQ, BATCH, WIDTH)).astype(np.float32)
    return net(*members, around=HALVES, values={"A": X[..., :2], "C": X[..., 2:]}, **more)


REVERSE, BOTH = {"direction": "reverse"}, {"direction": "bidirectional"}
TOGETHER: dict[str, list[Member]] = {
    **{op: [Member(op), Member(op)] for op in GATES},
    **{f"{op} of different sizes": [Member(op, 4), Member(op, 7), Member(op, 1)] for op in GATES},
    **{f"{op} both ways": [Member(op, 4, BOTH), Member(op, 3, BOTH)] for op in GATES},
    **{f"{op} one of them in reverse": [Member(op, 4), Member(op, 3, REVERSE)] for op in GATES},
    **{f"{op} in reverse": [Member(op, 4, REVERSE), Member(op, 3, REVERSE)] for op in GATES},
    **{
        f"{op} from given states": [Member(op, 4, inputs=("B", "initial_h")), Member(op, 3)]
        for op in ("GRU", "LSTM", "RNN")
    },
    **{f"{op} clipped": [Member(op, 4, {"clip": 0.4}), Member(op, 3, {"clip": 0.4})] for op in GATES},
    "GRU of linear_before_reset": [Member("GRU", h, {"linear_before_reset": 1}) for h in (4, 3)],
    "LSTM of input_forget": [Member("LSTM", h, {"input_forget": 1}) for h in (4, 3)],
    "LSTM with peepholes": [Member("LSTM", h, inputs=("B", "P", "initial_c")) for h in (4, 3)],
    "LSTM without Y": [
        Member("LSTM", 4, outputs=("Y_c",)),
        Member("LSTM", 3, outputs=("Y",)),
        Member("LSTM", 2, outputs=("Y_h",)),
    ],
    "GRU without biases": [Member("GRU", 4, inputs=()), Member("GRU", 3)],
    "LSTM of Softsign": [Member("LSTM", h, {"activations": ["HardSigmoid", "Softsign", "Tanh"]}) for h in (4, 3)],
    "LSTM of one length": [Member("LSTM", h, d, lengths="lengths") for h, d in ((4, {}), (3, REVERSE), (2, BOTH))],
    "GRU of layout 1": [Member("GRU", h, {"layout": 1}) for h in (4, 3)],
}
APART: dict[str, list[Member]] = {
    "operators": [Member("GRU"), Member("LSTM")],
    "activations": [Member("RNN"), Member("RNN", 3, {"activations": ["Softsign"]})],
    "states that may overflow": [Member("RNN", h, {"activations": ["Relu"]}) for h in (4, 3)],
    "clips": [Member("GRU", 4, {"clip": 0.4}), Member("GRU", 3)],
    "linear_before_reset": [Member("GRU", 4, {"linear_before_reset": 1}), Member("GRU", 3)],
    "lengths": [Member("GRU", 4, lengths="lengths"), Member("GRU", 3, lengths="more")],
    "lengths of one only": [Member("GRU", 4, lengths="lengths"), Member("GRU", 3)],
    "sizes where a product costs more": [Member("GRU", 100), Member("GRU", 30)],
}


@pytest.mark.parametrize("form", ["scan", "loop"])
@pytest.mark.parametrize("name", TOGETHER)
def test_siblings_become_one_loop(name: str, form: str) -> None:
    members = TOGETHER[name]
    given = net(*members, sizes=("seq", "batch") if form == "scan" else (SEQ, BATCH))
    assert loops(lowered(given, form)) == 1
    apart = lowered(given, form, join=False)
    assert loops(apart) == sum(member.dirs for member in members)


@pytest.mark.parametrize("name", APART)
def test_what_differs_stays_apart(name: str) -> None:
    assert loops(lowered(net(*APART[name]))) == 2


def test_sizes_follow_from_the_graph_where_the_inputs_differ() -> None:
    assert loops(lowered(of_halves(Member(X="A"), Member(X="C", hidden=3)))) == 1


def frames() -> np.ndarray:
    """X of a net of two members."""
    return np.random.default_rng(2).standard_normal((SEQ, BATCH, WIDTH)).astype(np.float32)


X = frames()
PROVEN: dict[str, tuple[str, np.ndarray]] = {
    "Relu, a sum": ("two = Constant <value_float = 2.0> () r = Relu (X) A = Mul (r, two)", 2 * np.maximum(X, 0)),
    "Transpose twice": ("t = Transpose <perm = [1, 0, 2]> (X) A = Transpose <perm = [1, 0, 2]> (t)", X),
    "Unsqueeze, Squeeze": (
        "axes = Constant <value = int64[1] {1}> () u = Unsqueeze (X, axes) A = Squeeze (u, axes)",
        X,
    ),
    "Reshape": (
        "s = Constant <value = int64[4] {0, 0, 1, -1}> () u = Reshape (X, s) "
        "axes = Constant <value = int64[1] {-2}> () A = Squeeze (u, axes)",
        X,
    ),
    "Concat of features": ("A = Concat <axis = -1> (X, X)", np.concatenate([X, X], -1)),
}
UNPROVEN: dict[str, tuple[str, np.ndarray]] = {
    "Slice of time": (
        "b = Constant <value = int64[1] {1}> () e = Constant <value = int64[1] {9}> () "
        "z = Constant <value = int64[1] {0}> () A = Slice (X, b, e, z)",
        X[1:],
    ),
    "Concat of time": ("A = Concat <axis = 0> (X, X)", np.concatenate([X, X], 0)),
}


@pytest.mark.parametrize("name", PROVEN)
def test_sizes_follow_from_what_is_computed_for_each_step(name: str) -> None:
    nodes, computed = PROVEN[name]
    two = [Member(), Member(X="A", hidden=3)]
    assert loops(lowered(net(*two, around=nodes, values={"A": computed}))) == 1


@pytest.mark.parametrize("name", UNPROVEN)
def test_other_lengths_stay_apart(name: str) -> None:
    nodes, computed = UNPROVEN[name]
    two = [Member(), Member(X="A", hidden=3)]
    for sizes in (("seq", "batch"), (SEQ, BATCH)):
        assert loops(lowered(net(*two, around=nodes, values={"A": computed}, sizes=sizes))) == 2


def test_a_node_that_depends_on_another_stays_apart() -> None:
    first = net(Member(outputs=("Y", "Y_h")), Member(hidden=3))
    second = first.model.graph.node[1]
    for nodes, slot, value in (
        ("axes = Constant <value = int64[1] {1}> () s = Squeeze (Y0, axes) A = Relu (s)", 0, "A"),
        ("last = Identity (Y_h0)", 5, "last"),
    ):
        model = onnx.ModelProto()
        model.CopyFrom(first.model)
        parsed = onnx.parser.parse_graph(f"g (float[a,b,c] X) => (float[a,b,c] X) {{ {nodes} }}")
        inputs = [*second.input, *[""] * (6 - len(second.input))]
        inputs[slot] = value
        del model.graph.node[1]
        model.graph.node.extend([*parsed.node, onnx.NodeProto.FromString(second.SerializeToString())])
        del model.graph.node[-1].input[:]
        model.graph.node[-1].input.extend(inputs)
        width = {0: 4, 5: WIDTH}[slot]
        H = {0: 3, 5: 4}[slot]
        model.graph.node[-1].attribute[0].i = H
        rng = np.random.default_rng(0)
        for tensor in model.graph.initializer:
            shape = {"W1": (1, 3 * H, width), "R1": (1, 3 * H, H), "B1": (1, 6 * H)}.get(tensor.name)
            if shape:
                tensor.CopyFrom(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), tensor.name))
        new = rl.lower(model, target="onnxruntime")
        assert loops(new) == 2
        assert_close(run(new, first.feed), run(model, first.feed))


JOINED = [TOGETHER[name] for name in ("LSTM of different sizes", "GRU both ways", "LSTM of one length")]


def compared(given: Net) -> Verification:
    """Compare the nodes of a net with float64, one by one."""
    new = rl.lower(given.model, target="onnxruntime")
    assert loops(new) == 1
    with Runner() as runner:
        files = [ModelSource(runner.folder / f"{n}.onnx", proto) for n, proto in enumerate((given.model, new))]
        return NodeComparison(files[0], files[1], runner, rl.Check(), None).result("asked for")


@pytest.mark.parametrize("members", JOINED)
def test_joined_nodes_are_compared_with_float64(members: list[Member]) -> None:
    result = compared(net(*members))
    assert result.status == "verified"
    names = {check.name.split(" in ")[0] for check in result.nodes}
    assert names == {f"{s} of {m.op} node 'node{n}'" for n, m in enumerate(members) for s in m.outputs}


def test_a_loop_that_mixes_its_nodes_fails_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    Planting(monkeypatch).function(weights.side_by_side_operands, lambda join, op, ks: join(op, ks[::-1]))
    given = of_halves(Member(X="A"), Member(X="C"))
    result = compared(given)
    assert result.status == "failed"
    assert rl.verify(given.model, rl.lower(given.model, target="onnxruntime")).status == "failed"


def test_the_report_and_the_command_tell_it(tmp_path: Path, rnn_lower: Command) -> None:
    given = net(Member(), Member())
    _, report = rl.lower(given.model, target="onnxruntime", full=True)
    assert any("node0" in note and "node1" in note and "one recurrence" in note for note in report.notes)
    onnx.save(given.model, tmp_path / "in.onnx")
    for option, count in (((), 1), (("--no-join",), 2)):
        listed = rnn_lower(tmp_path / "in.onnx", "--list", "--target", "onnxruntime", *option)
        told = "GRU node 'node0' in main graph and GRU node 'node1' in main graph become one recurrence"
        assert (told in " ".join(listed.out.split())) == (count == 1)
        outcome = rnn_lower(tmp_path / "in.onnx", tmp_path / f"{count}.onnx", "--target", "onnxruntime", *option)
        assert outcome.code == 0
        assert loops(onnx.load(tmp_path / f"{count}.onnx")) == count


TARGETS = ["portable", "tract", "openvino", "onnxruntime-web", "iree", "mnn", "opencv"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "name", ["GRU", "GRU both ways", "RNN in reverse", "LSTM of one length", "GRU of layout 1"]
)
def test_other_targets_join_too(name: str, target: str) -> None:
    given = net(*TOGETHER[name], sizes=(SEQ, BATCH))
    new = rl.lower(given.model, target=target)
    assert_close(run(new, given.feed), given.expected)
    apart = rl.lower(given.model, target=target, join=False)
    # IREE runs unrolled steps slower, and OpenVINO makes its own kernels of an LSTM.
    as_apart = target == "iree" or (target == "openvino" and "LSTM" in name)
    few, many = (sum(1 for _ in nodes_of(proto.graph)) for proto in (new, apart))
    assert few == many if as_apart else few < many


@pytest.mark.parametrize("target", ["portable", "iree"])
def test_unrolled_steps_share_nothing_where_that_is_slower(target: str) -> None:
    given = net(Member("LSTM", 4, BOTH), sizes=(SEQ, BATCH))
    for form, count in (("scan", 1), ("unroll", 0)):
        new = rl.lower(given.model, form, target=target)
        assert loops(new) == count
        apart = rl.lower(given.model, form, target=target, join=False)
        assert (new == apart) == (form == "unroll")


@pytest.mark.parametrize("target", TARGETS)
def test_a_single_step_shares_no_loop(target: str) -> None:
    given = net(Member("GRU", 4), Member("GRU", 3), T=1, sizes=(1, BATCH))
    new = rl.lower(given.model, target=target)
    assert new == rl.lower(given.model, target=target, join=False)
    assert_close(run(new, given.feed), given.expected)


@pytest.mark.parametrize(("members", "together"), [([BOTH], 3), ([{}, REVERSE], 3), ([{}, {}], 4)])
def test_the_most_rows_at_which_a_loop_is_shared(members: list[dict[str, str]], together: int) -> None:
    """Reversed rows are copied: both directions of an LSTM of 64, 4 rows and 500 steps took 1.04 of the time."""
    for batch in (together, together + 1):
        given = net(*(Member("LSTM", 64, m) for m in members))
        for value in given.model.graph.input:
            value.type.tensor_type.shape.dim[1].dim_value = batch
        apart = rl.lower(given.model, join=False)
        assert (rl.lower(given.model) == apart) == (batch > together)


@pytest.mark.parametrize("target", ["portable", "openvino"])
@pytest.mark.parametrize("opset", [9, 10])
def test_directions_of_any_length_share_a_loop_from_opset_10(opset: int, target: str) -> None:
    """Before, rows of unknown number cannot be reversed outside of it."""
    given = net(Member("GRU", 4, BOTH))
    given.model.opset_import[0].version = opset
    new = rl.lower(given.model, "loop", target=target)
    assert loops(new) == (1 if opset >= 10 else 2)
    assert_close(run(new, given.feed), given.expected)


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes_of(attribute.g)


def test_tract_flips_no_rows_of_open_length() -> None:
    given = net(Member("GRU", 4, BOTH), Member("GRU", 3, BOTH))
    new = rl.lower(given.model, target="tract")
    assert loops(new) == 4
    assert_close(run(new, given.feed), given.expected)
